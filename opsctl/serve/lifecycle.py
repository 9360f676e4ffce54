"""The life of the one engine, as a pure state machine.

    starting ──ready──▶ serving ──switch──▶ draining ──idle──▶ stopping ──released──▶ starting
       │                   │  ▲                │                  │
       │ failed            │  └── cancelled ───┘                  ├──▶ backoff ──time──▶ starting
       └────▶ stopping ◀───┘ engine lost                          ├──▶ stopped (exit 0)
                                                                  └──▶ failed  (exit 69 or 4)

A gated restart goes through `preparing` first: the next engine comes up beside the one that serves
and waits at its own gate, without GPU memory, until the other's release has been observed. Is the
switch urgent, the gate closes when the preparation begins, not when it ends.

`step(state, event, now, rules)` returns the next state and the effects to carry out; the owner
loop carries them out and posts what came of them as the next events. An engine is named by its
generation, so that news of an engine that is gone is recognised and dropped. Times are monotonic
seconds.

Rules kept here (design: Serving, rules that hold always): a start only ever follows an observed
release (the only way into `starting` is `released`, or a fresh beginning); the gate is open only
in `serving` and in a `preparing` without urgency; a failed start returns to the profile that
served before; a profile that keeps failing is quarantined; when nothing works, back off, then give
up.
"""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch

from opsctl.serve import moves
from opsctl.serve.effects import (
    CloseGate,
    Cut,
    DropStandby,
    Effect,
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
    StandbyFailed,
    StandbyReady,
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
    state = moves.count_failure(state, event.kind, now, rules)
    record = Record("start_failed", profile=state.profile, kind=event.kind, why=event.why)
    return moves.stop(state, now, f"{state.profile} did not start: {event.why}", True, record)


@_on.register
def _engine_lost(event: EngineLost, state: State, now: float, rules: Rules) -> Step:
    if state.phase not in {Phase.SERVING, Phase.PREPARING, Phase.DRAINING, Phase.DRAINED}:
        return state, ()
    dropped: tuple[Effect, ...] = ()
    if state.phase is Phase.PREPARING:  # the standby is not there yet: recover without it
        state, dropped = moves.without_switch(state)
    served_for = now - (state.ready_at if state.ready_at is not None else now)
    failures = state.failures
    if served_for >= rules.restart.stable_after:
        failures = failures.recovered(state.profile)
    state = moves.count_failure(replace(state, failures=failures), event.kind, now, rules)
    record = Record("engine_lost", profile=state.profile, kind=event.kind, why=event.why)
    close = CloseGate(f"engine lost: {event.kind}", admit=moves.admits(state))
    after, effects = moves.stop(state, now, f"engine lost: {event.why}", True, record)
    return after, (*dropped, close, *effects)


@_on.register
def _switch_asked(event: SwitchAsked, state: State, now: float, rules: Rules) -> Step:
    why = refusal(state, event.profile)
    if why is not None:
        refused = Record("switch_refused", profile=event.profile, by=event.by, why=why)
        return state, (refused,)
    if event.by == "operator":
        state = replace(state, failures=state.failures.pardoned(event.profile))
    if state.phase in {Phase.PREPARING, Phase.DRAINING} and event.profile == state.profile:
        return _call_off(state, event.by, now)
    record = Record(
        "switch_begun", source=state.profile, target=event.profile, by=event.by, why=event.why
    )
    if state.phase is Phase.BACKOFF:
        state = replace(state, profile=event.profile, switching=None)
        after, effects = moves.start(state, now, event.why)
        return after, (record, *effects)
    state, dropped = moves.without_switch(state)
    switching = Switching(state.profile, event.profile, event.by, now, urgent=event.urgent)
    after, effects = _begin_switch(replace(state, switching=switching), now, rules, record)
    return after, (*dropped, *effects)


def _begin_switch(state: State, now: float, rules: Rules, record: Record) -> Step:
    target = state.target or ""
    match state.phase:
        case Phase.SERVING if rules.gated(target) and target not in state.ungated:
            return moves.prepare(state, now, record)
        case Phase.SERVING:
            return moves.drain(state, now, rules, record)
        case Phase.DRAINING:  # towards another profile now
            return state, (record,)
        case _:
            state = _mark_drained(state, now)
            return moves.stop(state, now, "another profile was asked for", False, record)


def refusal(state: State, profile: str) -> str | None:
    """Why a switch to `profile` cannot be begun now; None when it can."""
    if state.stopping_for_good or state.phase in {Phase.STOPPED, Phase.FAILED}:
        begun = state.stopping_for_good or state.exit_code is not None
        return "opsctl is stopping" if begun else f"opsctl is starting: {state.reason}"
    if state.drain_asked:
        return "drained by the operator; end the drain first (opsctl drain --off)"
    if state.phase is Phase.STOPPING:
        return "the last engine is being stopped; try again when the next one starts"
    if state.phase in {Phase.SERVING, Phase.STARTING} and state.profile == profile:
        return f"{profile} is already {state.phase}"
    if state.phase is Phase.PREPARING and state.profile != profile:
        return (
            f"a switch to {state.target} is being prepared; call it off first (opsctl switch "
            f"{state.profile})"
        )
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
        if switching.standby is not None:
            return moves.activate(state, switching.standby, now)
        return moves.start(state, now, "next profile of the switch")
    return moves.recover(state, now, rules)


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
    state, dropped = moves.without_switch(replace(state, stopping_for_good=True))
    after, effects = _wind_down(state, now, rules)
    record = Record("stop_asked", by=event.by)
    return after, (record, *dropped, CloseGate("stopping", admit=False), *effects)


def _wind_down(state: State, now: float, rules: Rules) -> Step:
    match state.phase:
        case Phase.SERVING | Phase.PREPARING:
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
    if state.phase not in {Phase.SERVING, Phase.PREPARING}:
        return state, ()
    state, dropped = moves.without_switch(state)
    after, effects = moves.drain(
        replace(state, drain_asked=True), now, rules, Record("drain_asked")
    )
    return after, (*dropped, *effects)


@_on.register
def _undrain_asked(event: UndrainAsked, state: State, now: float, rules: Rules) -> Step:
    if not state.drain_asked or state.stopping_for_good:
        return state, ()
    state = replace(state, drain_asked=False)
    if state.phase not in {Phase.DRAINING, Phase.DRAINED}:  # no engine yet: requests may wait
        return state, (Record("drain_ended"), CloseGate(state.reason, admit=True))
    state = moves.enter(state, Phase.SERVING, now, "drain ended")
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
    after, effects = _cancel(state, why, now)
    return after, (*effects, OpenGate(state.generation))


def _cancel(state: State, why: str, now: float) -> Step:
    """Serve on as before; the watchdog will not ask again at once."""
    record = Record("switch_cancelled", target=state.target, why=why)
    state, dropped = moves.without_switch(state)
    state = replace(state, cancelled_at=now, cancellations=state.cancellations + 1)
    state = moves.enter(state, Phase.SERVING, now, f"switch cancelled: {why}")
    return state, (*dropped, record)


@_on.register
def _standby_ready(event: StandbyReady, state: State, now: float, rules: Rules) -> Step:
    switching = state.switching
    if switching is None or switching.standby != event.standby:
        return state, ()
    if state.phase is not Phase.PREPARING:
        return state, ()
    switching = replace(switching, prepared_at=now)
    record = Record("standby_ready", profile=switching.target)
    return moves.drain(replace(state, switching=switching), now, rules, record)


@_on.register
def _standby_failed(event: StandbyFailed, state: State, now: float, rules: Rules) -> Step:
    """Before anything was given up: serve on. Later: the switch goes on as a plain restart."""
    switching = state.switching
    if switching is None or switching.standby != event.standby:
        return state, ()
    record = Record("standby_failed", profile=switching.target, kind=event.kind, why=event.why)
    drop = DropStandby(event.standby)
    plain = replace(state, switching=replace(switching, standby=None))
    if event.kind == "unsupported" and state.phase is Phase.PREPARING:
        plain = replace(plain, ungated=plain.ungated | {switching.target})
        return moves.drain(plain, now, rules, drop, record)
    if state.phase is not Phase.PREPARING:
        return plain, (drop, record)
    failures = state.failures.counted(
        switching.target, event.kind, rules.restart, now, budgeted=False
    )
    after, effects = _cancel(
        replace(plain, failures=failures), f"{switching.target} did not start: {event.why}", now
    )
    opened = () if state.gate_open else (OpenGate(state.generation),)
    return after, (drop, record, *effects, *opened)


def _mark_drained(state: State, now: float) -> State:
    if state.switching is None:
        return state
    return replace(state, switching=replace(state.switching, drained=now))


def _call_off(state: State, by: str, now: float) -> Step:
    record = Record("switch_called_off", target=state.target, by=by)
    gate_is_open = state.gate_open
    state, dropped = moves.without_switch(state)
    state = moves.enter(state, Phase.SERVING, now, "switch called off")
    opened: tuple[Effect, ...] = () if gate_is_open else (OpenGate(state.generation),)
    return state, (*dropped, record, *opened)
