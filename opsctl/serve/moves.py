"""The moves of the lifecycle that several events make: one phase to the next, and its effects."""

from __future__ import annotations

from dataclasses import replace

from opsctl.serve.effects import (
    Activate,
    AwaitIdle,
    CloseGate,
    DropStandby,
    Effect,
    Exit,
    OpenGate,
    Prepare,
    Record,
    Start,
    StopEngine,
)
from opsctl.serve.state import Phase, Rules, State

Step = tuple[State, tuple[Effect, ...]]


def start(state: State, now: float, why: str) -> Step:
    """Start an engine of `state.profile`, the next generation."""
    state = replace(state, generation=state.generation + 1, ready_at=None, after_failure=False)
    state = enter(state, Phase.STARTING, now, why)
    record = Record("starting", profile=state.profile, generation=state.generation, why=why)
    return state, (record, Start(state.profile, state.generation))


def prepare(state: State, now: float, record: Record) -> Step:
    """Bring the next engine up to its gate; this one serves on, or (urgent) only finishes."""
    switching = state.switching
    assert switching is not None  # noqa: S101 - a switch is what is prepared
    number = state.standbys + 1
    state = replace(state, standbys=number, switching=replace(switching, standby=number))
    effects: tuple[Effect, ...] = (record, Prepare(switching.target, number))
    meanwhile = "serves"
    if switching.urgent:
        meanwhile = "finishes what it has"
        effects = (record, CloseGate("switching", admit=admits(state)), effects[1])
    why = f"{switching.target} comes up beside, {state.profile} {meanwhile}"
    return enter(state, Phase.PREPARING, now, why), effects


def activate(state: State, standby: int, now: float) -> Step:
    """Let the standby become the engine of `state.profile`, the next generation."""
    assert state.switching is not None  # noqa: S101
    state = replace(
        state,
        generation=state.generation + 1,
        ready_at=None,
        after_failure=False,
        switching=replace(state.switching, standby=None),
    )
    state = enter(state, Phase.STARTING, now, "the prepared engine may take the GPUs")
    why = state.reason
    record = Record("starting", profile=state.profile, generation=state.generation, why=why)
    return state, (record, Activate(state.profile, state.generation, standby))


def without_switch(state: State) -> Step:
    """Give the switch under way up; its standby is ended."""
    effects: tuple[Effect, ...] = ()
    if state.switching is not None and state.switching.standby is not None:
        effects = (DropStandby(state.switching.standby),)
    return replace(state, switching=None), effects


def serve(state: State, now: float, why: str) -> Step:
    """The engine is ready: open the gate, unless the operator has drained it."""
    state = replace(state, ready_at=now, last_good=state.profile)
    if state.drain_asked:
        state = enter(state, Phase.DRAINED, now, f"{why}, drained by the operator")
        return state, (Record("drained", profile=state.profile),)
    state = enter(state, Phase.SERVING, now, why)
    record = Record("serving", profile=state.profile, generation=state.generation, why=why)
    return state, (OpenGate(state.generation), record)


def drain(state: State, now: float, rules: Rules, *records: Effect) -> Step:
    """Close the gate and let requests in flight finish."""
    state = enter(state, Phase.DRAINING, now, "letting requests in flight finish")
    state = replace(state, until=now + rules.drain(state.profile))
    close = CloseGate("switching" if state.target else "draining", admit=admits(state))
    return state, (*records, close, AwaitIdle(state.generation))


def stop(state: State, now: float, why: str, force: bool, *records: Record) -> Step:
    """End the engine and observe its release."""
    state = replace(enter(state, Phase.STOPPING, now, why), release_tries=0)
    return state, (*records, StopEngine(state.generation, force=force))


def end(state: State, phase: Phase, now: float, why: str, code: int) -> Step:
    """End serving with an exit code."""
    state, dropped = without_switch(state)
    state = replace(enter(state, phase, now, why), exit_code=code)
    close = CloseGate(why, admit=False)
    return state, (*dropped, close, Record(str(phase), why=why, exit_code=code), Exit(code))


def enter(state: State, phase: Phase, now: float, reason: str) -> State:
    """Be in another phase from now on, without a deadline."""
    return replace(state, phase=phase, since=now, until=None, reason=reason)


def admits(state: State) -> bool:
    """Whether new requests may wait at the closed gate."""
    return not (state.stopping_for_good or state.drain_asked)


def recover(state: State, now: float, rules: Rules) -> Step:
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
        after, effects = start(state, now, f"fell back from {failed}")
        return after, (*records, *effects)
    state = enter(state, Phase.BACKOFF, now, f"starting {state.profile} again in {wait:g} s")
    backoff = Record("backoff", profile=state.profile, seconds=wait)
    return replace(state, until=now + wait), (*records, backoff)


def count_failure(state: State, kind: str, now: float, rules: Rules) -> State:
    """Remember a failure of the engine that is being given up."""
    switch_failed = state.switching is not None and state.switching.target == state.profile
    failures = state.failures.counted(
        state.profile, kind, rules.restart, now, budgeted=not switch_failed
    )
    return replace(state, failures=failures, after_failure=True)
