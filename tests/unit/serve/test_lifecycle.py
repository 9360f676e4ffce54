"""Particular lives, told as sequences; the random ones are in test_lifecycle_machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from opsctl.serve import effects as do
from opsctl.serve import inputs
from opsctl.serve.failures import RestartRules
from opsctl.serve.lifecycle import GAVE_UP, NOT_RELEASED, refusal, step
from opsctl.serve.state import Phase, Rules, State

RULES = Rules(
    restart=RestartRules(quarantine_after=2, quarantine_for=600.0, budget=4, budget_window=900.0),
    drain=lambda name: 20.0,
    fallbacks=("eagle3", "baseline"),
)


class Life:
    """Drives the state machine and remembers the effects of the last event."""

    def __init__(self, rules: Rules = RULES, state: State = State()) -> None:  # noqa: B008
        self.rules = rules
        self.state = state
        self.now = 100.0
        self.effects: tuple[do.Effect, ...] = ()

    def after(self, *events: inputs.Event, wait: float = 0.0) -> Life:
        for event in events:
            self.now += wait
            self.state, self.effects = step(self.state, event, self.now, self.rules)
        return self

    @property
    def phase(self) -> Phase:
        return self.state.phase

    def record(self, event: str) -> do.Record:
        return next(e for e in self.effects if isinstance(e, do.Record) and e.event == event)

    def effect(self, kind: type[do.Effect]) -> do.Effect:
        return next(effect for effect in self.effects if isinstance(effect, kind))


def serving() -> Life:
    return Life().after(inputs.Begin("eagle3"), inputs.Ready(1), wait=1.0)


def kinds(effects: Iterable[do.Effect]) -> list[str]:
    return [type(effect).__name__ for effect in effects if not isinstance(effect, do.Record)]


def test_a_switch_drains_stops_and_only_then_starts() -> None:
    life = serving().after(inputs.SwitchAsked("baseline", "policy"))
    assert life.phase is Phase.DRAINING
    assert kinds(life.effects) == ["CloseGate", "AwaitIdle"]
    assert life.effect(do.CloseGate) == do.CloseGate("switching", admit=True)
    life.after(inputs.Idle(1), wait=2.0)
    assert life.effects == (do.StopEngine(1, force=False),)
    life.after(inputs.Released(1), wait=3.0)
    assert life.effect(do.Start) == do.Start("baseline", 2)
    life.after(inputs.Ready(2), wait=4.0)
    assert life.phase is Phase.SERVING
    assert life.state.switches == 1
    facts = life.record("switched").facts
    assert (facts["drain_s"], facts["stop_s"], facts["start_s"]) == (2.0, 3.0, 4.0)
    assert facts["seconds"] == 9.0


def test_a_switch_whose_start_fails_returns_to_the_profile_that_served() -> None:
    life = serving().after(
        inputs.SwitchAsked("baseline", "policy"), inputs.Idle(1), inputs.Released(1)
    )
    life.after(inputs.StartFailed(2, "exited", "exit code 1"))
    assert life.effect(do.StopEngine) == do.StopEngine(2, force=True)
    life.after(inputs.Released(2))
    assert life.effect(do.Start) == do.Start("eagle3", 3), "at once, without backoff"
    life.after(inputs.Ready(3))
    assert (life.phase, life.state.profile, life.state.switches) == (Phase.SERVING, "eagle3", 0)


def test_an_old_failure_of_the_target_does_not_stop_a_new_switch_to_it() -> None:
    life = serving().after(inputs.EngineLost(1, "exited", "crash"), inputs.Released(1))
    life.after(inputs.Tick(), wait=5.0)
    life.after(inputs.Ready(2), inputs.SwitchAsked("baseline", "policy"), inputs.Idle(2))
    life.after(inputs.Released(2), inputs.Ready(3))
    life.after(inputs.SwitchAsked("eagle3", "operator"), inputs.Idle(3), inputs.Released(3))
    assert life.effect(do.Start) == do.Start("eagle3", 4)


def test_a_crash_restarts_the_same_profile_after_a_backoff() -> None:
    life = serving().after(inputs.EngineLost(1, "exited", "exit code -9"))
    assert kinds(life.effects) == ["CloseGate", "StopEngine"]
    assert life.effect(do.CloseGate) == do.CloseGate("engine lost: exited", admit=True)
    life.after(inputs.Released(1))
    assert life.phase is Phase.BACKOFF
    life.after(inputs.Tick(), wait=0.5)
    assert life.phase is Phase.BACKOFF
    life.after(inputs.Tick(), wait=0.6)
    assert life.effect(do.Start) == do.Start("eagle3", 2)


def test_a_profile_that_keeps_failing_is_quarantined_and_the_other_one_serves() -> None:
    life = serving()
    life.after(inputs.EngineLost(1, "exited", "crash"), inputs.Released(1))
    life.after(inputs.Tick(), wait=5.0)
    life.after(inputs.Ready(2), inputs.EngineLost(2, "exited", "crash"), inputs.Released(2))
    assert life.effect(do.Start) == do.Start("baseline", 3)
    assert life.state.failures.quarantined("eagle3", life.now)


def test_serving_long_enough_forgives_earlier_failures() -> None:
    life = serving()
    life.after(inputs.EngineLost(1, "exited", "crash"), inputs.Released(1))
    life.after(inputs.Tick(), wait=5.0)
    life.after(inputs.Ready(2))
    life.after(inputs.EngineLost(2, "exited", "crash"), wait=RULES.restart.stable_after + 1)
    life.after(inputs.Released(2))
    assert not life.state.failures.quarantined("eagle3", life.now)


@pytest.mark.parametrize("kind", ["bad_flags", "bad_model"])
def test_what_a_second_try_cannot_cure_is_quarantined_at_once(kind: str) -> None:
    life = Life().after(inputs.Begin("eagle3"), inputs.StartFailed(1, kind, "no such flag"))
    life.after(inputs.Released(1))
    assert life.effect(do.Start) == do.Start("baseline", 2)


def test_when_nothing_works_it_gives_up_with_its_own_exit_code() -> None:
    life = Life().after(inputs.Begin("eagle3"))
    for generation in range(1, 20):
        life.after(inputs.StartFailed(generation, "exited", "crash"), inputs.Released(generation))
        if life.state.exit_code is not None:
            break
        life.after(inputs.Tick(), wait=61.0)
    assert life.phase is Phase.FAILED
    assert life.state.exit_code == GAVE_UP
    assert life.effect(do.CloseGate).admit is False  # type: ignore[union-attr]


def test_nothing_starts_while_the_last_engine_is_not_released() -> None:
    life = serving().after(inputs.EngineLost(1, "exited", "crash"))
    life.after(inputs.NotReleased(1, "8 GiB held"))
    assert life.effect(do.StopEngine) == do.StopEngine(1, force=True)
    life.after(inputs.NotReleased(1, "8 GiB held"), inputs.NotReleased(1, "8 GiB held"))
    assert (life.phase, life.state.exit_code) == (Phase.FAILED, NOT_RELEASED)
    assert "8 GiB held" in life.state.reason


def test_a_drain_that_takes_too_long_cancels_the_switch_by_default() -> None:
    life = serving().after(inputs.SwitchAsked("baseline", "policy"))
    life.after(inputs.Tick(), wait=20.1)
    assert life.phase is Phase.SERVING
    assert kinds(life.effects) == ["OpenGate"]
    life.after(inputs.Idle(1))
    assert life.phase is Phase.SERVING, "a late word of idleness stops nothing"


def test_a_drain_that_takes_too_long_cuts_when_told_to() -> None:
    rules = Rules(RULES.restart, RULES.drain, cut_on_drain_timeout=True)
    life = Life(rules).after(inputs.Begin("eagle3"), inputs.Ready(1))
    life.after(inputs.SwitchAsked("baseline", "policy"))
    life.after(inputs.Tick(), wait=20.1)
    assert kinds(life.effects) == ["Cut", "StopEngine"]
    life.after(inputs.Released(1))
    assert life.effect(do.Start) == do.Start("baseline", 2)


def test_stop_drains_turns_new_requests_away_and_ends_with_zero() -> None:
    life = serving().after(inputs.StopAsked("operator"))
    assert life.effect(do.CloseGate) == do.CloseGate("stopping", admit=False)
    life.after(inputs.Idle(1), inputs.Released(1))
    assert (life.phase, life.state.exit_code) == (Phase.STOPPED, 0)


def test_a_second_stop_does_not_wait_for_the_drain() -> None:
    life = serving().after(inputs.StopAsked("SIGTERM"), inputs.StopAsked("SIGTERM"))
    life.after(inputs.Tick())
    assert kinds(life.effects) == ["Cut", "StopEngine"]


@pytest.mark.parametrize(
    "before",
    [
        (),
        (inputs.StartFailed(1, "exited", "crash"),),
        (inputs.StartFailed(1, "exited", "crash"), inputs.Released(1)),
    ],
    ids=["starting", "stopping", "backoff"],
)
def test_stop_works_in_every_phase(before: tuple[inputs.Event, ...]) -> None:
    life = Life().after(inputs.Begin("eagle3"), *before, inputs.StopAsked("operator"))
    life.after(inputs.Released(1))
    assert life.state.exit_code == 0


def test_a_drain_survives_the_loss_of_the_engine() -> None:
    life = serving().after(inputs.DrainAsked(), inputs.Idle(1))
    assert life.phase is Phase.DRAINED
    life.after(inputs.EngineLost(1, "exited", "crash"), inputs.Released(1))
    life.after(inputs.Tick(), wait=5.0)
    life.after(inputs.Ready(2))
    assert life.phase is Phase.DRAINED
    life.after(inputs.UndrainAsked())
    assert life.effect(do.OpenGate) == do.OpenGate(2)


def test_a_drain_that_ends_while_the_engine_starts_lets_requests_wait() -> None:
    life = Life(state=State(drain_asked=True)).after(inputs.Begin("eagle3"))
    life.after(inputs.UndrainAsked())
    assert life.effect(do.CloseGate).admit
    life.after(inputs.Ready(1))
    assert (life.phase, life.effect(do.OpenGate)) == (Phase.SERVING, do.OpenGate(1))


def test_the_end_of_a_drain_does_not_end_a_stop() -> None:
    life = serving().after(inputs.DrainAsked(), inputs.StopAsked("operator"))
    assert life.phase is Phase.DRAINING
    life.after(inputs.UndrainAsked(), inputs.Idle(1), inputs.Released(1))
    assert (life.phase, life.state.exit_code) == (Phase.STOPPED, 0)


def test_a_switch_can_be_called_off_while_it_drains() -> None:
    life = serving().after(inputs.SwitchAsked("baseline", "policy"))
    life.after(inputs.SwitchAsked("eagle3", "operator"))
    assert (life.phase, life.state.target) == (Phase.SERVING, None)
    assert life.record("switch_called_off").facts == {"target": "baseline", "by": "operator"}


def test_an_operator_may_leave_a_start_that_takes_too_long() -> None:
    life = Life().after(inputs.Begin("eagle3"), inputs.SwitchAsked("baseline", "operator"))
    assert life.effect(do.StopEngine) == do.StopEngine(1, force=False)
    life.after(inputs.Released(1))
    assert life.effect(do.Start) == do.Start("baseline", 2)


def test_an_operator_takes_a_profile_out_of_quarantine_by_asking_for_it() -> None:
    life = Life().after(inputs.Begin("eagle3"), inputs.StartFailed(1, "bad_flags", "no such flag"))
    life.after(inputs.Released(1), inputs.Ready(2))
    life.after(inputs.SwitchAsked("eagle3", "operator"))
    assert not life.state.failures.quarantined("eagle3", life.now)


def test_refusals_are_told_in_words() -> None:
    life = serving()
    assert refusal(life.state, "eagle3") == "eagle3 is already serving"
    assert refusal(life.state, "baseline") is None
    life.after(inputs.EngineLost(1, "exited", "crash"))
    assert "being stopped" in str(refusal(life.state, "baseline"))
    life.after(inputs.StopAsked("operator"))
    assert refusal(life.state, "baseline") == "opsctl is stopping"


def test_backoff_doubles_up_to_its_limit() -> None:
    life = Life(Rules(RestartRules(quarantine_after=99, budget=99), RULES.drain))
    life.after(inputs.Begin("eagle3"))
    waits = []
    for generation in range(1, 9):
        life.after(inputs.StartFailed(generation, "exited", "crash"), inputs.Released(generation))
        waits.append(life.record("backoff").facts["seconds"])
        life.after(inputs.Tick(), wait=61.0)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_switch_that_fails_does_not_bring_a_healthy_service_nearer_to_giving_up() -> None:
    life = serving()
    for generation in range(2, 20, 2):
        life.after(inputs.SwitchAsked("baseline", "policy"), inputs.Idle(generation - 1))
        life.after(inputs.Released(generation - 1))
        life.after(inputs.StartFailed(generation, "exited", "crash"), inputs.Released(generation))
        life.after(inputs.Ready(generation + 1))
        assert (life.phase, life.state.profile) == (Phase.SERVING, "eagle3")
    assert life.state.failures.quarantined("baseline", life.now)


def test_only_a_failure_makes_it_give_up_and_the_next_run_starts_afresh() -> None:
    life = Life().after(inputs.Begin("eagle3"))
    for generation in range(1, 5):
        life.after(inputs.StartFailed(generation, "exited", "crash"), inputs.Released(generation))
        life.after(inputs.Tick(), wait=61.0)
    assert life.phase is Phase.FAILED
    assert life.state.failures.times == ()
    crashed = serving()
    for generation in range(1, 4):
        crashed.after(inputs.EngineLost(generation, "exited", "x"), inputs.Released(generation))
        crashed.after(inputs.Tick(), wait=61.0)
        crashed.after(inputs.Ready(generation + 1))
    profile = next(name for name in ("eagle3", "baseline") if name != crashed.state.profile)
    crashed.after(inputs.SwitchAsked(profile, "operator"), inputs.Idle(4), inputs.Released(4))
    assert crashed.effect(do.Start) == do.Start(profile, 5)


def test_a_quarantined_profile_is_not_begun_with_unless_it_was_named() -> None:
    life = Life().after(inputs.Begin("eagle3"), inputs.StartFailed(1, "bad_flags", "no such flag"))
    for explicit, started in ((False, "baseline"), (True, "eagle3")):
        again = Life()
        again.state = State(failures=life.state.failures)
        again.after(inputs.Begin("eagle3", explicit=explicit))
        assert again.effect(do.Start) == do.Start(started, 1)


def test_cancelled_switches_are_counted_until_one_succeeds() -> None:
    life = serving()
    for count in (1, 2):
        life.after(inputs.SwitchAsked("baseline", "policy"))
        life.after(inputs.Tick(), wait=20.1)
        assert (life.state.cancellations, life.state.cancelled_at) == (count, life.now)
    life.after(inputs.SwitchAsked("baseline", "policy"), inputs.Idle(1), inputs.Released(1))
    life.after(inputs.Ready(2))
    assert (life.state.cancellations, life.state.cancelled_at) == (0, None)


GATED = replace(RULES, gated=lambda name: True)


def preparing(*, urgent: bool) -> Life:
    life = Life(GATED).after(inputs.Begin("eagle3"), inputs.Ready(1), wait=1.0)
    return life.after(inputs.SwitchAsked("baseline", "policy", "overloaded", urgent=urgent))


def test_a_switch_without_urgency_serves_on_while_the_next_engine_comes_up() -> None:
    life = preparing(urgent=False)
    assert (life.phase, kinds(life.effects), life.state.gate_open) == (
        Phase.PREPARING,
        ["Prepare"],
        True,
    )


def test_an_urgent_switch_lets_nothing_more_in_while_the_next_engine_comes_up() -> None:
    life = preparing(urgent=True)
    assert (life.phase, kinds(life.effects)) == (Phase.PREPARING, ["CloseGate", "Prepare"])
    assert life.effect(do.CloseGate) == do.CloseGate("switching", admit=True)
    assert not life.state.gate_open
    life.after(inputs.StandbyReady(1), inputs.Idle(1), wait=5.0)
    assert life.phase is Phase.STOPPING


def test_an_urgent_switch_that_comes_to_nothing_opens_the_gate_again() -> None:
    life = preparing(urgent=True).after(inputs.StandbyFailed(1, "exited", "as it happens"))
    assert life.phase is Phase.SERVING
    assert life.effect(do.OpenGate) == do.OpenGate(1)
    life = preparing(urgent=True).after(inputs.SwitchAsked("eagle3", "operator"))
    assert life.phase is Phase.SERVING
    assert life.effect(do.OpenGate) == do.OpenGate(1)
