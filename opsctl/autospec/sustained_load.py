"""The plain policy: high and low water marks, each to be held for a time. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.autospec.load import LoadSample
from opsctl.autospec.policy import Decision

MAX_GAP = 5.0
"""Seconds between samples after which the time between them counts as unknown."""


@dataclass
class Mark:
    """One water mark: a level of demand and the seconds it must be held."""

    level: float
    held_for: float
    below: bool
    since: float | None = None
    """When the demand passed it (monotonic seconds); None while it has not."""

    def see(self, time: float, demand: int | None, gap: bool) -> None:
        """Take in the demand at `time`; `gap`: too long after the last one."""
        if demand is None or not self._passed(demand):
            self.since = None
        elif self.since is None or gap:
            self.since = time

    def _passed(self, demand: int) -> bool:
        return demand <= self.level if self.below else demand >= self.level


class SustainedLoad:
    """High and low water marks on running + queued (+ held), each to be held for a time.

    A spike shorter than `high_for` and a gap shorter than `low_for` (seconds) change nothing.
    A stall (nothing running, requests queued) counts as load, never as quiet.
    """

    name = "sustained_load"

    def __init__(
        self,
        speculative: str,
        baseline: str,
        *,
        high: float,
        high_for: float,
        low: float,
        low_for: float,
    ) -> None:
        self._speculative, self._baseline = speculative, baseline
        self._high = Mark(high, high_for, below=False)
        self._low = Mark(low, low_for, below=True)
        self._last: LoadSample | None = None

    def see(self, sample: LoadSample, serving: str | None) -> None:
        """See `Policy.see`."""
        gap = self._last is None or sample.time - self._last.time > MAX_GAP
        for mark in (self._high, self._low):
            mark.see(sample.time, sample.demand, gap)
        self._last = sample

    def decide(self, serving: str, now: float) -> Decision:
        """See `Policy.decide`."""
        demand = None if self._last is None else self._last.demand
        if self._last is None or demand is None or now - self._last.time > MAX_GAP:
            return Decision("stay", serving, "the load is unknown, and unknown is not idle")
        if serving == self._baseline:
            return _compare(demand, now, self._low, serving, self._speculative)
        return _compare(demand, now, self._high, serving, self._baseline)


def _compare(demand: int, now: float, mark: Mark, serving: str, other: str) -> Decision:
    held = 0.0 if mark.since is None else now - mark.since
    side = "at or below" if mark.below else "at or above"
    numbers = {
        "demand": demand,
        "mark": mark.level,
        "held_s": round(held, 1),
        "needed_s": mark.held_for,
    }
    load = f"{demand} requests running or queued"
    change = f"{side} {mark.level:g} for {mark.held_for:g} s: {other}"
    if mark.since is not None and held >= mark.held_for:
        reason = f"{load}, {side} {mark.level:g} for {held:.0f} s (needs {mark.held_for:g} s)"
        return Decision("switch", other, reason, numbers)
    if mark.since is not None and held > 0:
        reason = f"{load}, {side} {mark.level:g} for {held:.0f} of {mark.held_for:g} s"
    else:
        reason = f"{load}, not {side} {mark.level:g}"
    return Decision("stay", serving, reason, numbers, change)
