"""The life of the one engine, as a pure state machine.

    starting ──ready──▶ serving ──switch──▶ draining ──idle──▶ stopping ──released──▶ starting
       │                   │  ▲                │                  │
       │ failed            │  └── cancelled ───┘                  ├──▶ backoff ──time──▶ starting
       └────▶ stopping ◀───┘ engine lost                          ├──▶ stopped (exit 0)
                                                                  └──▶ failed  (exit 69 or 4)

`step(state, event, now, rules)` returns the next state and the effects to carry out; the owner
loop carries them out and posts what came of them as the next events. An engine is named by its
generation, so that news of an engine that is gone is recognised and dropped. Times are monotonic
seconds.

Rules kept here (design: Serving, rules that hold always): a start only ever follows an observed
release (the only way into `starting` is `released`, or a fresh beginning); the gate is open only
in `serving`; a failed start returns to the profile that served before; a profile that keeps
failing is quarantined; when nothing works, back off, then give up.
"""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch

from opsctl.serve import moves
from opsctl.serve.effects import (
    CloseGate,
    Cut,
    OpenGate,
    Record,
    StopEngine,
)
from opsctl.serve.failures import Failures
from opsctl.serve.inputs import (
    Adopted,
    Begin,
    DrainAsked,
    EngineLost,
    Event,
    Idle,
    NotReleased,
    Ready,
    Released,
    StartFailed,
    StopAsked,
    SwitchAsked,
    Tick,
    UndrainAsked,
)
from opsctl.serve.moves import Step
from opsctl.serve.state import Phase, Rules, State, Switching

GAVE_UP = 69
NOT_RELEASED = 4
MAX_RELEASE_TRIES = 3


def step(state: State, event: Event, now: float, rules: Rules) -> Step:
    """The next state and what has to be done, given what happened at `now`."""
    if state.exit_code is not None or is_stale(state, event):
        return state, ()
    return _on(event, state, now, rules)


def is_stale(state: State, event: Event) -> bool:
    """Whether the event tells of an engine that is not the current one any more."""
    generation: int | None = getattr(event, "generation", None)
    return generation is not None and generation != state.generation


@singledispatch
def _on(event: object, state: State, now: float, rules: Rules) -> Step:
    raise TypeError(f"not an event: {event!r}")


@_on.register
def _begin(event: Begin, state: State, now: float, rules: Rules) -> Step:
    profile = event.profile
    if state.failures.quarantined(profile, now) and not event.explicit:
        usable = (p for p in rules.fallbacks if not state.failures.quarantined(p, now))
        profile = next(usable, profile)
    return moves.start(replace(state, profile=profile, switching=None), now, event.why)


@_on.register
def _adopted(event: Adopted, state: State, now: float, rules: Rules) -> Step:
    state = replace(state, profile=event.profile, generation=state.generation + 1)
    return moves.serve(state, now, "adopted the running engine")


@_on.register
def _ready(event: Ready, state: State, now: float, rules: Rules) -> Step:
    if state.phase is not Phase.STARTING:
        return state, ()
    switching = state.switching
    if switching is not None:
        times = (*(t for t in state.switch_times if t > now - 3600.0), now)
        state = replace(
            state,
            switching=None,
            switches=state.switches + 1,
            switch_times=times,
            cancelled_at=None,
            cancellations=0,
        )
        record = Record(
            "switched",
            source=switching.source,
            target=switching.target,
            by=switching.by,
            **switching.took(now),
        )
        after, effects = moves.serve(state, now, f"switched by {switching.by}")
        return after, (*effects, record)
    return moves.serve(state, now, "engine ready")


@_on.register
def _start_failed(event: StartFailed, state: State, now: float, rules: Rules) -> Step:
    if state.phase is not Phase.STARTING:
        return state, ()
    state = _count_failure(state, event.kind, now, rules)
    record = Record("start_failed", profile=state.profile, kind=event.kind, why=event.why)
    return moves.stop(state, now, f"{state.profile} did not start: {event.why}", True, record)


@_on.register
def _engine_lost(event: EngineLost, state: State, now: float, rules: Rules) -> Step:
    if state.phase not in {Phase.SERVING, Phase.DRAINING, Phase.DRAINED}:
        return state, ()
    served_for = now - (state.ready_at if state.ready_at is not None else now)
    failures = state.failures
    if served_for >= rules.restart.stable_after:
        failures = failures.recovered(state.profile)
    state = _count_failure(replace(state, failures=failures), event.kind, now, rules)
    record = Record("engine_lost", profile=state.profile, kind=event.kind, why=event.why)
    close = CloseGate(f"engine lost: {event.kind}", admit=moves.admits(state))
    after, effects = moves.stop(state, now, f"engine lost: {event.why}", True, record)
    return after, (close, *effects)


@_on.register
def _switch_asked(event: SwitchAsked, state: State, now: float, rules: Rules) -> Step:
    why = refusal(state, event.profile)
    if why is not None:
        refused = Record("switch_refused", profile=event.profile, by=event.by, why=why)
        return state, (refused,)
    failures = state.failures
    if event.by == "operator":
        failures = failures.pardoned(event.profile)
    state = replace(state, failures=failures)
    switching = Switching(state.profile, event.profile, event.by, now)
    if state.phase is Phase.DRAINING and event.profile == state.profile:
        return _call_off(state, event.by, now)
    record = Record(
        "switch_begun", source=state.profile, target=event.profile, by=event.by, why=event.why
    )
    if state.phase is Phase.SERVING:
        return moves.drain(replace(state, switching=switching), now, rules, record)
    if state.phase is Phase.DRAINING and state.switching is not None:
        return replace(state, switching=replace(state.switching, target=event.profile)), (record,)
    if state.phase is Phase.BACKOFF:
        after, effects = moves.start(
            replace(state, profile=event.profile, switching=None), now, event.why
        )
        return after, (record, *effects)
    switching = replace(switching, drained=now)
    state = replace(state, switching=switching)
    return moves.stop(state, now, "another profile was asked for", False, record)


def refusal(state: State, profile: str) -> str | None:
    """Why a switch to `profile` cannot be begun now; None when it can."""
    if state.stopping_for_good or state.phase in {Phase.STOPPED, Phase.FAILED}:
        return "opsctl is stopping"
    if state.drain_asked:
        return "drained by the operator; end the drain first (opsctl drain --off)"
    if state.phase is Phase.STOPPING:
        return "the last engine is being stopped; try again when the next one starts"
    if state.phase in {Phase.SERVING, Phase.STARTING} and state.profile == profile:
        return f"{profile} is already {state.phase}"
    return None


@_on.register
def _idle(event: Idle, state: State, now: float, rules: Rules) -> Step:
    if state.phase is not Phase.DRAINING:
        return state, ()
    if state.drain_asked and not state.stopping_for_good:
        return moves.enter(state, Phase.DRAINED, now, "drained: nothing in flight"), (
            Record("drained", profile=state.profile),
        )
    return moves.stop(_mark_drained(state, now), now, "drained", False)


@_on.register
def _released(event: Released, state: State, now: float, rules: Rules) -> Step:
    if state.phase is not Phase.STOPPING:
        return state, ()
    state = replace(state, release_tries=0, ready_at=None)
    if state.stopping_for_good:
        return moves.end(state, Phase.STOPPED, now, "stopped", 0)
    if state.after_failure and state.failures.exhausted(rules.restart, now):
        why = f"{rules.restart.budget} failures within {rules.restart.budget_window:g} s"
        # Whoever starts opsctl again has looked into it: that start gets a clean slate.
        state = replace(state, failures=Failures())
        return moves.end(state, Phase.FAILED, now, f"gave up: {why}", GAVE_UP)
    switching = state.switching
    if switching is not None and switching.target != state.profile:
        switching = replace(switching, released=now)
        state = replace(state, switching=switching, profile=switching.target)
        return moves.start(state, now, "next profile of the switch")
    return _recover(state, now, rules)


@_on.register
def _not_released(event: NotReleased, state: State, now: float, rules: Rules) -> Step:
    if state.phase is not Phase.STOPPING:
        return state, ()
    tries = state.release_tries + 1
    record = Record("not_released", why=event.why, tries=tries)
    if tries >= MAX_RELEASE_TRIES:
        why = f"the stopped engine is not released: {event.why}"
        after, effects = moves.end(state, Phase.FAILED, now, why, NOT_RELEASED)
        return after, (record, *effects)
    state = replace(state, release_tries=tries, reason=f"waiting for release: {event.why}")
    return state, (record, StopEngine(state.generation, force=True))


@_on.register
def _stop_asked(event: StopAsked, state: State, now: float, rules: Rules) -> Step:
    if state.stopping_for_good:
        return replace(state, until=now if state.phase is Phase.DRAINING else None), ()
    state = replace(state, stopping_for_good=True, switching=None)
    after, effects = _wind_down(state, now, rules)
    record = Record("stop_asked", by=event.by)
    return after, (record, CloseGate("stopping", admit=False), *effects)


def _wind_down(state: State, now: float, rules: Rules) -> Step:
    match state.phase:
        case Phase.SERVING:
            return moves.drain(state, now, rules)
        case Phase.DRAINING:
            return replace(state, until=now + rules.drain(state.profile)), ()
        case Phase.DRAINED | Phase.STARTING:
            return moves.stop(state, now, "stop asked", False)
        case Phase.BACKOFF:
            return moves.end(state, Phase.STOPPED, now, "stopped", 0)
        case _:
            return state, ()


@_on.register
def _drain_asked(event: DrainAsked, state: State, now: float, rules: Rules) -> Step:
    if state.phase is not Phase.SERVING:
        return state, ()
    return moves.drain(replace(state, drain_asked=True), now, rules, Record("drain_asked"))


@_on.register
def _undrain_asked(event: UndrainAsked, state: State, now: float, rules: Rules) -> Step:
    if not state.drain_asked or state.phase not in {Phase.DRAINING, Phase.DRAINED}:
        return state, ()
    state = moves.enter(replace(state, drain_asked=False), Phase.SERVING, now, "drain ended")
    return state, (Record("drain_ended"), OpenGate(state.generation))


@_on.register
def _tick(event: Tick, state: State, now: float, rules: Rules) -> Step:
    if state.until is None or now < state.until:
        return state, ()
    if state.phase is Phase.BACKOFF:
        return moves.start(state, now, "backoff is over")
    if state.phase is Phase.DRAINING:
        return _drain_expired(state, now, rules)
    return state, ()


def _drain_expired(state: State, now: float, rules: Rules) -> Step:
    why = f"requests were still running after {now - state.since:.0f} s"
    if state.stopping_for_good or (state.target is not None and rules.cut_on_drain_timeout):
        cut = Cut(f"{why} of draining")
        after, effects = moves.stop(_mark_drained(state, now), now, why, False)
        return after, (cut, *effects)
    if state.drain_asked:
        return replace(state, until=None, reason=f"draining: {why}"), ()
    record = Record("switch_cancelled", target=state.target, why=why)
    state = replace(state, switching=None, cancelled_at=now, cancellations=state.cancellations + 1)
    state = moves.enter(state, Phase.SERVING, now, f"switch cancelled: {why}")
    return state, (record, OpenGate(state.generation))


def _mark_drained(state: State, now: float) -> State:
    if state.switching is None:
        return state
    return replace(state, switching=replace(state.switching, drained=now))


def _call_off(state: State, by: str, now: float) -> Step:
    record = Record("switch_called_off", target=state.target, by=by)
    state = moves.enter(replace(state, switching=None), Phase.SERVING, now, "switch called off")
    return state, (record, OpenGate(state.generation))


def _recover(state: State, now: float, rules: Rules) -> Step:
    """Choose what to start after a failure, and when."""
    failed = state.profile
    choices: tuple[str | None, ...]
    if state.target is None:
        choices = (failed, state.last_good, *rules.fallbacks)
    else:
        choices = (state.last_good, *rules.fallbacks, failed)
    usable = [p for p in choices if p and not state.failures.quarantined(p, now)]
    state = replace(state, switching=None, profile=usable[0] if usable else failed)
    records: tuple[Record, ...] = ()
    if state.profile != failed:
        records = (Record("fell_back", source=failed, target=state.profile),)
    wait = state.failures.backoff(state.profile, rules.restart)
    if wait == 0.0:
        after, effects = moves.start(state, now, f"fell back from {failed}")
        return after, (*records, *effects)
    state = moves.enter(state, Phase.BACKOFF, now, f"starting {state.profile} again in {wait:g} s")
    backoff = Record("backoff", profile=state.profile, seconds=wait)
    return replace(state, until=now + wait), (*records, backoff)


def _count_failure(state: State, kind: str, now: float, rules: Rules) -> State:
    switch_failed = state.switching is not None and state.switching.target == state.profile
    failures = state.failures.counted(
        state.profile, kind, rules.restart, now, budgeted=not switch_failed
    )
    return replace(state, failures=failures, after_failure=True)
