"""What the simulated model "says", and what it makes of a prompt. All of it is deterministic."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_CLASS = re.compile(r"^\s*\[class:(\w+)\]", re.MULTILINE)


def text(first: int, count: int) -> str:
    """Return tokens `first` .. `first + count - 1`: numbered words, so that a reader can check
    that a stream is complete and in order (`w0 w1 w2 ...`)."""
    words = " ".join(f"w{index}" for index in range(first, first + count))
    return words if first == 0 else f" {words}"


def prompt_tokens(prompt: str) -> int:
    """Return the token count of a prompt: four characters to a token."""
    return max(1, -(-len(prompt) // 4))


@dataclass(frozen=True)
class Reading:
    """What the seed and the prompt decide about the answer."""

    kind: str
    accept_length: float
    natural_length: int
    seed: int


def read(
    prompt: str, accept_lengths: Mapping[str, float], unlabelled: Sequence[str], seed: int
) -> Reading:
    """Classify a prompt: by the first of its lines that begins with `[class:NAME]`; without one, by
    its hash, as one of `unlabelled`.

    The natural length, 64 to 512 tokens, is where the model would stop by itself.
    """
    digest = hashlib.blake2b(f"{seed}\0{prompt}".encode("utf-8", "replace"), digest_size=16)
    number = int.from_bytes(digest.digest())
    named = _CLASS.search(prompt)
    kind = (
        named[1] if named and named[1] in accept_lengths else unlabelled[number % len(unlabelled)]
    )
    return Reading(
        kind=kind,
        accept_length=accept_lengths[kind],
        natural_length=64 + (number >> 16) % 449,
        seed=number >> 64,
    )
