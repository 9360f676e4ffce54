"""A queue as a fluid: against small steps, and a switch's price against a simulated one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.autospec.cost import SwitchCost
from opsctl.autospec.fluid import Service, drain_seconds, loop_price, step, switch_price
from opsctl.autospec.pair import Speed
from opsctl.autospec.suite import surface

PLAIN = Speed(surface("plain", {0: {1: 40.0, 8: 200.0, 32: 400.0}}, speculative=False))
DRAFT = Speed(surface("draft", {0: {1: 60.0, 8: 210.0, 32: 250.0}}, speculative=True))
TOKENS = 100.0
plain, draft = Service(PLAIN, 1.0, TOKENS, 0.0), Service(DRAFT, 1.0, TOKENS, 0.0)
services = st.sampled_from([plain, draft])


def test_a_request_alone_ends_after_its_tokens() -> None:
    assert plain.each(1.0) == pytest.approx(0.4)
    assert plain.each(0.3) == pytest.approx(0.4)
    assert draft.each(1.0) == pytest.approx(0.6)


def test_many_share_the_speed_of_as_many_streams() -> None:
    assert plain.each(8.0) * 8 * TOKENS == pytest.approx(200.0)
    assert plain.each(64.0) * 64 * TOKENS == pytest.approx(400.0)
    between = plain.each(8.5) * 8.5 * TOKENS
    assert between == pytest.approx((PLAIN.tok_s(8, 0) + PLAIN.tok_s(9, 0)) / 2)


def test_the_capacity_is_in_requests_and_a_factor_scales_it() -> None:
    assert plain.capacity == pytest.approx(4.0)
    half = Service(PLAIN, 0.5, TOKENS, 0.0)
    assert half.capacity == pytest.approx(2.0)
    assert half.each(8.0) == pytest.approx(plain.each(8.0) / 2)


@given(service=services, share=st.floats(0.001, 0.995))
def test_at_rest_as_many_end_as_come(service: Service, share: float) -> None:
    rate = share * service.capacity
    count = service.settled(rate)
    assert count * service.each(count) == pytest.approx(rate, rel=1e-4)


@given(service=services, count=st.floats(0.05, 31.0))
def test_what_is_at_rest_is_found_from_its_rate(service: Service, count: float) -> None:
    rate = count * service.each(count)
    assert service.settled(rate) == pytest.approx(count, rel=1e-3)


def test_more_than_can_be_served_never_comes_to_rest() -> None:
    assert plain.settled(4.0) == math.inf
    assert plain.settled(5.0) == math.inf
    assert plain.settled(0.0) == pytest.approx(0.0, abs=1e-6)


@given(
    service=services,
    count=st.floats(0.0, 60.0),
    rate=st.floats(0.0, 8.0),
    seconds=st.floats(0.01, 30.0),
)
def test_a_step_is_the_sum_of_many_small_ones_at_the_same_speed(
    service: Service, count: float, rate: float, seconds: float
) -> None:
    each, parts = service.each(count), 4000
    small, total, now = seconds / parts, 0.0, count
    for _ in range(parts):
        middle = now + (rate - each * now) * small / 2
        total += middle * small
        now += (rate - each * middle) * small
    after, spent = step(service, count, rate, seconds)
    assert after == pytest.approx(now, rel=1e-3, abs=1e-3)
    assert spent == pytest.approx(total, rel=1e-3, abs=1e-3)


@given(count=st.floats(0.0, 60.0), rate=st.floats(0.0, 3.5))
def test_steps_of_a_second_come_to_rest_where_they_should(count: float, rate: float) -> None:
    for _ in range(2000):
        count, _spent = step(plain, count, rate, 1.0)
    assert count == pytest.approx(plain.settled(rate), rel=0.01, abs=0.01)


def test_a_drain_takes_as_long_as_small_steps_say() -> None:
    for count in (1.0, 8.0, 40.0):
        left, seconds = count, 0.0
        while left > 0.25:
            left, _ = step(plain, left, 0.0, 0.01)
            seconds += 0.01
        assert drain_seconds(plain, count) == pytest.approx(seconds, rel=0.12, abs=0.7)
    assert drain_seconds(plain, 0.0) == 0.0


def test_a_free_switch_has_no_price() -> None:
    for count, rate in ((0.0, 0.0), (50.0, 3.9)):
        assert switch_price(plain, draft, SwitchCost(), count, rate) == 0.0


def test_nobody_there_and_nobody_coming_makes_a_switch_cost_nothing() -> None:
    assert switch_price(plain, draft, SwitchCost(closed=240.0), 0.0, 0.0) == 0.0


@settings(max_examples=50)
@given(
    rate=st.floats(0.3, 1.8),
    more=st.floats(1.1, 2.0),
    closed=st.floats(20.0, 200.0),
    prepare=st.sampled_from([0.0, 45.0]),
)
def test_a_price_grows_with_the_rate_and_with_how_long_nobody_serves(
    rate: float, more: float, closed: float, prepare: float
) -> None:
    cost, longer = SwitchCost(prepare, closed), SwitchCost(prepare, closed * more)
    count = plain.settled(rate)
    price = switch_price(plain, plain, cost, count, rate)
    assert price > 0
    assert switch_price(plain, plain, longer, count, rate) > price
    busier = rate * more
    assert switch_price(plain, plain, cost, plain.settled(busier), busier) > price


@pytest.mark.parametrize("rate", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("cost", [SwitchCost(closed=120.0), SwitchCost(45.0, 60.0)])
@pytest.mark.parametrize("urgent", [False, True])
def test_a_price_is_what_small_steps_find(rate: float, cost: SwitchCost, urgent: bool) -> None:
    """One queue that is switched, beside one that the next profile has served from the begin."""
    count = draft.settled(min(rate, 2.0))
    wanted = _counted(cost, count, rate, urgent)
    price = switch_price(draft, plain, cost, count, rate, urgent=urgent)
    assert price == pytest.approx(wanted, rel=0.15, abs=5.0)


def test_a_drain_with_nobody_coming_costs_what_is_not_served_faster_meanwhile() -> None:
    """The fluid's drain is a straight line: good to a third."""
    for cost in (SwitchCost(closed=1.0), SwitchCost(closed=120.0)):
        wanted = _counted(cost, 120.0, 0.0, urgent=False)
        assert switch_price(draft, plain, cost, 120.0, 0.0) == pytest.approx(wanted, rel=0.35)


def _counted(cost: SwitchCost, count: float, rate: float, urgent: bool) -> float:
    """Requests too many, added up: until nothing is left of it or an hour is over."""
    small, time, running, held, ideal, total = 0.05, 0.0, count, 0.0, count, 0.0
    closes = 0.0 if urgent else cost.prepare
    opens = math.inf
    while time < 3600:
        gate_open = time < closes or time >= opens
        if gate_open:
            server = plain if time >= opens else draft
            running, held = running + held, 0.0
            running, spent = step(server, running, rate, small)
        else:
            running, spent = step(draft, running, 0.0, small)
            held += rate * small
            spent += held * small
            if opens == math.inf and running <= 0.25:
                opens = max(time, cost.prepare) + cost.closed
                running = 0.0
        ideal, base = step(plain, ideal, rate, small)
        total += spent - base
        time += small
    return max(total, 0.0)


def test_an_urgent_switch_pays_for_what_the_drain_leaves_of_the_preparation() -> None:
    rate, count = 2.0, draft.settled(2.0)
    drain = drain_seconds(draft, count)
    price = switch_price(draft, plain, SwitchCost(100.0, 10.0), count, rate, urgent=True)
    closed = SwitchCost(closed=10.0 + 100.0 - drain)
    assert price == pytest.approx(switch_price(draft, plain, closed, count, rate))
    short = switch_price(draft, plain, SwitchCost(drain / 2, 10.0), count, rate, urgent=True)
    assert short == pytest.approx(switch_price(draft, plain, SwitchCost(0.0, 10.0), count, rate))


def test_a_backlog_that_is_never_worked_off_has_a_price_with_an_end() -> None:
    price = switch_price(plain, draft, SwitchCost(closed=60.0), 40.0, 6.0)
    assert math.isfinite(price)


def test_a_faster_clock_gives_the_same_price() -> None:
    """Everything a quarter as long: a quarter of the request-seconds."""
    rate, quick = 2.0, Service(PLAIN, 4.0, TOKENS, 0.0)
    slow = switch_price(plain, plain, SwitchCost(40.0, 100.0), 10.0, rate)
    fast = switch_price(quick, quick, SwitchCost(10.0, 25.0), 10.0, rate * 4, tempo=0.25)
    assert fast == pytest.approx(slow / 4, rel=1e-6)


def test_clients_wait_for_the_closed_time_and_half_of_the_drain() -> None:
    wait = drain_seconds(draft, 32.0) / 2 + 60.0
    price = loop_price(draft, plain, SwitchCost(closed=60.0), 32.0)
    assert price == pytest.approx(32 * wait)


def test_clients_pay_for_the_preparation_what_the_next_profile_would_have_saved_them() -> None:
    """With 32 of them drafts have 250 tok/s of 400: 3/8 of their time meanwhile."""
    costs = SwitchCost(closed=60.0), SwitchCost(prepare=40.0, closed=60.0)
    without, prepared = (loop_price(draft, plain, cost, 32.0) for cost in costs)
    assert prepared - without == pytest.approx(32 * 40 * 3 / 8)


def test_a_preparation_costs_clients_nothing_when_the_next_profile_is_no_faster() -> None:
    costs = SwitchCost(closed=60.0), SwitchCost(prepare=40.0, closed=60.0)
    without, prepared = (loop_price(plain, draft, cost, 32.0) for cost in costs)
    assert prepared == without > 0


def test_nobody_who_waits_and_a_free_switch_have_no_price() -> None:
    assert loop_price(draft, plain, SwitchCost(closed=60.0), 0.0) == 0.0
    assert loop_price(draft, plain, SwitchCost(), 32.0) == 0.0
