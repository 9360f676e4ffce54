"""The moves of the lifecycle that several events make: one phase to the next, and its effects."""

from __future__ import annotations

from dataclasses import replace

from opsctl.serve.effects import (
    AwaitIdle,
    CloseGate,
    Effect,
    Exit,
    OpenGate,
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


def serve(state: State, now: float, why: str) -> Step:
    """The engine is ready: open the gate, unless the operator has drained it."""
    state = replace(state, ready_at=now, last_good=state.profile)
    if state.drain_asked:
        return enter(state, Phase.DRAINED, now, f"{why}, drained by the operator"), ()
    state = enter(state, Phase.SERVING, now, why)
    record = Record("serving", profile=state.profile, generation=state.generation, why=why)
    return state, (OpenGate(state.generation), record)


def drain(state: State, now: float, rules: Rules, *records: Record) -> Step:
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
    state = replace(enter(state, phase, now, why), exit_code=code)
    close = CloseGate(why, admit=False)
    return state, (close, Record(str(phase), why=why, exit_code=code), Exit(code))


def enter(state: State, phase: Phase, now: float, reason: str) -> State:
    """Be in another phase from now on, without a deadline."""
    return replace(state, phase=phase, since=now, until=None, reason=reason)


def admits(state: State) -> bool:
    """Whether new requests may wait at the closed gate."""
    return not (state.stopping_for_good or state.drain_asked)
