"""The cost-aware policy: what it starts from, weighs and says, by samples and by simulation."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from opsctl.autospec.arrivals import Requests, shaped
from opsctl.autospec.cost import Costs, Mechanism, SwitchCost
from opsctl.autospec.cost_aware import CostAware
from opsctl.autospec.guards import GuardRules
from opsctl.autospec.load import LoadSample
from opsctl.autospec.pair import Pair
from opsctl.autospec.policy import Decision
from opsctl.autospec.simulate import Host, Outcome, Truth, controlled, scheduled
from opsctl.autospec.suite import surface

PLAIN = surface("plain", {0: {1: 40.0, 8: 280.0, 64: 900.0}}, speculative=False)
CROSSING = Pair(
    surface("draft", {0: {1: 160.0, 8: 170.0, 64: 170.0}}, speculative=True), PLAIN
)  # fmt: skip
"""Alone four times as fast with drafts; many can only be served without."""
WINS = Pair(
    surface("draft", {0: {1: 80.0, 8: 560.0, 64: 1800.0}}, speculative=True), PLAIN
)  # fmt: skip
LOSES = Pair(
    surface("draft", {0: {1: 30.0, 8: 200.0, 64: 600.0}}, speculative=True), PLAIN
)  # fmt: skip
EVEN = Requests("even", (1.0,), (100,), (200,), 1 / 3600)
HOUR = 3600.0
QUIET, BUSY = 0.1, 2.5
"""Requests/s."""
RESTART = SwitchCost(closed=60.0)
RIGHT = Truth()


def load(rate: Callable[[float], float], hours: float = 2.0) -> Requests:
    return shaped(EVEN, rate, hours, name="made")


def policy(pair: Pair, cost: SwitchCost = RESTART, mechanism: Mechanism = "restart") -> CostAware:
    return CostAware(pair, Costs(mechanism, cost))


class Heard:
    """A policy, and every decision that was asked for."""

    name = "heard"

    def __init__(self, inner: CostAware) -> None:
        self._inner = inner
        self.said: list[tuple[float, Decision]] = []

    def see(self, sample: LoadSample, serving: str | None) -> None:
        self._inner.see(sample, serving)

    def decide(self, serving: str, now: float) -> Decision:
        self.said.append((now, self._inner.decide(serving, now)))
        return self.said[-1][1]

    @property
    def switches(self) -> list[tuple[float, Decision]]:
        return [(at, decision) for at, decision in self.said if decision.action == "switch"]


def play(
    pair: Pair,
    requests: Requests,
    start: str,
    *,
    cost: SwitchCost = RESTART,
    truth: Truth = RIGHT,
) -> tuple[Outcome, Heard]:
    heard = Heard(policy(pair, cost))
    host = Host(pair, cost, truth, GuardRules(dwell=60.0, switches_per_hour=6))
    return controlled(requests, host, start, heard), heard


def steady(inner: CostAware, serving: str, count: int, *, until: float, rate: float = 0.0) -> float:
    """Tell a policy of `count` running requests until then, as many ending as come."""
    now = inner.belief.rates.seconds
    while now < until:
        now += 1.0
        done = int(rate * now)
        inner.see(
            LoadSample(now, count, 0, in_flight=count, arrived=count + done, completed=done),
            serving,
        )
    return now


# -- where to start -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pair", "wanted"), [(WINS, "draft"), (LOSES, "plain"), (CROSSING, "plain")]
)
def test_it_starts_with_drafts_only_where_they_are_nowhere_slower(pair: Pair, wanted: str) -> None:
    assert policy(pair).start == wanted


def test_what_is_slower_within_the_noise_counts_as_equal() -> None:
    nearly = {point.concurrency: point.tok_s * 0.98 for point in PLAIN.points}
    pair = Pair(surface("draft", {0: nearly}, speculative=True), PLAIN)
    assert policy(pair).start == "draft"
    assert CostAware(pair, Costs(), noise=0.01).start == "plain"


# -- unknown ------------------------------------------------------------------------------------


def test_without_a_sample_it_stays() -> None:
    decision = policy(CROSSING).decide("draft", 5.0)
    assert (decision.action, decision.profile) == ("stay", "draft")
    assert "unknown is not idle" in decision.reason


# -- overload -----------------------------------------------------------------------------------


def test_overload_is_left_at_once_and_urgently() -> None:
    requests = load(lambda t: QUIET if t < HOUR / 2 else BUSY, 1.0)
    _, heard = play(CROSSING, requests, "draft", cost=SwitchCost(closed=240.0))
    (at, decision), *_ = heard.switches
    assert HOUR / 2 < at < HOUR / 2 + 60
    assert (decision.profile, decision.urgent) == ("plain", True)
    assert decision.reason == "more comes than draft can serve, and plain can serve more"


def test_a_short_burst_is_not_overload() -> None:
    """Ten requests within a few seconds in a quiet hour."""
    burst = load(lambda t: 3.0 if 1800 <= t < 1804 else QUIET, 0.7)
    _, heard = play(CROSSING, burst, "draft")
    assert not [decision for _, decision in heard.switches if decision.urgent]


def test_more_than_either_can_serve_goes_to_the_sturdy_one_and_stays_there() -> None:
    outcome, _ = play(CROSSING, load(lambda _: 6.0, 0.3), "draft")
    assert [switch.target for switch in outcome.switches] == ["plain"]
    outcome, _ = play(CROSSING, load(lambda _: 6.0, 0.3), "plain")
    assert outcome.switches == ()


def test_after_an_idle_hour_the_first_request_is_not_met_by_a_restart() -> None:
    requests = Requests("three", (3605.0, 3610.0, 3615.0), (10,) * 3, (200,) * 3, 1.1)
    outcome, _ = play(CROSSING, requests, "plain", cost=SwitchCost(closed=240.0))
    assert outcome.switches == ()


def test_the_sturdy_one_is_the_one_that_can_serve_more() -> None:
    assert (policy(CROSSING).sturdy, policy(WINS).sturdy) == ("plain", "draft")
    assert policy(LOSES).sturdy == "plain"


# -- going and staying ---------------------------------------------------------------------------


def test_a_long_quiet_night_is_worth_a_round_trip() -> None:
    requests = load(lambda _: QUIET, 6.0)
    outcome, heard = play(CROSSING, requests, "plain")
    assert [switch.target for switch in outcome.switches] == ["draft"]
    host = Host(CROSSING, RESTART)
    fixed = scheduled(requests, host, "plain").request_seconds
    assert outcome.request_seconds < 0.6 * fixed
    (_, decision), *_ = heard.switches
    assert "staying on plain has cost" in decision.reason
    assert not decision.urgent


def test_a_quiet_quarter_of_an_hour_is_not_worth_a_long_restart() -> None:
    requests = load(lambda t: BUSY if t % 3600 >= 900 else QUIET, 3.0)
    outcome, _ = play(CROSSING, requests, "plain", cost=SwitchCost(closed=240.0))
    assert outcome.switches == ()


def test_nothing_is_lost_by_being_wrong_from_the_start_for_long() -> None:
    for pair, start, right in ((WINS, "plain", "draft"), (LOSES, "draft", "plain")):
        outcome, _ = play(pair, load(lambda _: 1.0, 3.0), start)
        assert [switch.target for switch in outcome.switches] == [right]
        assert outcome.switches[0].asked < 1800


def test_a_host_that_is_not_as_measured_is_found_out() -> None:
    """Half as fast with drafts as the surface says: slower than without, at any load."""
    outcome, _ = play(WINS, load(lambda _: 1.0, 3.0), "draft", truth=Truth({"draft": 0.35}))
    assert [switch.target for switch in outcome.switches] == ["plain"]


def test_a_draft_that_is_not_accepted_any_more_is_left() -> None:
    truth = Truth(drop_at=HOUR, drop=0.3)
    outcome, _ = play(WINS, load(lambda _: 1.0, 3.0), "draft", truth=truth)
    assert [switch.target for switch in outcome.switches] == ["plain"]
    assert HOUR < outcome.switches[0].asked < HOUR + 1200


def test_what_costs_more_is_done_later() -> None:
    begun = []
    for closed in (5.0, 60.0, 240.0):
        requests = load(lambda _: QUIET, 5.0)
        outcome, _ = play(CROSSING, requests, "plain", cost=SwitchCost(closed=closed))
        begun.append(outcome.switches[0].asked if outcome.switches else math.inf)
    assert begun == sorted(begun)
    assert begun[0] < begun[-1]


# -- costs --------------------------------------------------------------------------------------


def test_new_costs_count_from_the_next_decision_on() -> None:
    inner = policy(CROSSING)
    now = steady(inner, "plain", 2, until=300.0, rate=0.2)
    before = inner.decide("plain", now).numbers["price"]
    inner.learn(Costs("restart", SwitchCost(closed=600.0)))
    after = inner.decide("plain", now).numbers["price"]
    assert before is not None
    assert after is not None
    assert after > 10 * before > 0
    inner.learn(Costs("in_engine"))
    assert inner.decide("plain", now).action == "switch"


def test_a_free_switch_is_made_for_more_than_the_noise_only() -> None:
    for gain, action in ((1.02, "stay"), (1.04, "switch")):
        faster = {point.concurrency: point.tok_s * gain for point in PLAIN.points}
        inner = policy(Pair(surface("draft", {0: faster}, speculative=True), PLAIN), SwitchCost())
        now = steady(inner, "plain", 4, until=30.0)
        decision = inner.decide("plain", now)
        assert decision.action == action
        assert decision.numbers["ratio"] == pytest.approx(gain, abs=0.001)
        assert decision.numbers["streams"] == 4


# -- what it says -------------------------------------------------------------------------------


def test_a_decision_says_what_would_change_it() -> None:
    inner = policy(CROSSING)
    now = steady(inner, "plain", 2, until=300.0, rate=0.2)
    decision = inner.decide("plain", now)
    assert decision.action == "stay"
    assert "a round trip costs" in decision.reason
    assert "request-seconds" in decision.reason
    assert decision.change.startswith("draft when staying has cost ")
    now = steady(inner, "draft", 2, until=now + 150.0, rate=0.2)
    decision = inner.decide("draft", now)
    assert decision.action == "stay"
    assert "a switch costs" in decision.reason
    assert "at once when more comes than draft can serve" in decision.change


def test_the_numbers_are_those_of_the_sentence() -> None:
    inner = policy(CROSSING)
    now = steady(inner, "plain", 2, until=300.0, rate=0.2)
    decision = inner.decide("plain", now)
    assert {"lost", "enough", "price", "way_back"} <= set(decision.numbers)
    enough, lost = decision.numbers["enough"], decision.numbers["lost"]
    assert f"has cost {enough:.0f} request-seconds (now {lost:.0f})" in decision.change
    trip = (decision.numbers["price"] or 0) + (decision.numbers["way_back"] or 0)
    assert f"a round trip costs {trip:.0f} request-seconds" in decision.reason


def test_a_price_does_not_outlive_the_load_it_was_made_for() -> None:
    """A burst right after a price was made: nobody waits for the old one to run out."""
    inner = policy(CROSSING)
    now = steady(inner, "draft", 1, until=900.0, rate=0.1)
    before = inner.decide("draft", now)
    for seconds in range(1, 4):
        count = 4 * seconds
        inner.see(
            LoadSample(now + seconds, count, 0, in_flight=count, arrived=91 + count, completed=90),
            "draft",
        )
    after = inner.decide("draft", now + 3)
    assert float(after.numbers["price"] or 0) > 2 * float(before.numbers["price"] or 0) > 0


def test_a_handful_of_requests_is_too_little_for_a_round_trip() -> None:
    inner = policy(CROSSING)
    for now in range(1, 19):
        inner.see(LoadSample(now, 1, 0, in_flight=1, arrived=now, completed=now - 1), "plain")
    decision = inner.decide("plain", 18.0)
    assert decision.action == "stay"
    assert decision.reason.startswith("17 requests have come: too few")
    assert decision.change == "nothing before 20 requests have come"


def test_an_idle_night_on_a_new_host_changes_nothing() -> None:
    inner = policy(CROSSING)
    now = steady(inner, "plain", 0, until=8 * HOUR)
    assert inner.decide("plain", now).action == "stay"


def test_the_same_samples_lead_to_the_same_decisions() -> None:
    requests = load(lambda t: BUSY if t % 3000 >= 1500 else QUIET, 2.0)
    first, heard = play(CROSSING, requests, "plain")
    second, again = play(CROSSING, requests, "plain")
    assert first == second
    assert heard.said == again.said
