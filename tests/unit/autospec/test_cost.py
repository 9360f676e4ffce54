from __future__ import annotations

import pytest

from opsctl.autospec.cost import ASSUMED, Costs, Estimate, SwitchCost


def test_before_the_first_switch_the_mechanism_says_what_it_costs() -> None:
    for mechanism, cost in ASSUMED.items():
        assert Costs(mechanism).to("draft") == cost
    assert ASSUMED["in_engine"].free
    assert not ASSUMED["restart"].free
    assert not ASSUMED["gated_restart"].free


def test_an_assumption_of_ones_own_stands_in_its_place() -> None:
    assert Costs("restart", SwitchCost(closed=12.0)).to("draft") == SwitchCost(closed=12.0)


def test_the_first_switch_counts_for_all_that_was_assumed() -> None:
    costs = Costs("restart").with_switch("draft", prepare=5.0, closed=100.0)
    assert costs.to("draft") == SwitchCost(5.0, 100.0)
    assert costs.seen["draft"].count == 1


def test_later_ones_are_mixed_in_at_three_tenths() -> None:
    costs = Costs("gated_restart").with_switch("draft", prepare=10.0, closed=100.0)
    costs = costs.with_switch("draft", prepare=20.0, closed=50.0)
    assert costs.to("draft").prepare == pytest.approx(13.0)
    assert costs.to("draft").closed == pytest.approx(85.0)
    assert costs.seen["draft"].count == 2


def test_the_estimate_follows_a_host_that_has_become_faster() -> None:
    estimate = Estimate(SwitchCost(0.0, 240.0), 7)
    for _ in range(10):
        estimate = estimate.updated(0.0, 60.0)
    assert estimate.cost.closed == pytest.approx(60.0, rel=0.1)


def test_each_direction_has_its_own_cost() -> None:
    costs = Costs("restart").with_switch("draft", prepare=0.0, closed=100.0)
    assert costs.to("plain") == ASSUMED["restart"]
    both = costs.with_switch("plain", prepare=0.0, closed=50.0)
    assert (both.to("draft").closed, both.to("plain").closed) == (100.0, 50.0)
    assert costs.to("plain") == ASSUMED["restart"], "the costs before have not changed"
    assert (both.mechanism, both.assumed) == ("restart", None)


def test_a_clock_that_went_backwards_makes_no_negative_cost() -> None:
    assert Costs().with_switch("draft", prepare=-1.0, closed=-2.0).to("draft") == SwitchCost()


@pytest.mark.parametrize(
    ("cost", "free"),
    [
        (SwitchCost(), True),
        (SwitchCost(prepare=1.0), False),
        (SwitchCost(closed=0.1), False),
    ],
)
def test_a_switch_is_free_when_nobody_waits_and_nothing_is_prepared(
    cost: SwitchCost, free: bool
) -> None:
    assert cost.free is free
