"""Policies: pure functions from the history of load to a decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from opsctl.autospec.load import LoadSample


@dataclass(frozen=True)
class Decision:
    """What a policy wants, in one plain sentence and in numbers."""

    action: Literal["stay", "switch"]
    profile: str
    reason: str
    numbers: Mapping[str, float | int | None] = field(default_factory=dict)


class Policy(Protocol):
    """Decides which profile should serve."""

    @property
    def name(self) -> str:
        """Name as the configuration writes it."""
        ...

    @property
    def window(self) -> float:
        """Seconds of history the policy looks at."""
        ...

    def decide(self, history: Sequence[LoadSample], serving: str, now: float) -> Decision:
        """Decide for `now` (monotonic seconds) from samples in time order, newest last."""
        ...


@dataclass(frozen=True)
class SustainedLoad:
    """High and low water marks on running + queued (+ held), each to be held for a time.

    A spike shorter than `high_for` and a gap shorter than `low_for` (seconds) change nothing.
    A stall (nothing running, requests queued) counts as load, never as quiet.
    """

    speculative: str
    baseline: str
    high: float
    high_for: float
    low: float
    low_for: float
    name: str = "sustained_load"

    @property
    def window(self) -> float:
        """Seconds of history needed: the longer of the two holding times, and a little more."""
        return max(self.high_for, self.low_for) + 5.0

    def decide(self, history: Sequence[LoadSample], serving: str, now: float) -> Decision:
        """See `Policy.decide`."""
        demand = history[-1].demand if history else None
        if demand is None:
            return Decision("stay", serving, "the load is unknown, and unknown is not idle")
        if serving == self.baseline:
            return self._compare(history, now, Mark(self.low, self.low_for, below=True), serving)
        return self._compare(history, now, Mark(self.high, self.high_for, below=False), serving)

    def _compare(
        self, history: Sequence[LoadSample], now: float, mark: Mark, serving: str
    ) -> Decision:
        demand = history[-1].demand
        held = _held(history, now, mark.passed)
        side = "at or below" if mark.below else "at or above"
        numbers = {
            "demand": demand,
            "mark": mark.level,
            "held_s": round(held, 1),
            "needed_s": mark.held_for,
        }
        load = f"{demand} requests running or queued"
        if held >= mark.held_for:
            other = self.speculative if mark.below else self.baseline
            reason = f"{load}, {side} {mark.level:g} for {held:.0f} s (needs {mark.held_for:g} s)"
            return Decision("switch", other, reason, numbers)
        if held > 0:
            reason = f"{load}, {side} {mark.level:g} for {held:.0f} of {mark.held_for:g} s"
        else:
            reason = f"{load}, not {side} {mark.level:g}"
        return Decision("stay", serving, reason, numbers)


@dataclass(frozen=True)
class Mark:
    """One water mark: a level of demand and the seconds it must be held."""

    level: float
    held_for: float
    below: bool

    def passed(self, demand: int) -> bool:
        """Whether `demand` is on the far side of the mark."""
        return demand <= self.level if self.below else demand >= self.level


MAX_GAP = 5.0
"""Seconds between samples after which the time between them counts as unknown."""


def _held(history: Sequence[LoadSample], now: float, passed: Callable[[int], bool]) -> float:
    """Seconds up to `now` for which every sample is known and passes, without a gap."""
    start = now
    for sample in reversed(history):
        demand = sample.demand
        if demand is None or not passed(demand) or start - sample.time > MAX_GAP:
            break
        start = sample.time
    return now - start
