from __future__ import annotations

import math
from itertools import pairwise

import pytest

from opsctl.autospec.arrivals import Requests, Session, clients, synthetic
from opsctl.autospec.cost import Costs, SwitchCost
from opsctl.autospec.cost_aware import CostAware
from opsctl.autospec.hindsight import Found
from opsctl.autospec.pair import Pair
from opsctl.autospec.patterns import CLOSED, PATTERNS
from opsctl.autospec.reference import reference_pair
from opsctl.autospec.simulate import Outcome, Truth, controlled, scheduled
from opsctl.autospec.suite import (
    COSTS,
    DROP,
    SUSTAINED,
    TRUTHS,
    WRONG,
    Case,
    Row,
    Verdict,
    all_cases,
    closed_cases,
    host_of,
    one_switch,
    play,
    surface,
    truth_of,
)

PAIR = reference_pair()
CASE = Case("synthetic", "bursts", "restart", "reference", "right")
REQUESTS = PATTERNS["bursts"].requests(synthetic(2000, 1), PAIR, hours=0.6)
PLAYED = play(CASE, REQUESTS, PAIR)


def verdict(ours: float, *, fixed: float = 100.0, hindsight: float, one: float = 0.0) -> Verdict:
    """A verdict on a case of one request, in request-seconds."""
    rows = (
        Row("always:draft", Outcome((2 * fixed,), ()), "draft"),
        Row("always:plain", Outcome((fixed,), ()), "plain"),
        Row("cost_aware", Outcome((ours,), ()), "plain"),
    )
    found = Found("plain", (), Outcome((hindsight,), ()))
    requests = Requests("one", (0.0,), (1,), (1,), 1.0)
    return Verdict(CASE, requests, rows, "plain", found, one)


def test_every_policy_plays_every_case() -> None:
    names = [row.policy for row in PLAYED.rows]
    assert names == ["always:eagle3", "always:baseline", *SUSTAINED, "cost_aware"]
    assert all(len(row.outcome.latencies) == len(REQUESTS) for row in PLAYED.rows)


def test_fixed_profiles_are_simulated_without_a_switch_and_the_better_one_is_named() -> None:
    host = host_of(PAIR, COSTS["restart"], Truth())
    outcomes = {name: scheduled(REQUESTS, host, name) for name in PAIR.names}
    for name, outcome in outcomes.items():
        assert PLAYED.row(f"always:{name}") == outcome
        assert outcome.switches == ()
    best = min(outcomes, key=lambda name: outcomes[name].request_seconds)
    assert (PLAYED.best_fixed, PLAYED.fixed) == (best, outcomes[best].request_seconds)


def test_the_policy_starts_from_where_it_would_start_and_knows_the_costs() -> None:
    host = host_of(PAIR, COSTS["restart"], Truth())
    policy = CostAware(PAIR, Costs("restart", COSTS["restart"]))
    row = next(row for row in PLAYED.rows if row.policy == "cost_aware")
    assert row.start == policy.start == "baseline"
    assert row.outcome == controlled(REQUESTS, host, policy.start, policy)


def test_nobody_is_better_than_hindsight() -> None:
    least = min(row.outcome.request_seconds for row in PLAYED.rows)
    assert PLAYED.hindsight.outcome.request_seconds <= least


def test_the_same_case_gives_the_same_verdict() -> None:
    assert play(CASE, REQUESTS, PAIR).rows == PLAYED.rows


def test_r1_takes_one_switch_off() -> None:
    assert verdict(110.0, hindsight=90.0).ratio() == pytest.approx(1.1)
    assert verdict(110.0, hindsight=90.0, one=8.0).ratio() == pytest.approx(1.02)
    assert verdict(110.0, hindsight=90.0).ratio("always:draft") == pytest.approx(2.0)


def test_r2_is_the_share_of_what_hindsight_gains() -> None:
    found = verdict(85.0, hindsight=80.0)
    assert found.gain == pytest.approx(0.2)
    assert found.share() == pytest.approx(0.75)
    assert verdict(110.0, hindsight=80.0).share() == pytest.approx(-0.5)
    assert verdict(96.0, hindsight=96.0).share() is None


def test_an_unknown_policy_has_no_row() -> None:
    with pytest.raises(StopIteration):
        PLAYED.row("nobody")


def test_truths_are_about_the_speculative_profile() -> None:
    assert truth_of("right", PAIR, 8.0) == Truth()
    assert truth_of("wrong", PAIR, 8.0).factors == {"eagle3": WRONG}
    drop = truth_of("drop", PAIR, 8.0)
    assert (drop.drop_at, drop.drop, drop.factors) == (4 * 3600.0, DROP, {})


def test_a_switch_inside_the_engine_is_allowed_nothing() -> None:
    host = host_of(PAIR, SwitchCost(), Truth())
    assert one_switch(REQUESTS, host, "baseline") == 0.0


def test_the_price_of_one_switch_is_near_what_a_simulated_one_costs() -> None:
    """At a steady load: a switch in the middle, beside the better profile from the begin."""
    busy = PATTERNS["busy"].requests(synthetic(4000, 2), PAIR, hours=1.5)
    same = {1: 92.6, 30: 711.0, 70: 773.0, 250: 773.0}
    pair = Pair(
        surface("draft", {0: same}, speculative=True),
        surface("plain", {0: same}, speculative=False),
    )
    for mechanism in ("restart", "gated_restart"):
        host = host_of(pair, COSTS[mechanism], Truth())
        price = one_switch(busy, host, "plain")
        fixed = scheduled(busy, host, "plain").request_seconds
        costs = []
        for at in range(600, 4000, 200):
            # in small steps, as a schedule is followed
            outcome = scheduled(busy, host, "draft", [(float(at), "plain")])
            costs.append(outcome.request_seconds - fixed)
        assert price == pytest.approx(sum(costs) / len(costs), rel=0.6)


def test_cases_are_all_combinations_those_of_one_load_together() -> None:
    cases = list(all_cases(["a", "b"], ["x", "y"]))
    assert len(cases) == len(set(cases)) == 2 * 2 * len(PATTERNS) * len(COSTS) * len(TRUTHS)
    loads = [(case.surface, case.trace, case.pattern) for case in cases]
    assert len([1 for a, b in pairwise(loads) if a != b]) == 4 * 7 - 1
    assert cases[0].name == "x/a/quiet/in_engine/right"


def test_closed_cases_are_all_combinations_with_the_sizes_of_one_trace() -> None:
    cases = list(closed_cases(["x", "y"]))
    assert len(cases) == len(set(cases)) == 2 * len(CLOSED) * len(COSTS) * len(TRUTHS)
    assert {case.trace for case in cases} == {"conversation"}
    assert {case.pattern for case in cases} == set(CLOSED)
    assert cases[0].name == "x/conversation/clients few/in_engine/right"
    assert not set(cases) & set(all_cases(["conversation"], ["x", "y"]))


def test_a_switch_costs_each_client_that_waits_the_seconds_that_nobody_serves() -> None:
    """Three at once, the fourth after they are done."""
    source = Requests("r", (0.0,), (1,), (200,), 1.0)
    begins = (0.0, 0.0, 5.0, 3000.0)
    load = clients(source, [Session(at, 3) for at in begins], 2.0, name="x")
    for mechanism, closed in (("restart", 240.0), ("gated_restart", 60.0), ("in_engine", 0.0)):
        host = host_of(PAIR, COSTS[mechanism], Truth())
        assert one_switch(load, host, "baseline") == 3 * closed


def test_a_case_of_clients_that_wait_is_played_by_everybody() -> None:
    """And the draft's acceptance drops in the middle of the work, not of the longest time."""
    requests = CLOSED["clients few"].requests(synthetic(500, 1), PAIR, hours=0.3)
    case = Case("conversation", "clients few", "gated_restart", "reference", "drop")
    played = play(case, requests, PAIR)
    assert {len(row.outcome.latencies) for row in played.rows} == {len(requests)}
    host = host_of(PAIR, COSTS["gated_restart"], Truth(drop_at=0.15 * 3600, drop=DROP))
    assert played.row("always:eagle3") == scheduled(requests, host, "eagle3")
    assert played.row("always:eagle3").end > 0.15 * 3600 * 2.5
    assert played.one_switch == 2 * 60.0


def test_a_surface_is_made_of_rows_and_leaves_out_what_was_not_measured() -> None:
    made = surface("draft", {0: {1: 10.0, 8: 50.0}, 1000: {1: 5.0, 8: None}}, speculative=True)
    assert (made.profile, made.speculative) == ("draft", True)
    assert [(p.context, p.concurrency, p.tok_s) for p in made.points] == [
        (0, 1, 10.0), (0, 8, 50.0), (1000, 1, 5.0),
    ]  # fmt: skip
    assert {p.accept_length for p in made.points} == {2.4}
    plain = surface("plain", {0: {1: 10.0}}, speculative=False)
    assert plain.points[0].accept_length is None
    assert math.isclose(made.tok_s(1, 0), 10.0)
