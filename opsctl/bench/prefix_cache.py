"""What the prefix cache answered, apart from what it answers of any prompt there is.

Two prompts that share no word of a person still begin alike: a chat template puts its own tokens
before both, and the first digits of two salts may be the same. Of a short prompt that is soon more
than 5 %. So a prompt with nothing in it but the salt is sent once: it has at least as many tokens
as salted prompts can have in common, and only tokens beyond that are held against a cell. A cache
that keeps whole pages finds less, never more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opsctl.bench.counters import Counters
from opsctl.bench.traffic import Outcome


@dataclass(frozen=True)
class Hits:
    """Shares of the prompts' tokens, 0 to 1; None where nobody tells."""

    share: float | None = None
    """Of all their tokens."""
    own: float | None = None
    """Of those tokens that the prompts need not have in common."""
    by: str | None = None
    """Whose word it is: usage, counters or loads."""


def hits(outcomes: Sequence[Outcome], counted: Counters, uncached: int | None, common: int) -> Hits:
    """Tell it for the requests of a cell, of which `common` tokens each may be alike.

    `usage` tells of each request. Counters and the load tell of all together, so there a request
    with less in common than it may have makes up for a few tokens of another.
    """
    prompts = [outcome.prompt_tokens for outcome in outcomes]
    asked = sum(prompts)
    own = sum(max(0, tokens - common) for tokens in prompts)
    said = [outcome.cached_tokens for outcome in outcomes if outcome.cached_tokens is not None]
    if not asked:
        return Hits()
    if said:
        beyond = sum(max(0, tokens - common) for tokens in said)
        return Hits(sum(said) / asked, _share(beyond, own), "usage")
    if counted.cached_tokens is not None and counted.prompt_tokens:
        share, by = counted.cached_tokens / counted.prompt_tokens, "counters"
    elif uncached is not None:
        share, by = max(0.0, 1.0 - uncached / asked), "loads"
    else:
        return Hits()
    return Hits(share, _share(share * asked - (asked - own), own), by)


def _share(beyond: float, own: int) -> float | None:
    return max(0.0, beyond) / own if own else None
