"""The two profiles that are chosen between, and their speeds, quick to look up. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from opsctl.autospec.surface import Surface

_STEPS = 16
"""Steps of log context a table is made for: 6 % of context, well under 1 % of throughput."""


class Speed:
    """A surface as tables over whole numbers of streams, one for each step of log context."""

    def __init__(self, surface: Surface) -> None:
        self.surface = surface
        self._flat = len(surface.contexts) == 1
        self._most = max(point.concurrency for point in surface.points)
        self._tables: dict[int, tuple[float, ...]] = {}
        self._most_of: dict[int, float] = {}

    def table(self, context: float) -> tuple[float, ...]:
        """Return tok/s by number of streams (index 0: as for 1); the last one holds for more."""
        step = 0 if self._flat else round(math.log1p(max(context, 0.0)) * _STEPS)
        found = self._tables.get(step)
        if found is None:
            at = math.expm1(step / _STEPS)
            rates = [self.surface.tok_s(max(n, 1), at) for n in range(self._most + 1)]
            found = self._tables[step] = tuple(rates)
        return found

    def tok_s(self, streams: float, context: float) -> float:
        """Return tok/s of all streams together; a part of a stream has that part of its speed."""
        table = self.table(context)
        if streams <= 1:
            return table[1] * streams
        below = int(streams)
        if below >= len(table) - 1:
            return table[-1]
        return table[below] + (table[below + 1] - table[below]) * (streams - below)

    def capacity(self, context: float) -> float:
        """Return the most tok/s at any number of streams."""
        table = self.table(context)
        most = self._most_of.get(id(table))
        if most is None:
            most = self._most_of[id(table)] = max(table)
        return most


@dataclass(frozen=True)
class Pair:
    """The surfaces of the speculative and the baseline profile."""

    speculative: Surface
    baseline: Surface

    @cached_property
    def names(self) -> tuple[str, str]:
        """Profiles, the speculative one first."""
        return self.speculative.profile, self.baseline.profile

    def other(self, profile: str) -> str:
        """Return the profile that is not this one."""
        speculative, baseline = self.names
        return baseline if profile == speculative else speculative

    @cached_property
    def speeds(self) -> dict[str, Speed]:
        """The speeds by profile."""
        return {surface.profile: Speed(surface) for surface in (self.speculative, self.baseline)}
