"""What a run measures, and in what order: A B B A, so that a host that warms up favours nobody."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from opsctl.errors import UsageError

CONCURRENCIES = "1,2,5,10,30,70,100,250"
_NUMBER = re.compile(r"([0-9]+)(k?)")


@dataclass(frozen=True, order=True)
class Spot:
    """One cell that is to be measured."""

    profile: str
    concurrency: int
    context: int
    repeat: int

    @property
    def key(self) -> str:
        """The same as `results.Cell.key`."""
        return f"{self.profile}-c{self.concurrency}-k{self.context}-r{self.repeat}"


@dataclass(frozen=True)
class Visit:
    """What is measured between one start of a profile and its stop."""

    profile: str
    spots: tuple[Spot, ...]


@dataclass(frozen=True)
class Grid:
    """Every profile at every concurrency and context, `repeats` times."""

    profiles: tuple[str, ...]
    concurrencies: tuple[int, ...]
    contexts: tuple[int, ...] = (0,)
    repeats: int = 3

    def visits(self, done: Collection[str] = ()) -> tuple[Visit, ...]:
        """The runs of profiles, without what is `done` (keys).

        Every other repeat goes through profiles and cells backwards. Where a profile comes twice
        in a row (the B B of A B B A) its engine is started once: a start costs minutes.
        """
        spots = [spot for spot in self._spots() if spot.key not in done]
        return tuple(
            Visit(profile, tuple(group))
            for profile, group in groupby(spots, key=lambda spot: spot.profile)
        )

    def _spots(self) -> Iterator[Spot]:
        for repeat in range(self.repeats):
            forwards = 1 if repeat % 2 == 0 else -1
            for profile in self.profiles[::forwards]:
                for context in self.contexts[::forwards]:
                    for concurrency in self.concurrencies[::forwards]:
                        yield Spot(profile, concurrency, context, repeat)


def numbers(text: str, option: str, *, least: int) -> tuple[int, ...]:
    """Read `1,2,5` or `0,4k,16k` (k is 1024), sorted, each once; raises UsageError."""
    found = []
    for part in text.split(","):
        match = _NUMBER.fullmatch(part.strip().lower())
        if match is None or int(match[1]) < least:
            raise UsageError(
                f"{option}: {part.strip()!r} is not a whole number of at least {least}",
                hint="write numbers with commas between them, such as 1,2,5 or 0,4k,16k",
            )
        found.append(int(match[1]) * (1024 if match[2] else 1))
    return tuple(sorted(set(found)))


def distinct(profiles: Sequence[str]) -> tuple[str, ...]:
    """The names in their order; raises UsageError when one is named twice."""
    twice = sorted({name for name in profiles if profiles.count(name) > 1})
    if twice:
        raise UsageError(f"--profile {twice[0]} is given twice", hint="use --repeats instead")
    return tuple(profiles)
