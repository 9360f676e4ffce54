"""Prompts: shipped sets, JSONL of one's own, salted against the prefix cache, padded with text.

What a draft model gets right depends on what is written, so a comparison of speculation needs
real prompts. Random tokens, or one easy prompt again and again, measure something else
(https://github.com/vllm-project/vllm/issues/52536).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from opsctl.errors import UsageError

SHIPPED = ("coding", "agentic", "chat", "long-document", "fixed")
CHARACTERS_PER_TOKEN = 4.0
"""Until an engine has told what its own tokenizer makes of the text."""

Message = Mapping[str, str]


@dataclass(frozen=True)
class Item:
    """One conversation to answer. `background` is text that may stand before the task."""

    messages: tuple[Message, ...]
    background: str = ""

    @property
    def text(self) -> str:
        """Everything in it that can serve as padding for others."""
        spoken = [message["content"] for message in self.messages if message["role"] != "system"]
        return "\n\n".join([self.background] * bool(self.background) + spoken)


@dataclass(frozen=True)
class Workload:
    """A named set of prompts."""

    name: str
    items: tuple[Item, ...]
    digest: str
    """Of its content: results of different prompts are not to be compared."""

    @cached_property
    def passages(self) -> tuple[str, ...]:
        """Natural text of this workload, for padding; documents where there are any."""
        documents = tuple(dict.fromkeys(x.background for x in self.items if x.background))
        return documents or tuple(item.text for item in self.items)


def load(name: str) -> Workload:
    """A shipped workload by name, or a JSONL file by path; raises UsageError.

    A line is `{"prompt": TEXT}` or `{"messages": [{"role": ..., "content": ...}, ...]}`, with an
    optional `background`: text that stands before the task.
    """
    if name in SHIPPED:
        text = files(__package__).joinpath(f"workloads/{name}.jsonl").read_text(encoding="utf-8")
        return _parsed(name, text)
    path = Path(name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "not text in UTF-8"
        raise UsageError(
            f"--workload {name}: {what}",
            hint=f"name a JSONL file or one of {', '.join(SHIPPED)}",
        ) from error
    return _parsed(name, text)


def _parsed(name: str, text: str) -> Workload:
    items = tuple(_items(name, text))
    if not items:
        raise UsageError(f"--workload {name}: no prompts in it")
    return Workload(name, items, hashlib.sha256(text.encode()).hexdigest()[:16])


def _items(name: str, text: str) -> Iterator[Item]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield _item(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"--workload {name}:{number}: {error or 'not a prompt'}",
                hint='a line is {"prompt": TEXT} or {"messages": [{"role": ..., "content": ...}]}',
            ) from None


def _item(data: Any) -> Item:
    if not isinstance(data, dict):
        raise TypeError("not a JSON object")
    unknown = sorted(set(data) - {"prompt", "messages", "background"})
    if unknown:
        raise ValueError(f"unknown member {unknown[0]!r}")
    messages = data.get("messages")
    if messages is None:
        messages = [{"role": "user", "content": data.get("prompt")}]
    if not isinstance(messages, list) or not messages:
        raise ValueError("`messages` is not a list of messages")
    background = data.get("background", "")
    if not isinstance(background, str):
        raise ValueError("`background` is not text")
    return Item(tuple(map(_message, messages)), background)


def _message(data: Any) -> Message:
    match data:
        case {"role": "system" | "user" | "assistant" as role, "content": str(content)} if content:
            return {"role": role, "content": content}
    raise ValueError("a message needs a role (system, user, assistant) and text as its content")


@dataclass(frozen=True)
class Prompts:
    """Makes the conversations of a cell.

    `nonce` is new for every process that measures, so that neither a resumed run nor a second run
    meets its own prompts in a cache; it is the same for all profiles of a run, which therefore
    get the same prompts. None: no salt.
    """

    workload: Workload
    nonce: str | None
    characters_per_token: float = CHARACTERS_PER_TOKEN
    common_tokens: int = 0
    """The most tokens that each of them has in common with others, by no fault of the salt."""
    _cache: dict[int, str] = field(default_factory=dict, compare=False)

    def messages(self, cell: tuple[int, int, int], number: int) -> Sequence[Message]:
        """Conversation `number` of the cell (concurrency, context, repeat)."""
        _, context, repeat = cell
        items = self.workload.items
        position = number + repeat * 7919  # another prime: each repeat begins elsewhere
        item = items[position % len(items)]
        messages = [dict(message) for message in item.messages]
        before = (self._padding(context, position), item.background)
        _put_before(messages[-1], *before)
        _put_before(messages[0], self._salt(cell, number))
        return messages

    def bare(self) -> Sequence[Sequence[Message]]:
        """Conversations with nothing but the salt in them; one for each role that begins one.

        A template may put text of its own before a user who has no system message, and some want
        a user in any case.
        """
        roles = sorted({item.messages[0]["role"] for item in self.workload.items})
        salt = self._salt((0, 0, 0), -1)
        user = {"role": "user", "content": "?"}
        return [
            [{"role": role, "content": salt}, *([] if role == "user" else [user])] for role in roles
        ]

    def _salt(self, cell: tuple[int, int, int], number: int) -> str:
        """A line that no other prompt begins with: a cache matches from the very first token."""
        if self.nonce is None:
            return ""
        name = f"{self.nonce} {cell} {number}"
        return f"Reference {hashlib.sha256(name.encode()).hexdigest()[:20]}."

    def _padding(self, context: int, position: int) -> str:
        """About `context` tokens of the workload's own text, beginning elsewhere each time."""
        length = int(context * self.characters_per_token)
        if length == 0:
            return ""
        passages = self.workload.passages
        turned = position % len(passages)
        if turned not in self._cache:
            self._cache[turned] = "\n\n".join((*passages[turned:], *passages[:turned], ""))
        text = self._cache[turned]
        return (text * (length // len(text) + 1))[:length]


def _put_before(message: dict[str, str], *parts: str) -> None:
    message["content"] = "\n\n".join(part for part in (*parts, message["content"]) if part)
