"""The cost-aware policy where clients wait for their answers: a closed loop."""

from __future__ import annotations

import pytest

from opsctl.autospec.arrivals import Requests, Session, clients
from opsctl.autospec.cost import SwitchCost
from opsctl.autospec.cost_aware import CostAware
from opsctl.autospec.fluid import step
from opsctl.autospec.guards import GuardRules
from opsctl.autospec.load import LoadSample
from opsctl.autospec.pair import Pair
from opsctl.autospec.policy import Decision
from opsctl.autospec.simulate import Host, Outcome, controlled, scheduled
from opsctl.autospec.suite import surface
from tests.unit.autospec.test_cost_aware import EVEN, RESTART, Heard, policy

PLAIN = surface("plain", {0: {1: 50.0, 8: 350.0, 64: 1200.0}}, speculative=False)
CROSSING = Pair(surface("draft", {0: {1: 75.0, 8: 350.0, 64: 600.0}}, speculative=True), PLAIN)
"""Half as fast again with one client, half as fast with many."""
ALIKE = Pair(surface("draft", {0: {1: 51.0, 8: 356.0, 64: 1220.0}}, speculative=True), PLAIN)
LONG = SwitchCost(closed=240.0)


def always(count: int, each: int) -> Requests:
    return clients(EVEN, [Session(0.0, each)] * count, 24.0, name="clients")


def play(
    requests: Requests, start: str, pair: Pair = CROSSING, cost: SwitchCost = RESTART
) -> tuple[Outcome, Heard, float]:
    """Return also how often the better fixed profile's request-seconds it took."""
    heard = Heard(policy(pair, cost))
    host = Host(pair, cost, rules=GuardRules(dwell=60.0, switches_per_hour=6))
    outcome = controlled(requests, host, start, heard)
    fixed = min(scheduled(requests, host, name).request_seconds for name in pair.names)
    return outcome, heard, outcome.request_seconds / fixed


@pytest.mark.parametrize("cost", [RESTART, LONG])
def test_many_clients_are_not_left_on_the_profile_that_keeps_them_waiting(
    cost: SwitchCost,
) -> None:
    """They never send more than it can serve: nothing but their waiting shows it."""
    requests = always(60, 150)
    outcome, _, ratio = play(requests, "draft", cost=cost)
    assert [switch.target for switch in outcome.switches] == ["plain"]
    assert outcome.switches[0].asked < 180
    assert ratio < 1.25


def test_it_says_that_they_wait() -> None:
    _, heard, _ = play(always(60, 60), "draft", cost=LONG)
    _, decision = heard.switches[0]
    assert decision.reason.startswith("staying on draft has cost ")
    assert "60 clients wait for their answers: plain would save" in decision.reason
    assert decision.numbers["clients"] == 60


def test_few_clients_get_the_faster_profile_when_it_pays_for_the_way_there() -> None:
    """Before it was known that they wait, their rate would have forbidden it for hours."""
    outcome, _, ratio = play(always(1, 6000), "plain", cost=LONG)
    assert [switch.target for switch in outcome.switches] == ["draft"]
    assert outcome.switches[0].asked < 1200
    assert ratio < 1.1


def test_the_way_back_is_priced_at_the_most_clients_there_were() -> None:
    """A busy hour, then one client: going for it is dearer than had it always been one."""
    one = Session(0.0, 3000)
    busy = clients(EVEN, [one, *[Session(0.0, 200)] * 60], 24.0, name="busy first")
    _, heard, _ = play(busy, "plain")
    _, calm, _ = play(always(1, 3000), "plain")
    after_busy, always_calm = (h.said[-1][1].numbers["way_back"] or 0.0 for h in (heard, calm))
    assert after_busy >= 60 * RESTART.closed > 3 * always_calm > 0


def test_the_price_is_what_clients_can_wait_and_no_more() -> None:
    _, heard, _ = play(always(60, 60), "draft", cost=LONG)
    price = heard.switches[0][1].numbers["price"] or 0.0
    assert 60 * 240 < price < 60 * (240 + 60)


def test_nobody_switches_for_less_than_the_noise() -> None:
    outcome, _, _ = play(always(40, 400), "plain", ALIKE)
    assert outcome.switches == ()


def test_clients_in_a_rush_are_no_overload() -> None:
    """60 at once are more than drafts can serve, for a moment; they wait, and that is all."""
    _, heard, _ = play(always(60, 150), "plain")
    assert not any(decision.urgent for _, decision in heard.said[60:])


def test_a_closed_loop_leaves_no_rate_behind_that_only_it_could_reach() -> None:
    """Its rate is what it was served with; as that of an open loop it would forbid everything."""
    inner: CostAware = policy(CROSSING)
    host = Host(CROSSING, RESTART)
    controlled(always(60, 150), host, "plain", inner)
    rates = inner.belief.rates
    assert max(rates.past) < 0.25 * inner.belief.service("plain").capacity
    assert rates.high_clients() == pytest.approx(60, rel=0.1)


def test_what_the_other_profile_would_have_cost_is_its_time_for_the_same_requests() -> None:
    requests = always(60, 150)
    inner = policy(CROSSING, SwitchCost(closed=1e6))
    host = Host(CROSSING, SwitchCost(closed=1e6))
    controlled(requests, host, "plain", inner)
    spent = inner.belief.spent
    other = scheduled(requests, host, "draft").request_seconds
    here = scheduled(requests, host, "plain").request_seconds
    assert spent["draft"] / spent["plain"] == pytest.approx(other / here, rel=0.2)


def test_while_the_gate_is_closed_no_profile_is_said_to_serve_clients() -> None:
    inner = policy(CROSSING)
    host = Host(CROSSING, RESTART)
    controlled(always(40, 60), host, "plain", inner)
    now = inner.belief.rates.seconds
    before = dict(inner.belief.spent)
    for second in range(1, 30):
        inner.see(LoadSample(now + second, 0, 0, held=40, arrived=2400, completed=2400), None)
    assert inner.belief.clients is None or inner.belief.spent == before


def told(inner: CostAware, serving: str, count: int, *, since: int, until: int) -> Decision:
    """So many clients, of which one a second is answered; return what is decided then."""
    for second in range(since + 1, until + 1):
        sample = LoadSample(second, count, 0, in_flight=count, arrived=second, completed=second)
        inner.see(sample, serving)
    return inner.decide(serving, until)


def test_hours_on_the_faster_profile_are_no_credit_for_the_slower_one() -> None:
    inner = policy(CROSSING)
    decision = told(inner, "plain", 60, since=0, until=1200)
    assert inner.belief.clients == 60
    assert decision.numbers["lost"] == 0.0


def test_what_clients_gain_on_a_round_trip_pays_for_the_next_one() -> None:
    """One client has its answers half as fast again: what took 300 s would have taken 450."""
    inner = policy(CROSSING)
    before = told(inner, "draft", 1, since=0, until=600).numbers["purse"] or 0.0
    spent = inner.belief.spent["draft"]
    after = told(inner, "draft", 1, since=600, until=900).numbers["purse"] or 0.0
    assert inner.belief.clients == 1
    assert inner.belief.spent["draft"] - spent == pytest.approx(300)
    assert after - before == pytest.approx(150 + 0.04 * 300, abs=0.1)


def test_on_the_sturdy_profile_clients_gain_nothing_that_pays_for_trips() -> None:
    inner = policy(CROSSING)
    before = told(inner, "plain", 60, since=0, until=600).numbers["purse"] or 0.0
    after = told(inner, "plain", 60, since=600, until=900).numbers["purse"] or 0.0
    assert after - before == pytest.approx(0.04 * 300 * 60, abs=0.1)


def test_clients_are_not_told_of_a_switch_at_once() -> None:
    """More than can be served never comes from them."""
    decision = told(policy(CROSSING), "draft", 1, since=0, until=600)
    assert decision.action == "stay"
    assert decision.change.startswith("plain when staying has cost ")
    assert decision.change.endswith(" request-seconds (now 0)")


def test_what_looked_like_an_overload_is_none_when_clients_are_found() -> None:
    """160 clients that come one after the other, faster than drafts can answer."""
    inner = policy(CROSSING)
    urgent = []
    for second in range(1, 200):
        count = min(2 * second, 160)
        arrived = 5 * second
        sample = LoadSample(
            second, count, 0, in_flight=count, arrived=arrived, completed=arrived - count
        )
        inner.see(sample, "draft")
        urgent.append(inner.decide("draft", second).urgent)
    assert inner.belief.clients == 160
    assert True in urgent
    assert not urgent[-1]


def test_when_clients_no_longer_wait_both_queues_go_on_from_the_requests_there_are() -> None:
    """Nor is anything left to settle: whatever queued at the gate, they have been answered."""
    inner = policy(CROSSING)
    belief = inner.belief
    told(inner, "plain", 8, since=0, until=600)
    for second in range(601, 631):
        inner.see(LoadSample(second, 0, 0, 8, arrived=600, completed=600), None)
    told(inner, "draft", 8, since=630, until=700)
    assert belief.clients == 8

    queues: dict[str, float] = {}
    lost, wanted = [0.0], [0.0]
    for second in range(701, 740):
        count, completed = 8 + 4 * (second - 700), second
        arrived = completed + count - 8
        inner.see(LoadSample(second, count, 0, 0, count, arrived, completed=completed), "draft")
        lost.append(inner.decide("draft", second).numbers["lost"] or 0.0)
        if belief.clients is not None:
            queues, wanted = dict.fromkeys(CROSSING.names, float(count)), [lost[-1]]
            continue
        spent = {}
        for name in CROSSING.names:
            queues[name], spent[name] = step(belief.service(name), queues[name], 5.0, 1.0)
        wanted.append(wanted[-1] + spent["draft"] - spent["plain"])
    assert len(wanted) > 20
    assert lost[-len(wanted) :] == pytest.approx(wanted, abs=0.1)
