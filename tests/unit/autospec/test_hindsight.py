from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.autospec.arrivals import Requests, Session, clients, shaped, synthetic
from opsctl.autospec.cost import SwitchCost
from opsctl.autospec.hindsight import best, true_factor
from opsctl.autospec.pair import Pair
from opsctl.autospec.simulate import Host, Outcome, Truth, scheduled
from opsctl.autospec.suite import COSTS, surface

PAIR = Pair(
    surface("draft", {0: {1: 200.0, 8: 220.0, 64: 220.0}}, speculative=True),
    surface("plain", {0: {1: 40.0, 8: 280.0, 64: 900.0}}, speculative=False),
)
"""Alone five times as fast with drafts; many can only be served without."""
SOURCE = synthetic(2000, 3)
EVEN = Requests("even", (1.0,), (100,), (200,), 1 / 3600)
"""Without pauses that a switch could be hidden in."""
HOUR = 3600.0
QUIET, BUSY = 0.08, 2.5
RESTART, FREE = Host(PAIR, SwitchCost(closed=60.0)), Host(PAIR, SwitchCost())


def load(rate: Callable[[float], float], hours: float = 4.0, source: Requests = EVEN) -> Requests:
    return shaped(source, rate, hours, name="made", seed=1)


def test_quiet_then_busy_is_one_switch_in_the_middle() -> None:
    requests = load(lambda t: QUIET if t < 2 * HOUR else BUSY)
    found = best(requests, RESTART)
    assert found.start == "draft"
    ((at, target),) = found.schedule
    assert target == "plain"
    assert 2 * HOUR - 1200 <= at <= 2 * HOUR + 120
    fixed = {name: scheduled(requests, RESTART, name) for name in PAIR.names}
    assert found.outcome.request_seconds < fixed["plain"].request_seconds - 1500
    assert found.outcome.request_seconds < 0.5 * fixed["draft"].request_seconds


def test_a_busy_hour_between_quiet_ones_is_gone_round() -> None:
    requests = load(lambda t: BUSY if 2 * HOUR <= t < 3 * HOUR else QUIET, 6.0)
    found = best(requests, RESTART)
    assert (found.start, [target for _, target in found.schedule]) == ("draft", ["plain", "draft"])
    (out, _), (back, _) = found.schedule
    assert 2 * HOUR - 1200 <= out <= 2 * HOUR + 120
    assert 3 * HOUR - 120 <= back <= 3 * HOUR + 1200


@pytest.mark.parametrize(("rate", "wanted"), [(QUIET, "draft"), (BUSY, "plain")])
def test_where_one_profile_is_always_better_nothing_is_switched(rate: float, wanted: str) -> None:
    found = best(load(lambda _: rate, 2.0), RESTART)
    assert (found.start, found.schedule) == (wanted, ())


def test_a_drop_of_acceptance_is_seen_coming() -> None:
    truth = Truth(drop_at=2 * HOUR, drop=0.1)
    found = best(load(lambda _: QUIET), Host(PAIR, RESTART.cost, truth))
    assert (found.start, [target for _, target in found.schedule]) == ("draft", ["plain"])
    assert 2 * HOUR - 1200 <= found.schedule[0][0] <= 2 * HOUR + 600


def test_inside_the_engine_the_faster_one_serves_every_second() -> None:
    requests = load(lambda t: BUSY if t % 600 >= 300 else QUIET, 1.0)
    found = best(requests, FREE)
    fixed = min(scheduled(requests, FREE, name).request_seconds for name in PAIR.names)
    assert found.outcome.request_seconds < fixed - 200
    assert len(found.schedule) >= 10
    gated = best(requests, Host(PAIR, COSTS["gated_restart"]))
    assert found.outcome.request_seconds <= gated.outcome.request_seconds


def test_what_others_did_counts_as_it_is() -> None:
    """Better than anything that can be simulated: it is taken over."""
    requests = load(lambda _: 1.0, 0.2)
    for host in (FREE, RESTART):
        magic = Outcome((0.01,) * len(requests), ())
        found = best(requests, host, [("plain", magic)])
        assert (found.start, found.schedule, found.outcome) == ("plain", (), magic)


def test_a_better_schedule_of_others_is_pruned_too() -> None:
    """A switch at 165 s is between the minutes that the search looks at; the pair before is not
    needed, and holds up the request at 9 s.
    """
    at = (9.0, *(20.0 + 5.5 * n for n in range(26)), *(176.0 + n / 100 for n in range(40)))
    requests = Requests("r", at, (1,) * len(at), (200,) * len(at), 180 / 3600)
    host = Host(PAIR, SwitchCost(closed=4.0))
    plan = [(1.0, "plain"), (8.0, "draft"), (165.0, "plain")]
    outcome = scheduled(requests, host, "draft", plan)
    assert len(outcome.switches) == 3
    found = best(requests, host, [("draft", outcome)])
    assert (found.start, found.schedule) == ("draft", ((165.0, "plain"),))


def test_the_schedule_is_what_leads_to_the_outcome() -> None:
    requests = load(lambda t: QUIET if t < HOUR else BUSY, 2.0)
    found = best(requests, RESTART)
    assert scheduled(requests, RESTART, found.start, found.schedule) == found.outcome


def test_switches_of_others_that_are_of_no_use_are_left_out() -> None:
    requests = load(lambda t: QUIET if t < 2 * HOUR else BUSY)
    useless = [(1800.0, "plain"), (3600.0, "draft"), (2 * HOUR, "plain")]
    outcome = scheduled(requests, RESTART, "draft", useless)
    assert len(outcome.switches) == 3
    found = best(requests, RESTART, [("draft", outcome)])
    assert len(found.schedule) == 1
    assert found.outcome.request_seconds < outcome.request_seconds


@settings(max_examples=15, deadline=None)
@given(
    rates=st.lists(st.sampled_from([0.02, QUIET, 0.4, 1.2, BUSY]), min_size=1, max_size=5),
    mechanism=st.sampled_from(sorted(COSTS)),
    times=st.lists(st.floats(60.0, 5000.0), max_size=3),
    drop=st.sampled_from([1.0, 0.5]),
)
def test_hindsight_is_never_worse_than_a_fixed_profile_or_what_others_did(
    rates: list[float], mechanism: str, times: list[float], drop: float
) -> None:
    requests = load(lambda t: rates[min(int(t / 1200), len(rates) - 1)], len(rates) / 3, SOURCE)
    host = Host(PAIR, COSTS[mechanism], Truth(drop_at=2000.0, drop=drop))  # type: ignore[index]
    plan = [(at, PAIR.names[i % 2]) for i, at in enumerate(sorted(times))]
    other = scheduled(requests, host, "plain", plan)
    found = best(requests, host, [("plain", other)])
    least = [scheduled(requests, host, name).request_seconds for name in PAIR.names]
    assert found.outcome.request_seconds <= min([*least, other.request_seconds]) + 1e-6


def test_the_same_case_gives_the_same_schedule() -> None:
    requests = load(lambda t: QUIET if t < HOUR else BUSY, 2.0)
    assert best(requests, RESTART) == best(requests, RESTART)


def test_what_is_true_of_a_profile_changes_with_the_drop() -> None:
    host = Host(PAIR, SwitchCost(), Truth({"draft": 0.8, "plain": 0.9}, drop_at=100.0, drop=0.5))
    assert true_factor(host, "draft", 99.9) == 0.8
    assert true_factor(host, "draft", 100.0) == pytest.approx(0.4)
    assert true_factor(host, "plain", 100.0) == 0.9


FEW_THEN_MANY = clients(
    EVEN, [Session(0.0, 2000), *(Session(HOUR, 200) for _ in range(20))], 12.0, name="loop"
)
"""One client, and from an hour on 20 more."""


def test_where_clients_wait_the_best_of_what_was_played_is_hindsight() -> None:
    """No schedule is proposed, and the one that somebody followed stays as it is."""
    plan = [(100.0, "plain"), (200.0, "draft"), (HOUR, "plain")]
    outcome = scheduled(FEW_THEN_MANY, RESTART, "draft", plan)
    assert len(outcome.switches) == 3
    fixed = {name: scheduled(FEW_THEN_MANY, RESTART, name) for name in PAIR.names}
    least = min(fixed.values(), key=lambda one: one.request_seconds)
    assert best(FEW_THEN_MANY, RESTART).outcome == least
    assert outcome.request_seconds < least.request_seconds
    found = best(FEW_THEN_MANY, RESTART, [("draft", outcome)])
    assert (found.start, len(found.schedule), found.outcome) == ("draft", 3, outcome)


def test_one_request_that_waits_is_enough_for_no_search() -> None:
    """The same load as in the first test, where one switch is found."""
    requests = load(lambda t: QUIET if t < 2 * HOUR else BUSY)
    requests = replace(requests, after=(*(-1 for _ in requests.at[1:]), 0))
    found = best(requests, RESTART)
    fixed = [scheduled(requests, RESTART, name) for name in PAIR.names]
    assert found.schedule == ()
    assert found.outcome == min(fixed, key=lambda one: one.request_seconds)


def test_where_clients_wait_the_faster_one_serves_every_second_inside_the_engine() -> None:
    found = best(FEW_THEN_MANY, FREE)
    fixed = min(scheduled(FEW_THEN_MANY, FREE, name).request_seconds for name in PAIR.names)
    assert found.outcome.request_seconds < 0.95 * fixed
    assert (found.start, found.schedule[0]) == ("draft", (HOUR, "plain"))
