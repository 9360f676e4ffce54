"""The simulator against cases that are worked out by hand, and what holds in every case."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.autospec.arrivals import Requests, Session, clients
from opsctl.autospec.cost import SwitchCost
from opsctl.autospec.guards import HOUR, GuardRules
from opsctl.autospec.load import LoadSample
from opsctl.autospec.pair import Pair
from opsctl.autospec.policy import Decision
from opsctl.autospec.simulate import (
    Host,
    Outcome,
    Switch,
    Truth,
    controlled,
    scheduled,
    serving_spans,
)
from opsctl.autospec.suite import surface

FREE, CLOSED = SwitchCost(), SwitchCost(closed=30.0)
GATED = SwitchCost(prepare=20.0, closed=10.0)
RIGHT = Truth()
NO_GUARDS = GuardRules(dwell=0.0, switches_per_hour=10**9)
PAIR = Pair(
    surface("draft", {0: {1: 20.0}}, speculative=True),
    surface("plain", {0: {1: 10.0}}, speculative=False),
)
"""In tok/s, however many requests share them."""
WAYS = Pair(
    surface("draft", {0: {1: 30.0, 4: 40.0, 16: 60.0}}, speculative=True),
    surface("plain", {0: {1: 20.0, 4: 60.0, 16: 150.0}}, speculative=False),
)


def requests(*each: tuple[float, int], hours: float = 0.05, prompt: int = 1) -> Requests:
    """Requests of (arrival in seconds, output tokens)."""
    return Requests(
        "by hand",
        tuple(at for at, _ in each),
        (prompt,) * len(each),
        tuple(output for _, output in each),
        hours,
    )


class Script:
    """Wants these switches at these seconds."""

    name = "script"

    def __init__(self, *wants: tuple[float, str], urgent: bool = False) -> None:
        self.wants, self.urgent = wants, urgent
        self.samples: list[LoadSample] = []
        self.serving: list[str | None] = []

    def see(self, sample: LoadSample, serving: str | None) -> None:
        self.samples.append(sample)
        self.serving.append(serving)

    def decide(self, serving: str, now: float) -> Decision:
        for at, profile in self.wants:
            if at <= now < at + 1 and profile != serving:
                return Decision("switch", profile, "as written", urgent=self.urgent)
        return Decision("stay", serving, "as written")


def by_hand(
    load: Requests,
    cost: SwitchCost = CLOSED,
    schedule: Sequence[tuple[float, str]] = (),
    *,
    start: str = "plain",
    truth: Truth = RIGHT,
    drain_limit: float = 600.0,
) -> Outcome:
    host = Host(PAIR, cost, truth, NO_GUARDS, drain_limit)
    return scheduled(load, host, start, schedule)


# -- sharing an engine ------------------------------------------------------------------------


def test_a_request_alone_takes_its_tokens_by_the_speed() -> None:
    assert by_hand(requests((3.0, 100))).latencies == pytest.approx([10.0])
    assert by_hand(requests((3.0, 100)), start="draft").latencies == pytest.approx([5.0])


def test_requests_that_overlap_share_the_speed() -> None:
    """50 tokens alone, then 50 each at 5 tok/s until 15 s, then 50 alone until 20 s."""
    outcome = by_hand(requests((0.0, 100), (5.0, 100)))
    assert outcome.latencies == pytest.approx([15.0, 15.0])


def test_a_short_request_overtakes_a_long_one() -> None:
    outcome = by_hand(requests((0.0, 100), (2.0, 10)))
    assert outcome.latencies == pytest.approx([11.0, 2.0])


def test_many_requests_are_faster_together_as_the_surface_says() -> None:
    host = Host(WAYS, FREE)
    four = requests(*[(0.0, 60)] * 4)
    assert scheduled(four, host, "plain").latencies == pytest.approx([4.0] * 4)
    most = requests(*[(0.0, 75)] * 32)
    assert scheduled(most, host, "plain").latencies == pytest.approx([16.0] * 32)


def test_a_longer_context_is_as_slow_as_its_row() -> None:
    rows = {0: {1: 10.0}, 8000: {1: 5.0}}
    pair = Pair(surface("draft", rows, speculative=True), surface("plain", rows, speculative=False))
    deep = scheduled(requests((0.0, 10), prompt=8000), Host(pair, FREE), "plain")
    flat = scheduled(requests((0.0, 10), prompt=0), Host(pair, FREE), "plain")
    assert deep.latencies == pytest.approx([2.0], rel=0.01)
    assert flat.latencies == pytest.approx([1.0], rel=0.01)


def test_mean_and_quantiles_are_of_the_latencies() -> None:
    outcome = Outcome((4.0, 1.0, 3.0, 2.0), ())
    assert (outcome.mean, outcome.request_seconds) == (2.5, 10.0)
    assert [outcome.quantile(share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 3.0, 4.0, 4.0]
    assert (Outcome((), ()).mean, Outcome((), ()).quantile(0.9)) == (0.0, 0.0)


# -- a switch ---------------------------------------------------------------------------------


def test_a_restart_drains_waits_and_then_admits_what_was_held() -> None:
    """In flight until 12 s; held from 11 s to 42 s, then 100 tokens at 20 tok/s."""
    outcome = by_hand(requests((8.0, 40), (11.0, 100)), CLOSED, [(10.0, "draft")])
    assert outcome.latencies == pytest.approx([4.0, 36.0])
    assert outcome.switches == (Switch(10.0, 10.0, 42.0, "plain", "draft"),)


def test_an_idle_engine_has_nothing_to_drain() -> None:
    outcome = by_hand(requests((11.0, 100)), CLOSED, [(10.0, "draft")])
    assert outcome.switches == (Switch(10.0, 10.0, 40.0, "plain", "draft"),)
    assert outcome.latencies == pytest.approx([34.0])


def test_held_requests_share_the_engine_from_the_same_moment() -> None:
    outcome = by_hand(requests((11.0, 100), (12.0, 100)), CLOSED, [(10.0, "draft")])
    assert outcome.latencies == pytest.approx([39.0, 38.0])


def test_a_drain_that_takes_too_long_gives_the_switch_up() -> None:
    """Closed from 10 s to 15 s, then both share until the second one ends at 35 s."""
    load = requests((0.0, 1000), (12.0, 100))
    outcome = by_hand(load, CLOSED, [(10.0, "draft")], drain_limit=5.0)
    assert (outcome.cancelled, outcome.switches) == (1, ())
    assert outcome.latencies == pytest.approx([110.0, 23.0])


def test_inside_the_engine_a_request_goes_on_at_the_new_speed() -> None:
    outcome = by_hand(requests((0.0, 100)), FREE, [(5.0, "draft")])
    assert outcome.latencies == pytest.approx([7.5])
    assert outcome.switches == (Switch(5.0, 5.0, 5.0, "plain", "draft"),)


def test_inside_the_engine_every_move_counts() -> None:
    plan = [(2.0, "draft"), (4.0, "plain"), (6.0, "draft")]
    outcome = by_hand(requests((0.0, 100)), FREE, plan)
    assert outcome.latencies == pytest.approx([7.0])
    assert len(outcome.switches) == 3


def test_switches_there_and_back_each_take_place() -> None:
    load = requests((50.0, 100), (110.0, 100), (200.0, 100))
    plan = [(10.0, "draft"), (100.0, "plain"), (150.0, "draft")]
    outcome = by_hand(load, CLOSED, plan)
    assert outcome.switches == (
        Switch(10.0, 10.0, 40.0, "plain", "draft"),
        Switch(100.0, 100.0, 130.0, "draft", "plain"),
        Switch(150.0, 150.0, 180.0, "plain", "draft"),
    )
    assert outcome.latencies == pytest.approx([5.0, 30.0, 5.0])


def test_the_gate_opens_to_the_moment_not_to_the_second() -> None:
    """In flight until 12.3 s; a quarter of a second later it is open."""
    host = Host(PAIR, SwitchCost(closed=0.25), rules=NO_GUARDS)
    outcome = controlled(requests((8.0, 43)), host, "plain", Script((10.0, "draft")))
    assert outcome.switches[0].opened == pytest.approx(12.55)


def test_while_the_next_engine_is_prepared_requests_are_served() -> None:
    """The gate closes at 30 s with 30 tokens left, opens 10 s after the drain, at 43 s."""
    load = requests((15.0, 50), (28.0, 50), (40.0, 100))
    outcome = by_hand(load, GATED, [(10.0, "draft")])
    assert outcome.switches == (Switch(10.0, 30.0, 43.0, "plain", "draft"),)
    assert outcome.latencies == pytest.approx([5.0, 5.0, 8.0])


@pytest.mark.parametrize(("tokens", "opened"), [(20, 40.0), (400, 59.0)])
def test_an_urgent_switch_closes_at_once_and_waits_for_drain_and_preparation(
    tokens: int, opened: float
) -> None:
    """Asked at 10 s: 20 s to prepare, 10 s closed; 400 tokens drain until 49 s."""
    script = Script((10.0, "draft"), urgent=True)
    host = Host(PAIR, GATED, rules=NO_GUARDS)
    outcome = controlled(requests((9.0, tokens)), host, "plain", script)
    (switch,) = outcome.switches
    assert (switch.asked, switch.closed) == (10.0, 10.0)
    assert switch.opened == pytest.approx(opened)


def test_a_switch_that_is_not_urgent_lets_the_preparation_pass_first() -> None:
    host = Host(PAIR, GATED, rules=NO_GUARDS)
    outcome = controlled(requests((9.0, 20)), host, "plain", Script((10.0, "draft")))
    assert outcome.switches == (Switch(10.0, 30.0, 40.0, "plain", "draft"),)


# -- what the surfaces do not say -------------------------------------------------------------


def test_a_profile_is_as_much_slower_as_the_truth_has_it() -> None:
    truth = Truth({"plain": 0.8})
    assert by_hand(requests((0.0, 80)), truth=truth).latencies == pytest.approx([10.0])
    other = by_hand(requests((0.0, 80)), truth=truth, start="draft")
    assert other.latencies == pytest.approx([4.0])


def test_acceptance_drops_in_the_middle_of_a_request() -> None:
    """100 tokens by 5 s, the other 100 at half the speed."""
    truth = Truth(drop_at=5.0, drop=0.5)
    drafted = by_hand(requests((0.0, 200)), truth=truth, start="draft")
    assert drafted.latencies == pytest.approx([15.0])
    assert by_hand(requests((0.0, 200)), truth=truth).latencies == pytest.approx([20.0])


@pytest.mark.parametrize("drop_at", [11.0, 25.0, 40.0, 41.0])
def test_acceptance_may_drop_while_a_switch_is_under_way(drop_at: float) -> None:
    """Opened at 40 s; 20 tok/s until the drop, 10 from then on."""
    load = requests((11.0, 100))
    outcome = by_hand(load, CLOSED, [(10.0, "draft")], truth=Truth(drop_at=drop_at, drop=0.5))
    before = max(drop_at - 40.0, 0.0)
    assert outcome.latencies == pytest.approx([29.0 + before + (100 - 20 * before) / 10])


def test_the_accept_length_tells_of_the_drop_and_of_nothing_else() -> None:
    script = Script((20.0, "plain"))
    host = Host(PAIR, FREE, Truth(drop_at=10.0, drop=0.5), NO_GUARDS)
    controlled(requests((0.0, 10_000), hours=0.01), host, "draft", script)
    told = {sample.time: sample.accept_length for sample in script.samples}
    assert (told[9.0], told[10.0], told[19.0]) == (2.4, 1.2, 1.2)
    assert told[21.0] is None


# -- what a policy is told --------------------------------------------------------------------


def test_a_policy_is_told_every_second_what_is_there() -> None:
    """One in flight until 12 s, one held from 11 s, let in at 42 s and done at 47 s."""
    script = Script((10.0, "draft"))
    host = Host(PAIR, CLOSED, rules=NO_GUARDS)
    load = requests((8.0, 40), (11.0, 100), hours=60 / 3600, prompt=7)
    controlled(load, host, "plain", script)
    assert [sample.time for sample in script.samples] == [float(t) for t in range(1, 61)]
    at = {sample.time: sample for sample in script.samples}
    assert (at[9.0].running, at[9.0].used_tokens, at[9.0].generated) == (1, 17, 10)
    assert (at[11.0].running, at[11.0].held, at[11.0].arrived, at[11.0].completed) == (1, 1, 2, 0)
    assert (at[30.0].running, at[30.0].held, at[30.0].demand, at[30.0].completed) == (0, 1, 1, 1)
    assert (at[45.0].running, at[45.0].held, at[45.0].in_flight) == (1, 0, 1)
    assert (at[50.0].completed, at[50.0].generated) == (2, 140)
    spoken = dict(zip(at, script.serving, strict=True))
    assert [spoken[t] for t in (9.0, 11.0, 41.0, 43.0)] == ["plain", None, None, "draft"]


def test_used_tokens_are_prompts_and_what_was_generated_for_those_that_run() -> None:
    script = Script()
    load = requests((0.0, 40), (10.0, 40), (20.0, 400), (22.0, 400), prompt=100)
    controlled(load, Host(PAIR, FREE), "plain", script)
    used = {sample.time: sample.used_tokens for sample in script.samples}
    assert [used[t] for t in (3.0, 8.0, 12.0, 21.0, 24.0)] == [130, 0, 120, 110, 240]


def test_a_policy_is_not_asked_while_a_switch_is_under_way() -> None:
    asked: list[float] = []

    class Eager(Script):
        def decide(self, serving: str, now: float) -> Decision:
            asked.append(now)
            return super().decide(serving, now)

    host = Host(PAIR, CLOSED, rules=NO_GUARDS)
    controlled(requests((0.0, 10)), host, "plain", Eager((10.0, "draft")))
    assert not [time for time in asked if 10.0 < time < 40.0]
    assert {10.0, 41.0} <= set(asked)


def test_guards_stand_in_the_way_of_a_policy_but_not_inside_the_engine() -> None:
    """60 s of dwell from the begin and from ready, at 90 s; two switches an hour."""

    class Alternating(Script):
        def decide(self, serving: str, now: float) -> Decision:
            wanted = ("plain", "draft")[int(now) // 50 % 2]
            return Decision("stay" if wanted == serving else "switch", wanted, "by the clock")

    load, rules = requests((0.0, 10), hours=3000 / 3600), GuardRules(60.0, 2)
    outcome = controlled(load, Host(PAIR, CLOSED, rules=rules), "plain", Alternating())
    assert [switch.asked for switch in outcome.switches] == [60.0, 200.0]
    free = controlled(load, Host(PAIR, FREE, rules=rules), "plain", Alternating())
    assert len(free.switches) == 60


def test_a_cancelled_switch_is_not_tried_again_at_once() -> None:
    """Given up at 15, 125, 345 s: the wait begins with twice the dwell of 50 s and doubles."""
    wants = [(float(t), "draft") for t in range(10, 500)]
    rules = GuardRules(50.0, 10)
    host = Host(PAIR, CLOSED, rules=rules, drain_limit=5.0)
    script = Script(*wants)
    load = requests((0.0, 10**6), hours=500 / 3600)
    outcome = controlled(load, host, "plain", script)
    closed = [s.time for s, p in zip(script.samples, script.serving, strict=True) if p is None]
    begun = [t for t in closed if t - 1 not in closed]
    assert begun == [51.0, 156.0, 361.0]
    assert (outcome.cancelled, outcome.switches) == (3, ())


def test_spans_of_serving_follow_each_other_to_the_end() -> None:
    outcome = by_hand(requests((8.0, 40), (11.0, 100)), CLOSED, [(10.0, "draft")])
    spans = serving_spans(outcome, "plain", 100.0)
    assert spans == [(0.0, 10.0, "plain"), (10.0, 42.0, None), (42.0, 100.0, "draft")]
    free = by_hand(requests((0.0, 100)), FREE, [(5.0, "draft")])
    assert serving_spans(free, "plain", 9.0) == [(0.0, 5.0, "plain"), (5.0, 9.0, "draft")]


# -- clients that wait for their answers ------------------------------------------------------

HUNDRED = requests((0.0, 100))
"""Sizes: 100 tokens each."""


def loop(*sessions: Session, hours: float = 1.0) -> Requests:
    return clients(HUNDRED, sessions, hours, name="loop")


def test_two_clients_share_the_engine_request_after_request() -> None:
    """5 tok/s each: three times 20 s."""
    outcome = by_hand(loop(Session(0.0, 3), Session(0.0, 3)))
    assert outcome.latencies == pytest.approx([20.0] * 6)
    assert outcome.end == pytest.approx(60.0)
    faster = by_hand(loop(Session(0.0, 3), Session(0.0, 3)), start="draft")
    assert (faster.request_seconds, faster.end) == pytest.approx((60.0, 30.0))


def test_a_client_thinks_before_it_asks_again() -> None:
    """There from 0, 25, 50 s and 5, 30, 55 s: of 15 s the middle 10 s are shared."""
    outcome = by_hand(loop(Session(0.0, 3, 10.0), Session(5.0, 3, 10.0)))
    assert outcome.latencies == pytest.approx([15.0] * 6)
    assert outcome.end == pytest.approx(70.0)


def test_two_requests_may_wait_for_the_same_one() -> None:
    load = Requests("r", (1.0, 2.0, 4.0), (1,) * 3, (100, 50, 20), 1.0, (-1, 0, 0))
    assert by_hand(load).latencies == pytest.approx([10.0, 7.0, 4.0])


def test_while_the_gate_is_closed_nobody_who_waits_asks_again() -> None:
    """In flight until 40 s; what follows is held until 70 s and done at 80 s."""
    script = Script((30.0, "draft"))
    host = Host(PAIR, CLOSED, rules=NO_GUARDS)
    outcome = controlled(loop(Session(0.0, 3), Session(0.0, 3)), host, "plain", script)
    assert outcome.switches == (Switch(30.0, 30.0, pytest.approx(70.0), "plain", "draft"),)
    assert outcome.latencies == pytest.approx([20.0, 20.0, 40.0] * 2)
    assert outcome.end == pytest.approx(80.0)
    told = {s.time: (s.in_flight, s.held, s.arrived, s.completed) for s in script.samples}
    assert (told[30.0], told[39.0]) == ((2, 0, 4, 2), (2, 0, 4, 2))
    assert {told[float(t)] for t in range(41, 70)} == {(0, 2, 6, 4)}
    assert told[75.0] == (2, 0, 6, 4)


def test_who_thinks_while_the_gate_closes_is_held_when_he_comes_back() -> None:
    """One client: answered at 10 s, closed from 12 s to 42 s, back at 15 s."""
    outcome = by_hand(loop(Session(0.0, 2, 5.0)), CLOSED, [(12.0, "draft")])
    assert outcome.switches == (Switch(12.0, 12.0, 42.0, "plain", "draft"),)
    assert outcome.latencies == pytest.approx([10.0, 32.0])


def test_a_drain_given_up_lets_clients_go_on() -> None:
    """Closed from 5 s to 8 s; the other client's second request is held from 6 s on."""
    load = Requests("r", (0.0, 0.0, 0.0), (1,) * 3, (100, 30, 10), 1.0, (-1, -1, 1))
    outcome = by_hand(load, CLOSED, [(5.0, "draft")], drain_limit=3.0)
    assert (outcome.cancelled, outcome.switches) == (1, ())
    assert outcome.latencies == pytest.approx([14.0, 6.0, 4.0])


def test_a_closed_loop_is_over_when_everything_is_answered() -> None:
    """10 s alone; an open case is asked about to its end."""
    host, script, other = Host(PAIR, CLOSED), Script(), Script()
    controlled(loop(Session(0.5, 2)), host, "plain", script)
    assert [sample.time for sample in script.samples] == [float(t) for t in range(1, 22)]
    controlled(requests((0.5, 200), hours=0.1), host, "plain", other)
    assert len(other.samples) == 360


def test_a_closed_loop_that_outlasts_its_hours_is_still_answered() -> None:
    script = Script()
    load = loop(Session(0.0, 3), hours=5 / 3600)
    outcome = controlled(load, Host(PAIR, CLOSED), "plain", script)
    assert (len(script.samples), outcome.end) == (5, pytest.approx(30.0))


# -- what always holds ------------------------------------------------------------------------


def _arriving(each: list[tuple[float, int]]) -> Requests:
    at, placed = 0.0, []
    for gap, output in each:
        at += gap
        placed.append((at, output))
    return requests(*placed, hours=(at + 60.0) / 3600)


loads = st.lists(st.tuples(st.floats(0.0, 30.0), st.integers(1, 400)), min_size=1, max_size=40).map(
    _arriving
)
costs = st.sampled_from([FREE, CLOSED, GATED, SwitchCost(prepare=7.5), SwitchCost(0.0, 0.3)])
wanted = st.lists(st.tuples(st.integers(1, 700), st.sampled_from(["draft", "plain"])), max_size=12)


@settings(max_examples=60)
@given(load=loads, cost=costs, wants=wanted, limit=st.sampled_from([5.0, 600.0]))
def test_every_request_is_answered_whatever_is_switched(
    load: Requests, cost: SwitchCost, wants: list[tuple[int, str]], limit: float
) -> None:
    host = Host(WAYS, cost, Truth(drop_at=90.0, drop=0.6), NO_GUARDS, limit)
    script = Script(*((float(t), profile) for t, profile in wants))
    outcome = controlled(load, host, "plain", script)
    assert len(outcome.latencies) == len(load)
    assert min(outcome.latencies) > 0
    for output, latency in zip(load.output, outcome.latencies, strict=True):
        assert latency >= output / 30.0 - 1e-6, "faster than alone with the faster profile"
    for a, b in pairwise(outcome.switches):
        assert a.asked <= a.closed <= a.opened <= b.asked
    for switch in outcome.switches:
        assert switch.opened - switch.closed >= cost.closed - 1e-9
    again = controlled(load, host, "plain", Script(*((float(t), p) for t, p in wants)))
    assert again == outcome


@settings(max_examples=60)
@given(load=loads, cost=costs, wants=wanted)
def test_request_seconds_are_the_requests_in_the_system_added_up(
    load: Requests, cost: SwitchCost, wants: list[tuple[int, str]]
) -> None:
    """Little: counted once a second, each request is counted as often as it was seen there."""
    counted: list[int] = []

    def watch(sample: LoadSample, serving: str | None, decision: Decision | None) -> None:
        counted.append(sample.in_flight + sample.held)
        assert sample.in_flight + sample.held == sample.arrived - sample.completed
        assert sample.demand == sample.in_flight + sample.held

    host = Host(WAYS, cost, rules=NO_GUARDS)
    script = Script(*((float(t), profile) for t, profile in wants))
    outcome = controlled(load, host, "plain", script, watch)
    end = math.ceil(load.hours * 3600)
    spans = [(at, at + took) for at, took in zip(load.at, outcome.latencies, strict=True)]
    least = sum(_seconds_in(at + 1e-6, done - 1e-6, end) for at, done in spans)
    most = sum(_seconds_in(at - 1e-6, done + 1e-6, end) for at, done in spans)
    assert least <= sum(counted) <= most


def _seconds_in(begin: float, until: float, end: int) -> int:
    """How many of the seconds 1, 2, .. `end` lie between."""
    return max(min(math.floor(until), end) - max(math.ceil(begin), 1) + 1, 0)


@settings(max_examples=60)
@given(load=loads, cost=costs)
def test_requests_that_wait_for_none_are_as_if_nothing_had_been_said(
    load: Requests, cost: SwitchCost
) -> None:
    host, plan = Host(WAYS, cost, rules=NO_GUARDS), [(20.0, "draft"), (90.0, "plain")]
    said = replace(load, after=(-1,) * len(load))
    assert scheduled(said, host, "plain", plan) == scheduled(load, host, "plain", plan)


sessions = st.lists(
    st.builds(Session, st.floats(0.0, 200.0), st.integers(1, 6), st.sampled_from([0.0, 0.7, 30.0])),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60)
@given(each=sessions, cost=costs, wants=wanted, limit=st.sampled_from([5.0, 600.0]))
def test_clients_are_never_more_than_there_are_and_each_asks_when_its_time_has_come(
    each: list[Session], cost: SwitchCost, wants: list[tuple[int, str]], limit: float
) -> None:
    """Counted once a second, as for those that do not wait."""
    counted: list[int] = []

    def watch(sample: LoadSample, serving: str | None, decision: Decision | None) -> None:
        counted.append(sample.in_flight + sample.held)
        assert sample.in_flight + sample.held == sample.arrived - sample.completed

    load = clients(requests((0.0, 30), (0.0, 200), (0.0, 7)), each, 2.0, name="loop")
    host = Host(WAYS, cost, rules=NO_GUARDS, drain_limit=limit)
    script = Script(*((float(t), profile) for t, profile in wants))
    outcome = controlled(load, host, "plain", script, watch)
    ends: list[float] = []
    spans = []
    for at, before, took in zip(load.at, load.after, outcome.latencies, strict=True):
        came = at if before < 0 else ends[before] + at
        ends.append(came + took)
        spans.append((came, came + took))
    assert outcome.end == pytest.approx(max(ends))
    least = sum(_seconds_in(at + 1e-6, done - 1e-6, len(counted)) for at, done in spans)
    most = sum(_seconds_in(at - 1e-6, done + 1e-6, len(counted)) for at, done in spans)
    assert least <= sum(counted) <= most
    assert max(counted) <= load.clients(outcome.latencies) <= len(each)
    again = controlled(load, host, "plain", Script(*((float(t), p) for t, p in wants)))
    assert again == outcome


@settings(max_examples=60)
@given(gaps=st.lists(st.floats(0.0, 400.0), min_size=1, max_size=40))
def test_the_budget_and_the_dwell_hold_for_a_policy_that_always_wants_the_other(
    gaps: list[float],
) -> None:
    class Restless(Script):
        def decide(self, serving: str, now: float) -> Decision:
            return Decision("switch", PAIR.other(serving), "always")

    load = _arriving([(gap, 50) for gap in gaps])
    rules = GuardRules(dwell=120.0, switches_per_hour=3)
    outcome = controlled(load, Host(PAIR, CLOSED, rules=rules), "plain", Restless())
    asked = [switch.asked for switch in outcome.switches]
    assert all(b - a >= 120.0 for a, b in pairwise(asked))
    for last in asked:
        assert sum(last - HOUR < time <= last for time in asked) <= 3
