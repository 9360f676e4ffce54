"""What must hold of the cost-aware policy whatever the load, the surfaces and the mechanism."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from opsctl.autospec.arrivals import Requests, shaped, synthetic
from opsctl.autospec.cost import Costs, Mechanism, SwitchCost
from opsctl.autospec.cost_aware import CostAware
from opsctl.autospec.guards import HOUR, GuardRules
from opsctl.autospec.load import LoadSample
from opsctl.autospec.pair import Pair
from opsctl.autospec.policy import Decision
from opsctl.autospec.simulate import Host, Outcome, controlled
from opsctl.autospec.suite import COSTS, surface

NOISE = 0.03
STRETCH = 600.0
"""Seconds for which a rate lasts."""
SOURCE = synthetic(3000, 4)
CROSSING = Pair(
    surface("draft", {0: {1: 120.0, 8: 150.0, 64: 150.0}}, speculative=True),
    surface("plain", {0: {1: 60.0, 8: 280.0, 64: 900.0}}, speculative=False),
)
"""The draft is good for a request alone, and cannot serve what the other can."""
mechanisms: st.SearchStrategy[Mechanism] = st.sampled_from(sorted(COSTS))
shares = st.lists(st.sampled_from([0.0, 0.02, 0.1, 0.3, 0.6, 0.9]), min_size=2, max_size=8)
"""Of what the faster profile can serve, for ten minutes each."""
Asked = tuple[str, Decision]
"""Who served when the policy was asked, and what it said."""
sides = st.sampled_from(["draft", "plain"])


def load(pair: Pair, parts: list[float]) -> Requests:
    """Requests for which `parts` of what can be served is needed, one after the other."""
    capacity = max(speed.capacity(0.0) for speed in pair.speeds.values())
    per_part = capacity / SOURCE.mean_output

    def rate(t: float) -> float:
        return per_part * parts[min(int(t / STRETCH), len(parts) - 1)]

    return shaped(SOURCE, rate, len(parts) * STRETCH / 3600, name="random", seed=len(parts))


class Told:
    """A policy that writes down what it is told and what it decides."""

    name = "told"

    def __init__(self, policy: CostAware) -> None:
        self._policy = policy
        self.seen: list[tuple[LoadSample, str | None, Asked | None]] = []

    def see(self, sample: LoadSample, serving: str | None) -> None:
        self._policy.see(sample, serving)
        self.seen.append((sample, serving, None))

    def decide(self, serving: str, now: float) -> Decision:
        decision = self._policy.decide(serving, now)
        sample, told, _ = self.seen[-1]
        self.seen[-1] = sample, told, (serving, decision)
        return decision


def play(
    pair: Pair,
    parts: list[float],
    mechanism: Mechanism,
    start: str,
    rules: GuardRules | None = None,
) -> tuple[Outcome, Told]:
    """Simulate the policy on a host that is as its surfaces say."""
    cost = COSTS[mechanism]
    host = Host(pair, cost, rules=rules or GuardRules(300.0, 6))
    told = Told(CostAware(pair, Costs(mechanism, cost), noise=NOISE))
    return controlled(load(pair, parts), host, start, told), told


# -- clocks -----------------------------------------------------------------------------------

CLOCKS = st.sampled_from([1 / 64, 0.5, 4.0])
"""Powers of two, so that no rounding moves anything to the next second."""


def slower(pair: Pair, k: float) -> Pair:
    def scaled(name: str, *, speculative: bool) -> object:
        points = (pair.speculative if speculative else pair.baseline).points
        rates = {point.concurrency: point.tok_s / k for point in points}
        return surface(name, {0: rates}, speculative=speculative)

    return Pair(scaled("draft", speculative=True), scaled("plain", speculative=False))  # type: ignore[arg-type]


@settings(max_examples=12)
@given(parts=shares, mechanism=mechanisms, start=sides, k=CLOCKS)
def test_a_clock_of_another_speed_changes_no_decision(
    parts: list[float], mechanism: Mechanism, start: str, k: float
) -> None:
    _, told = play(CROSSING, parts, mechanism, start)
    cost = COSTS[mechanism]
    costs = Costs(mechanism, SwitchCost(cost.prepare * k, cost.closed * k))
    policy = CostAware(slower(CROSSING, k), costs, noise=NOISE, tempo=k)
    assert policy.start == CostAware(CROSSING, Costs(mechanism, cost), noise=NOISE).start
    for sample, serving, asked in told.seen:
        policy.see(replace(sample, time=sample.time * k), serving)
        if asked is not None:
            serves, wanted = asked
            found = policy.decide(serves, sample.time * k)
            assert (found.action, found.profile, found.urgent) == (
                wanted.action, wanted.profile, wanted.urgent,
            ), f"at {sample.time}"  # fmt: skip


# -- one profile that is better everywhere ------------------------------------------------------


def rates(draw_from: tuple[float, float]) -> st.SearchStrategy[Mapping[int, float]]:
    """Curves that rise, and by less than the number of streams."""
    gains = st.tuples(st.floats(1.2, 6.0), st.floats(1.0, 5.0))
    alone = st.floats(*draw_from)
    return st.tuples(alone, gains).map(
        lambda x: {1: x[0], 8: x[0] * x[1][0], 64: x[0] * x[1][0] * x[1][1]}
    )


@settings(max_examples=15)
@given(
    curve=rates((30.0, 120.0)),
    better=st.floats(1.06, 2.5),
    draft_is_better=st.booleans(),
    play_it=st.tuples(shares, mechanisms, sides),
)
def test_where_one_profile_is_better_everywhere_there_is_one_switch_at_most(
    curve: Mapping[int, float],
    better: float,
    draft_is_better: bool,
    play_it: tuple[list[float], Mechanism, str],
) -> None:
    parts, mechanism, start = play_it
    fast = {n: rate * better for n, rate in curve.items()}
    pair = Pair(
        surface("draft", {0: fast if draft_is_better else curve}, speculative=True),
        surface("plain", {0: curve if draft_is_better else fast}, speculative=False),
    )
    winner = "draft" if draft_is_better else "plain"
    assert CostAware(pair, Costs(mechanism), noise=NOISE).start == winner
    outcome, _ = play(pair, parts, mechanism, start)
    assert len(outcome.switches) <= (0 if start == winner else 1)


# -- a switch that costs nothing ----------------------------------------------------------------


@settings(max_examples=15)
@given(draft=rates((60.0, 200.0)), plain=rates((30.0, 120.0)), parts=shares, start=sides)
def test_a_free_switch_follows_the_better_profile_within_the_noise(
    draft: Mapping[int, float], plain: Mapping[int, float], parts: list[float], start: str
) -> None:
    pair = Pair(
        surface("draft", {0: draft}, speculative=True),
        surface("plain", {0: plain}, speculative=False),
    )
    _, told = play(pair, parts, "in_engine", start)
    for sample, serving, asked in told.seen:
        assert asked is not None
        _, decision = asked
        streams, now = max(sample.demand or 0, 1), decision.profile
        here, there = (
            pair.speeds[name].tok_s(streams, 0.0) for name in (now, pair.other(now))
        )  # fmt: skip
        assert here * (1 + NOISE) * LEARNT >= there, f"{sample} {serving} {decision}"


LEARNT = 1.06
"""How far off the speeds may be that a policy has learnt of a host that is as its surfaces say."""


# -- what is not known --------------------------------------------------------------------------


def overloaded() -> Told:
    """The draft serves what only the other profile can; nobody switches."""
    _, told = play(CROSSING, [0.1, 0.9], "restart", "draft", GuardRules(0.0, 0))
    return told


OVERLOADED = overloaded()


def test_the_overload_of_the_tests_below_is_one_that_a_policy_wants_to_leave() -> None:
    wanted = [asked for *_, asked in OVERLOADED.seen if asked and asked[1].action == "switch"]
    assert len(wanted) > 100


@settings(max_examples=20)
@given(
    holes=st.lists(st.tuples(st.integers(0, 1200), st.integers(1, 400)), min_size=1, max_size=6),
    queued_only=st.booleans(),
    mechanism=mechanisms,
)
def test_an_unknown_load_never_switches(
    holes: list[tuple[int, int]], queued_only: bool, mechanism: Mechanism
) -> None:
    dark = {second for begin, length in holes for second in range(begin, begin + length)}
    policy = CostAware(CROSSING, Costs(mechanism, COSTS[mechanism]), noise=NOISE)
    for sample, _, _ in OVERLOADED.seen:
        unknown = sample.time in dark
        if unknown:
            sample = replace(sample, queued=None, generated=None)  # noqa: PLW2901
        if unknown and not queued_only:
            sample = replace(sample, running=None, used_tokens=None)  # noqa: PLW2901
        policy.see(sample, "draft")
        decision = policy.decide("draft", sample.time)
        if unknown:
            assert (decision.action, decision.profile) == ("stay", "draft")


@pytest.mark.parametrize("late", [5.5, 60.0, 3600.0])
def test_an_old_sample_never_switches(late: float) -> None:
    policy = CostAware(CROSSING, Costs("restart", COSTS["restart"]), noise=NOISE)
    for sample, _, _ in OVERLOADED.seen:
        policy.see(sample, "draft")
    now = OVERLOADED.seen[-1][0].time
    assert policy.decide("draft", now).action == "switch"
    assert policy.decide("draft", now + late).action == "stay"


# -- guards -------------------------------------------------------------------------------------


@settings(max_examples=12)
@given(
    parts=st.lists(st.sampled_from([0.0, 0.05, 0.9, 1.1]), min_size=6, max_size=12),
    mechanism=st.sampled_from(["restart", "gated_restart"]),
    budget=st.integers(0, 3),
    dwell=st.sampled_from([0.0, 60.0, 300.0]),
    start=sides,
)
def test_the_budget_and_the_dwell_hold_under_any_load(
    parts: list[float], mechanism: Mechanism, budget: int, dwell: float, start: str
) -> None:
    assume(len(set(parts)) > 1)
    outcome, _ = play(CROSSING, parts, mechanism, start, GuardRules(dwell, budget))
    switches = outcome.switches
    for last in switches:
        within = [s for s in switches if last.asked - HOUR < s.asked <= last.asked]
        assert len(within) <= budget
    for a, b in pairwise(switches):
        assert b.asked >= a.opened + dwell
