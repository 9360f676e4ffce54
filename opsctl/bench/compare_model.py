"""What a comparison says, as plain values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from opsctl.bench.results import Cell, Profile, Result

Verdict = Literal["better", "worse", "no significant difference", "unknown"]
Kind = Literal[
    "always", "never", "at", "from", "mixed", "undecided", "no significant difference", "unknown"
]


@dataclass(frozen=True)
class Source:
    """A result and the name it is known by, such as its folder's."""

    name: str
    result: Result


@dataclass(frozen=True)
class LeftOut:
    """A measurement that does not count, and why."""

    source: str
    profile: str
    concurrency: int
    context: int
    repeat: int
    reason: str

    def __str__(self) -> str:
        where = f"concurrency {self.concurrency}, context {self.context}, repeat {self.repeat}"
        return f"{self.source}: {self.profile}, {where}: {self.reason}"


Place = tuple[int, int]
"""Concurrency and context."""


@dataclass(frozen=True)
class Series:
    """The valid measurements of one profile, made in one environment with one workload."""

    name: str
    """The profile's name; with the result's behind it where two profiles share one."""
    profile: Profile
    workload: str
    environment: Mapping[str, Any]
    sources: tuple[str, ...]
    cells: Mapping[Place, tuple[Cell, ...]]

    def throughputs(self, place: Place) -> tuple[float, ...]:
        """Return tok/s of each repeat there."""
        return tuple(cell.throughput_tok_s for cell in self.cells.get(place, ()))


@dataclass(frozen=True)
class CellComparison:
    """One profile against the baseline at one place. `low` and `high` bound the ratio (95 %)."""

    concurrency: int
    context: int
    baseline_tok_s: float
    tok_s: float
    baseline_repeats: int
    repeats: int
    ratio: float
    low: float | None
    high: float | None
    verdict: Verdict
    why: str = ""
    """Why it is unknown."""
    draws: tuple[float, ...] = field(default=(), repr=False)
    """Of the logarithm of the ratio."""


@dataclass(frozen=True)
class Crossover:
    """Where the profile stops (`at`) or begins (`from`) to be the faster one, at one context.

    `undecided`: slower somewhere, and where it is not, a gain is not shown and not excluded.
    `concurrency` is read off between the measured cells (straight over its logarithm), `low` and
    `high` bound it; None is outside of what was measured. `wins` and `loses` are the concurrencies
    that were measured to be better and worse.
    """

    kind: Kind
    words: str
    concurrency: float | None = None
    low: float | None = None
    high: float | None = None
    wins: tuple[int, ...] = ()
    loses: tuple[int, ...] = ()


@dataclass(frozen=True)
class Pair:
    """One profile against the baseline, with one workload."""

    profile: Series
    baseline: Series
    cells: tuple[CellComparison, ...]
    crossovers: Mapping[int, Crossover]
    """By context."""
    finding: str

    @property
    def workload(self) -> str:
        """Of both."""
        return self.profile.workload


@dataclass(frozen=True)
class Comparison:
    """Everything `opsctl bench compare` says."""

    pairs: tuple[Pair, ...]
    series: tuple[Series, ...]
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...] = ()
    """What a reader should know before believing it."""
