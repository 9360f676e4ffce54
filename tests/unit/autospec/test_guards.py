from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.autospec.guards import HOUR, GuardRules, Situation, vetoes

RULES = GuardRules(dwell=300.0, switches_per_hour=2)
FREE = Situation(serving=True, ready_at=0.0, switch_times=(), quarantine={}, paused=False)


def why(rules: GuardRules, situation: Situation, now: float) -> str:
    return "; ".join(veto.why for veto in vetoes(rules, situation, "eagle3", now))


def test_nothing_stands_against_a_switch_after_the_dwell() -> None:
    assert vetoes(RULES, FREE, "eagle3", 300.0) == ()


def test_dwell_counts_from_ready_and_says_until_when() -> None:
    (veto,) = vetoes(RULES, FREE, "eagle3", 100.0)
    assert veto.why == "dwell: 200 s left of 300 s"
    assert veto.until == 300.0


def test_the_budget_counts_the_last_hour_only() -> None:
    situation = replace(FREE, switch_times=(100.0, 5000.0, 6000.0))
    (veto,) = vetoes(RULES, situation, "eagle3", 7000.0)
    assert veto.until == 5000.0 + 3600.0
    assert vetoes(RULES, situation, "eagle3", 8601.0) == ()


def test_a_budget_of_zero_forbids_every_switch() -> None:
    (veto,) = vetoes(GuardRules(0.0, 0), FREE, "eagle3", 7000.0)
    assert veto.until is None


def test_a_quarantined_target_is_not_switched_to() -> None:
    situation = replace(FREE, quarantine={"eagle3": 500.0})
    assert "quarantine" in why(RULES, situation, 400.0)
    assert why(RULES, situation, 500.0) == ""


def test_observe_pause_and_no_engine_are_each_told() -> None:
    situation = replace(FREE, paused=True, serving=False)
    told = why(replace(RULES, observe=True), situation, 1000.0)
    assert "observe" in told
    assert "paused" in told
    assert "no requests are let through" in told


def test_cancelled_switches_are_tried_again_ever_more_seldom() -> None:
    waits = []
    for cancellations in range(1, 8):
        situation = replace(
            FREE, ready_at=-9999.0, cancelled_at=1000.0, cancellations=cancellations
        )
        (veto,) = vetoes(RULES, situation, "eagle3", 1000.0)
        assert veto.until is not None
        assert vetoes(RULES, situation, "eagle3", veto.until) == ()
        waits.append(veto.until - 1000.0)
    assert waits == [600, 1200, 2400, 3600, 3600, 3600, 3600]


def test_a_cooldown_of_its_own_counts_where_it_is_more_than_the_dwell() -> None:
    situation = replace(FREE, ready_at=-9999.0, cancelled_at=1000.0, cancellations=1)
    for cooldown, wait in ((0.0, 600), (100.0, 600), (900.0, 1800), (9999.0, 3600)):
        (veto,) = vetoes(replace(RULES, cooldown=cooldown), situation, "eagle3", 1000.0)
        assert veto.until == 1000.0 + wait


@settings(max_examples=40)
@given(
    budget=st.integers(0, 5),
    dwell=st.floats(0, 900),
    waits=st.lists(st.tuples(st.floats(0, 1200), st.floats(1, 600)), min_size=20, max_size=80),
)
def test_whatever_the_policy_wants_the_budget_and_the_dwell_hold(
    budget: int, dwell: float, waits: list[tuple[float, float]]
) -> None:
    """A policy that wants the other profile at every moment; each switch takes its time."""
    rules = GuardRules(dwell, budget)
    now, situation, begun = 0.0, FREE, [0.0]
    done: list[float] = []
    for wait, takes in waits:
        now += wait
        if vetoes(rules, situation, "eagle3", now):
            continue
        assert now >= (situation.ready_at or 0.0) + dwell
        begun.append(now)
        now += takes
        done.append(now)
        situation = replace(situation, ready_at=now, switch_times=tuple(done))
    for end in done:
        assert sum(end - HOUR < time <= end for time in done) <= budget
