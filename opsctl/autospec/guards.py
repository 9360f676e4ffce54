"""Guards: what always holds around any policy. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

HOUR = 3600.0
LEAST_COOLDOWN = 5.0


@dataclass(frozen=True)
class GuardRules:
    """Limits on automatic switches, in seconds; `dwell` from ready."""

    dwell: float
    switches_per_hour: int
    observe: bool = False
    cooldown: float = 0.0
    """After a switch that was cancelled; the dwell, when that is more."""


@dataclass(frozen=True)
class Situation:
    """What the guards look at; times are monotonic seconds."""

    serving: bool
    ready_at: float | None
    switch_times: Sequence[float]
    quarantine: Mapping[str, float]
    paused: bool
    cancelled_at: float | None = None
    """When the last switch was cancelled by its drain deadline, `cancellations` times in a row."""
    cancellations: int = 0


@dataclass(frozen=True)
class Veto:
    """Why an automatic switch may not happen now; `until` when that passes by itself."""

    why: str
    until: float | None = None


def vetoes(rules: GuardRules, situation: Situation, target: str, now: float) -> tuple[Veto, ...]:
    """Everything that forbids an automatic switch to `target` at `now`; empty means allowed."""
    found: list[Veto] = []
    if rules.observe:
        found.append(Veto("observe mode: decisions are recorded, not acted on"))
    if situation.paused:
        found.append(Veto("automation is paused (opsctl resume)"))
    if not situation.serving or situation.ready_at is None:
        found.append(Veto("no requests are let through now"))
    elif now < situation.ready_at + rules.dwell:
        left = situation.ready_at + rules.dwell - now
        found.append(
            Veto(f"dwell: {left:.0f} s left of {rules.dwell:g} s", situation.ready_at + rules.dwell)
        )
    found.extend(_cooldown(rules, situation, now))
    recent = sorted(time for time in situation.switch_times if time > now - HOUR)
    if len(recent) >= rules.switches_per_hour:
        until = recent[-rules.switches_per_hour] + HOUR if rules.switches_per_hour else None
        found.append(
            Veto(f"switch budget: {len(recent)} of {rules.switches_per_hour} this hour", until)
        )
    until = situation.quarantine.get(target)
    if until is not None and now < until:
        found.append(Veto(f"{target} is in quarantine after failures", until))
    return tuple(found)


def _cooldown(rules: GuardRules, situation: Situation, now: float) -> tuple[Veto, ...]:
    """Each cancelled drain kept clients waiting for nothing: try again ever more seldom."""
    if situation.cancelled_at is None:
        return ()
    pause = min(
        max(rules.dwell, rules.cooldown, LEAST_COOLDOWN) * 2 ** min(situation.cancellations, 10),
        HOUR,
    )
    until = situation.cancelled_at + pause
    if now >= until:
        return ()
    times = f"{situation.cancellations} in a row"
    return (Veto(f"cooldown: {until - now:.0f} s left after cancelled switches ({times})", until),)
