"""What the policy believes, told by simulated hosts that differ from their surfaces."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.autospec.arrivals import Requests, shaped, synthetic
from opsctl.autospec.belief import Belief
from opsctl.autospec.cost import SwitchCost
from opsctl.autospec.load import LoadSample
from opsctl.autospec.pair import Pair
from opsctl.autospec.policy import Decision
from opsctl.autospec.rates import Rates
from opsctl.autospec.simulate import Host, Truth, controlled
from opsctl.autospec.suite import surface

PAIR = Pair(
    surface("draft", {0: {1: 60.0, 8: 240.0, 32: 400.0}}, speculative=True),
    surface("plain", {0: {1: 40.0, 8: 200.0, 32: 600.0}}, speculative=False),
)
SOURCE = synthetic(3000, 2)
RIGHT = Truth()
Told = tuple[LoadSample, str | None]


class Listener:
    """Writes down what a policy is told, and switches when the script says so."""

    name = "listener"

    def __init__(self, switch_at: float | None = None) -> None:
        self.told: list[Told] = []
        self._switch_at = switch_at

    def see(self, sample: LoadSample, serving: str | None) -> None:
        self.told.append((sample, serving))

    def decide(self, serving: str, now: float) -> Decision:
        wanted = now == self._switch_at
        other = PAIR.other(serving)
        return Decision("switch", other, "") if wanted else Decision("stay", serving, "")


def load(rate: float = 0.9, hours: float = 0.5, source: Requests = SOURCE) -> Requests:
    return shaped(source, lambda _: rate, hours, name="even", seed=1)


def told(
    requests: Requests,
    start: str = "plain",
    truth: Truth = RIGHT,
    switch_at: float | None = None,
    cost: SwitchCost = SwitchCost(closed=60.0),  # noqa: B008
) -> list[Told]:
    listener = Listener(switch_at)
    controlled(requests, Host(PAIR, cost, truth), start, listener)
    return listener.told


def believed(samples: list[Told], tempo: float = 1.0) -> Belief:
    belief = Belief(PAIR, tempo)
    for sample, serving in samples:
        belief.see(sample, serving)
    return belief


# -- speed ------------------------------------------------------------------------------------


def test_before_anything_is_seen_the_surface_is_believed() -> None:
    belief = Belief(PAIR)
    assert (belief.factor("plain"), belief.factor("draft")) == (1.0, 1.0)
    assert not belief.known


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.25])
def test_some_minutes_of_load_tell_how_fast_a_profile_really_is(factor: float) -> None:
    truth = Truth({"plain": factor})
    belief = believed(told(load(hours=0.25), truth=truth))
    assert belief.factor("plain") == pytest.approx(factor, rel=0.04)
    assert belief.factor("draft") == 1.0, "of which nothing was seen"


def test_an_engine_that_counts_its_requests_late_is_not_taken_for_a_fast_one() -> None:
    samples = told(load(hours=0.25))
    late = [(replace(each, running=min(each.running or 0, 1)), who) for each, who in samples]
    assert any(
        each.running != other.running for (each, _), (other, _) in zip(samples, late, strict=True)
    )
    assert believed(late).factor("plain") == believed(samples).factor("plain")


def test_a_slow_hour_is_forgotten_when_the_speed_is_back() -> None:
    slow = told(load(hours=0.5), truth=Truth({"plain": 0.7}))
    back = told(load(hours=0.5))
    last = slow[-1][0]
    belief = believed(slow)
    assert belief.factor("plain") < 0.8
    for sample, serving in back:
        belief.see(
            replace(
                sample,
                time=last.time + sample.time,
                arrived=last.arrived + sample.arrived,
                completed=last.completed + sample.completed,
            ),
            serving,
        )
    assert belief.factor("plain") == pytest.approx(1.0, rel=0.06)


def test_a_drop_of_acceptance_is_known_within_minutes() -> None:
    truth = Truth(drop_at=900.0, drop=0.5)
    samples = told(load(0.6, hours=0.35), "draft", truth)
    before = believed([each for each in samples if each[0].time < 900])
    assert before.accepted == pytest.approx(1.0, abs=0.01)
    assert before.factor("draft") == pytest.approx(1.0, rel=0.04)
    after = believed(samples)
    assert after.accepted == pytest.approx(0.5, abs=0.01)
    assert after.factor("draft") == pytest.approx(0.5, rel=0.06)


def test_acceptance_says_nothing_of_the_other_profile() -> None:
    samples = told(load(0.6, hours=0.35), "draft", Truth(drop_at=0.5, drop=0.5))
    assert believed(samples).factor("plain") == 1.0


def test_a_factor_stays_within_bounds_whatever_the_counters_say() -> None:
    samples = told(load(hours=0.2))
    mad = [(replace(s, generated=(s.generated or 0) * 1000), p) for s, p in samples]
    assert believed(mad).factor("plain") == 4.0
    dead = [(replace(s, generated=0), p) for s, p in samples]
    assert 0.25 <= believed(dead).factor("plain") < 0.5


# -- requests ---------------------------------------------------------------------------------


def test_tokens_of_a_request_are_learnt() -> None:
    long = replace(SOURCE, output=tuple(3 * output for output in SOURCE.output))
    requests = load(0.4, hours=1.0, source=long)
    belief = believed(told(requests))
    assert Belief(PAIR).tokens == 200.0
    assert requests.mean_output > 550
    assert belief.tokens == pytest.approx(requests.mean_output, rel=0.08)


def test_tokens_of_a_request_are_learnt_on_a_slower_host_too() -> None:
    requests = load(0.5, hours=1.0)
    belief = believed(told(requests, truth=Truth({"plain": 0.7})))
    assert belief.tokens == pytest.approx(requests.mean_output, rel=0.08)


def test_the_context_is_that_of_the_running_requests() -> None:
    fixed = Requests("f", (1.0, 2.0), (2000, 2000), (200, 200), 2 / 3600)
    belief = believed(told(load(1.0, 0.3, fixed)))
    assert belief.context == pytest.approx(fixed.mean_context, rel=0.03)


# -- load -------------------------------------------------------------------------------------


def test_rates_follow_quickly_and_slowly() -> None:
    rates = Rates(1.0)
    for _ in range(1800):
        rates.see(1.0, 1.0)
    assert (rates.fast, rates.slow) == pytest.approx((1.0, 1.0), rel=0.001)
    for _ in range(60):
        rates.see(3.0, 1.0)
    assert rates.fast == pytest.approx(3.0, abs=0.15)
    assert 1.0 < rates.slow < 1.2
    assert rates.high() == rates.fast, "more than ever before"


def test_the_busiest_hours_of_a_day_are_remembered_and_those_of_the_day_before_not() -> None:
    rates = Rates(1.0)
    for _ in range(2 * 3600):
        rates.see(2.0, 1.0)
    for _ in range(3600):
        rates.see(0.25, 1.0)
    assert rates.high() == pytest.approx(2.0, abs=0.01)
    assert rates.high(0.2) == pytest.approx(0.25, abs=0.01)
    for _ in range(24 * 360):
        rates.see(1.0, 10.0)
    assert rates.high(1.0) == pytest.approx(0.1)


def test_arrivals_that_turn_out_to_be_clients_waiting_are_no_rate() -> None:
    rates = Rates(1.0)
    for _ in range(300):
        rates.see(3.0, 1.0)
    for _ in range(700):
        rates.see(2.0, 1.0)
    rates.waited(700.0, 5.0)
    assert list(rates.past) == [3.0, 0.0, 0.0]
    assert list(rates.past_clients) == [0.0, 5.0, 5.0]
    rates.see(200.0, 200.0, 4.0)
    assert (rates.past[-1], rates.past_clients[-1]) == (0.0, 5.0)


def test_what_came_before_the_clients_stays_a_rate() -> None:
    rates = Rates(1.0)
    for _ in range(700):
        rates.see(2.0, 1.0)
    rates.waited(50.0, 5.0)
    assert list(rates.past) == [2.0, 2.0]


def test_the_first_minute_is_a_plain_mean() -> None:
    rates = Rates(1.0)
    for arrived in (4.0, 0.0, 2.0):
        rates.see(arrived, 1.0)
    assert rates.slow == pytest.approx(1.6, abs=0.5)


def test_what_each_profile_would_have_cost_is_near_what_it_does_cost() -> None:
    requests = load(0.9, hours=1.0)
    belief = believed(told(requests))
    for name in PAIR.names:
        does = sum(sample.in_flight + sample.held for sample, _ in told(requests, name)[1:])
        assert belief.spent[name] == pytest.approx(does, rel=0.25)


# -- clients that wait ------------------------------------------------------------------------


def test_the_rate_at_which_waiting_clients_are_served_is_no_busy_time() -> None:
    rates = Rates(1.0)
    for _ in range(600):
        rates.see(50.0, 1.0, clients=40.0)
    assert rates.fast == pytest.approx(50.0)
    assert rates.high() == 0.0
    rates.see(50.0, 1.0)
    assert rates.high() == rates.fast, "now they do not wait"


def test_the_most_clients_of_a_day_are_remembered_when_they_have_gone() -> None:
    rates = Rates(1.0)
    for second in range(300):
        rates.see(1.0, 1.0, clients=40.0 if second < 200 else 10.0)
    for _ in range(300):
        rates.see(1.0, 1.0)
    assert rates.clients is None
    assert rates.high_clients() == 40.0
    assert rates.high_clients(0.2) == 0.0


def test_clients_that_wait_now_are_the_most_if_there_never_were_more() -> None:
    rates = Rates(1.0)
    rates.see(1.0, 1.0, clients=40.0)
    assert rates.high_clients() == 40.0


def waiting(
    clients: int, seconds: int, *, after: LoadSample | None = None, rate: int = 1
) -> list[LoadSample]:
    """As many requests as clients each second, of which `rate` are answered and asked again."""
    begin = after if after is not None else LoadSample(0.0)
    return [
        LoadSample(
            begin.time + second,
            clients,
            0,
            in_flight=clients,
            arrived=begin.arrived + rate * second,
            completed=begin.completed + rate * second,
        )
        for second in range(1, seconds + 1)
    ]


def test_what_was_begun_before_a_gap_says_nothing_of_the_clients_after_it() -> None:
    """Nobody for a quarter of a minute, then nothing is known for an hour."""
    before = waiting(40, 600)
    nobody = waiting(0, 15, after=before[-1], rate=0)
    later = replace(nobody[-1], time=nobody[-1].time + 3600.0)
    after = waiting(40, 8, after=later, rate=0)
    belief = believed([(sample, "plain") for sample in [*before, *nobody, *after]])
    assert belief.clients == 40


def test_whoever_keeps_coming_to_a_closed_gate_is_no_client_that_waits() -> None:
    """Nor later on, when the same number of requests looks like one again."""
    steady = waiting(5, 600)
    last = steady[-1]
    gate = [
        replace(last, time=last.time + n, in_flight=0, held=5 + n, arrived=last.arrived + n)
        for n in range(1, 61)
    ]
    again = waiting(5, 1200, after=gate[-1])
    belief = believed([(sample, "plain") for sample in steady])
    assert belief.clients == 5
    for sample in gate:
        belief.see(sample, None)
    for sample in again:
        belief.see(sample, "plain")
    assert belief.clients is None


# -- what samples may do ----------------------------------------------------------------------


def test_an_engine_that_begins_its_counters_again_changes_nothing() -> None:
    def begins_again(each: Told) -> Told:
        sample, serving = each
        generated = sample.generated or 0
        return replace(sample, generated=generated % 20_000), serving

    samples = told(load(hours=0.3), truth=Truth({"plain": 0.8}))
    belief = believed([begins_again(each) for each in samples])
    assert belief.factor("plain") == pytest.approx(0.8, rel=0.05)


def test_a_switch_leaves_both_factors_as_they_are() -> None:
    truth = Truth({"plain": 0.8, "draft": 1.2})
    samples = told(load(0.6, hours=0.6), truth=truth, switch_at=1000.0)
    assert None in {serving for _, serving in samples}
    assert samples[-1][1] == "draft"
    belief = believed(samples)
    assert belief.factor("plain") == pytest.approx(0.8, rel=0.04)
    assert belief.factor("draft") == pytest.approx(1.2, rel=0.05)


def test_a_gap_counts_for_nothing() -> None:
    samples = told(load(hours=0.3), truth=Truth({"plain": 0.8}))
    gone = [each for each in samples if not 300 < each[0].time < 700]
    belief = believed(gone)
    assert belief.factor("plain") == pytest.approx(0.8, rel=0.05)
    assert belief.rates.seconds == pytest.approx(len(gone) - 2)
    assert belief.rates.slow == pytest.approx(0.9, rel=0.15)


def test_an_unknown_load_is_told_as_unknown() -> None:
    belief = Belief(PAIR)
    belief.see(LoadSample(1.0, running=1, queued=0), "plain")
    assert belief.known
    for unknown in (LoadSample(2.0, running=None, queued=0), LoadSample(3.0, running=1)):
        belief.see(unknown, "plain")
        assert not belief.known
    belief.see(LoadSample(4.0, running=1, queued=2, held=3), "plain")
    assert (belief.known, belief.demand) == (True, 6)


def unknown(sample: LoadSample) -> LoadSample:
    return replace(sample, running=None, queued=None, used_tokens=None, accept_length=None,
                   generated=None)  # fmt: skip


@pytest.mark.parametrize("every", [2, 3, 60])
def test_an_engine_that_now_and_then_tells_nothing_is_believed_all_the_same(every: int) -> None:
    samples = told(load(hours=0.3), truth=Truth({"plain": 0.8}))
    holed = [
        (unknown(sample) if int(sample.time) // every % 3 == 1 else sample, serving)
        for sample, serving in samples
    ]
    belief = believed(holed)
    assert belief.factor("plain") == pytest.approx(0.8, rel=0.1)


def test_requests_that_end_unseen_do_not_make_requests_small() -> None:
    requests = load(hours=0.6)
    samples = told(requests)
    holed = [(unknown(s) if 300 < s.time < 1500 else s, serving) for s, serving in samples]
    assert believed(holed).tokens == pytest.approx(requests.mean_output, rel=0.1)


def test_a_counter_without_the_load_beside_it_is_no_speed() -> None:
    samples = told(load(hours=0.3), truth=Truth({"plain": 0.8}))
    holed = [
        (replace(sample, running=None) if 300 < sample.time < 600 else sample, serving)
        for sample, serving in samples
    ]
    assert believed(holed).factor("plain") == pytest.approx(0.8, rel=0.1)


def _any_samples() -> st.SearchStrategy[list[Told]]:
    count = st.one_of(st.none(), st.integers(0, 2000))
    counter = st.integers(0, 10**5)
    sample = st.builds(
        LoadSample,
        time=st.floats(0, 8),  # since the one before
        running=count,
        queued=count,
        held=st.integers(0, 1000),
        in_flight=st.integers(0, 1000),
        arrived=counter,
        used_tokens=st.one_of(st.none(), counter),
        accept_length=st.one_of(st.none(), st.floats(0.0, 20.0)),
        completed=counter,
        generated=st.one_of(st.none(), counter),
    )
    serving = st.sampled_from(["draft", "plain", None])
    return st.lists(st.tuples(sample, serving), min_size=1, max_size=60)


@settings(max_examples=60)
@given(samples=_any_samples())
def test_whatever_is_told_every_number_stays_one(samples: list[Told]) -> None:
    now, in_order = 0.0, []
    for sample, serving in samples:
        now += 0.1 + sample.time
        in_order.append((replace(sample, time=now), serving))
    belief = believed(in_order)
    numbers = [belief.tokens, belief.context, belief.rates.fast, belief.rates.slow]
    numbers += [*belief.queue.values(), *belief.spent.values(), belief.accepted]
    assert all(0 <= number < 1e18 for number in numbers)
    for name in PAIR.names:
        assert belief.service(name).capacity > 0
