"""Failures remembered: backoff, quarantine and the budget after which opsctl gives up. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

PERMANENT = frozenset({"bad_flags", "bad_model"})
"""Kinds of failure that a second try cannot cure: quarantined at once."""


@dataclass(frozen=True)
class RestartRules:
    """Limits after crashes and failed starts; times in seconds."""

    backoff_first: float = 1.0
    backoff_max: float = 60.0
    quarantine_after: int = 2
    quarantine_for: float = 3600.0
    budget: int = 6
    budget_window: float = 900.0
    stable_after: float = 60.0
    """A profile that served this long has recovered from its earlier failures."""


@dataclass(frozen=True)
class Failures:
    """What has failed lately; times are monotonic seconds."""

    times: tuple[float, ...] = ()
    streaks: Mapping[str, int] = field(default_factory=dict)
    """Failures in a row per profile."""
    quarantine: Mapping[str, float] = field(default_factory=dict)
    """Until when a profile is not started unasked."""

    def counted(
        self, profile: str, kind: str, rules: RestartRules, now: float, *, budgeted: bool = True
    ) -> Failures:
        """With one more failure of `profile` at `now`; `kind` is a word of `PERMANENT` or not.

        A target of a switch that does not start is not `budgeted`: the profile that served
        before serves on, and nothing speaks for giving up.
        """
        streak = self.streaks.get(profile, 0) + 1
        quarantine = dict(self.quarantine)
        if streak >= rules.quarantine_after or kind in PERMANENT:
            quarantine[profile] = now + rules.quarantine_for
        times = tuple(t for t in self.times if t > now - rules.budget_window)
        if budgeted:
            times = (*times, now)
        return Failures(times, {**self.streaks, profile: streak}, quarantine)

    def recovered(self, profile: str) -> Failures:
        """With the streak of `profile` forgotten."""
        streaks = {name: count for name, count in self.streaks.items() if name != profile}
        return replace(self, streaks=streaks)

    def pardoned(self, profile: str) -> Failures:
        """With `profile` out of quarantine, because an operator asked for it by name."""
        quarantine = {name: end for name, end in self.quarantine.items() if name != profile}
        return replace(self.recovered(profile), quarantine=quarantine)

    def quarantined(self, profile: str, now: float) -> bool:
        """Whether `profile` must not be started unasked at `now`."""
        return now < self.quarantine.get(profile, float("-inf"))

    def exhausted(self, rules: RestartRules, now: float) -> bool:
        """Whether the budget of failures within the window is used up."""
        return len([t for t in self.times if t > now - rules.budget_window]) >= rules.budget

    def backoff(self, profile: str, rules: RestartRules) -> float:
        """Seconds to wait before `profile` is started; 0 when it has not failed lately."""
        streak = self.streaks.get(profile, 0)
        if streak == 0:
            return 0.0
        return float(min(rules.backoff_first * 2 ** (min(streak, 30) - 1), rules.backoff_max))
