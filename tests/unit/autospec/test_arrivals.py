from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.autospec.arrivals import (
    MEAN_OUTPUT,
    MEAN_PROMPT,
    Requests,
    Session,
    clients,
    shaped,
    synthetic,
)

SOURCE = synthetic(4000, 1)
EVEN = Requests("even", (1.0, 2.0, 3.0), (10, 20, 30), (1, 2, 3), 3 / 3600)
"""One a second."""


def test_synthetic_requests_come_once_a_second_and_are_as_large_as_real_ones() -> None:
    assert len(SOURCE) == 4000
    assert SOURCE.at[-1] / 4000 == pytest.approx(1.0, rel=0.06)
    assert SOURCE.hours * 3600 == SOURCE.at[-1]
    assert SOURCE.mean_output == pytest.approx(MEAN_OUTPUT, rel=0.06)
    assert sum(SOURCE.prompt) / 4000 == pytest.approx(MEAN_PROMPT, rel=0.08)
    assert min(SOURCE.output) >= 1
    assert min(SOURCE.prompt) >= 1


def test_a_seed_gives_the_same_requests_and_another_one_others() -> None:
    assert synthetic(50, 3) == synthetic(50, 3)
    assert synthetic(50, 3).at != synthetic(50, 4).at


def test_the_mean_context_counts_a_request_for_as_long_as_it_runs() -> None:
    requests = Requests("two", (0.0, 0.0), (1000, 10), (300, 100), 1.0)
    assert requests.mean_output == 200.0
    assert requests.mean_context == pytest.approx((300 * 1150 + 100 * 60) / 400)


def test_a_rate_quantile_is_that_of_its_windows() -> None:
    """Minutes with 6, 0, 3 and 0 requests."""
    at = (*(float(t) for t in range(6)), 120.0, 121.0, 179.0)
    requests = Requests("minutes", at, (1,) * 9, (1,) * 9, 4 / 60)
    found = [requests.rate_quantile(share) for share in (0.0, 0.4, 0.5, 0.75, 1.0)]
    assert found == pytest.approx([0.0, 0.0, 0.05, 0.1, 0.1])
    assert requests.rate_quantile(1.0, 120.0) == pytest.approx(0.05)


def test_requests_come_at_the_rate_that_is_asked_for() -> None:
    """Two a second, and half a second's worth from 300 s on."""
    made = shaped(EVEN, lambda t: 2.0 if t < 300 else 0.5, 600 / 3600, name="x")
    assert len(made) == 750
    assert sum(at < 300.0 for at in made.at) == pytest.approx(600, abs=1)
    assert made.at[0] == pytest.approx(0.5)
    assert [b - a for a, b in pairwise(made.at[650:])] == pytest.approx([2.0] * 99)
    assert (made.name, made.hours) == ("x", 600 / 3600)


def test_the_source_begins_again_at_its_end_and_the_seed_says_where() -> None:
    made = shaped(EVEN, lambda _: 1.0, 7.5 / 3600, name="x")
    assert made.output == (1, 2, 3, 1, 2, 3, 1)
    assert made.prompt == (10, 20, 30, 10, 20, 30, 10)
    other = shaped(EVEN, lambda _: 1.0, 7.5 / 3600, name="x", seed=1)
    assert other.output == (3, 1, 2, 3, 1, 2, 3)


def test_clumps_of_the_source_stay_clumps() -> None:
    clumped = Requests("clumped", (0.1, 0.2, 3.0), (1,) * 3, (1,) * 3, 3 / 3600)
    made = shaped(clumped, lambda _: 2.0, 60 / 3600, name="x")
    gaps = [b - a for a, b in pairwise(made.at)]
    assert gaps[:3] == pytest.approx([0.05, 1.4, 0.05])


def test_requests_that_all_come_at_once_are_spread_evenly() -> None:
    once = Requests("once", (0.0, 0.0), (1, 1), (1, 1), 1.0)
    made = shaped(once, lambda _: 0.5, 9 / 3600, name="x")
    assert made.at == pytest.approx([2.0, 4.0, 6.0, 8.0])


def test_no_rate_gives_no_requests() -> None:
    assert len(shaped(EVEN, lambda _: 0.0, 1.0, name="x")) == 0


@settings(max_examples=40)
@given(
    rates=st.lists(st.floats(0.0, 3.0), min_size=1, max_size=6),
    seed=st.integers(0, 20),
)
def test_in_every_stretch_as_many_come_as_are_due(rates: list[float], seed: int) -> None:
    """To within the clumps of the source; in order, and within the case."""
    hours = len(rates) * 1000 / 3600
    made = shaped(SOURCE, lambda t: rates[min(int(t / 1000), len(rates) - 1)], hours, name="x",
                  seed=seed)  # fmt: skip
    assert all(a <= b for a, b in pairwise(made.at))
    assert len(made.at) == len(made.prompt) == len(made.output)
    for number, rate in enumerate(rates):
        count = sum(number * 1000 <= at < (number + 1) * 1000 for at in made.at)
        assert abs(count - rate * 1000) <= 6 * math.sqrt(rate * 1000) + 30
    assert all(0 <= at <= hours * 3600 + 1e-6 for at in made.at)


def test_a_client_sends_its_requests_one_after_the_other() -> None:
    made = clients(EVEN, [Session(5.0, 2, 3.0), Session(0.0, 3)], 2.0, name="two")
    assert made.at == (0.0, 0.0, 0.0, 5.0, 3.0)
    assert made.after == (-1, 0, 1, -1, 3)
    assert made.output == (1, 2, 3, 1, 2)
    assert made.prompt == (10, 20, 30, 10, 20)
    assert (made.name, made.hours, made.waits) == ("two", 2.0, True)
    assert clients(EVEN, [Session(0.0, 4)], 1.0, name="x", seed=1).output == (3, 1, 2, 3)


def test_who_sends_one_request_waits_for_nothing() -> None:
    made = clients(EVEN, [Session(2.0, 1), Session(1.0, 1)], 1.0, name="x")
    assert (made.at, made.after, made.waits) == ((1.0, 2.0), (-1, -1), False)
    assert not EVEN.waits


@pytest.mark.parametrize("after", [(-1,), (0, -1), (-1, 1), (-1, 2), (-1, -2)])
def test_a_request_waits_for_an_earlier_one_or_for_none(after: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"after|earlier"):
        Requests("wrong", (0.0, 0.0), (1, 1), (1, 1), 1.0, after)


def test_what_is_to_be_expected_is_the_work_where_clients_wait() -> None:
    assert EVEN.span == EVEN.hours
    assert Requests("x", (0.0,), (1,), (1,), 9.0, work=2.0).span == 2.0


def test_clients_are_counted_from_their_first_request_to_their_last_answer() -> None:
    """0 to 20 s (3 s of thought), 5 to 8 s, 8 to 9 s, 30 to 31 s."""
    sessions = [Session(0.0, 2, 3.0), Session(5.0, 1), Session(8.0, 1), Session(30.0, 1)]
    made = clients(EVEN, sessions, 1.0, name="x")
    assert made.clients([10.0, 7.0, 3.0, 1.0, 1.0]) == 2
    assert made.clients([10.0, 7.0, 3.5, 1.0, 1.0]) == 3
    assert made.clients([2.0, 0.5, 2.0, 1.0, 1.0]) == 2
    assert made.clients([2.0, 0.0, 2.0, 1.0, 1.0]) == 1
    assert EVEN.clients([1.5, 0.5, 0.5]) == 2
