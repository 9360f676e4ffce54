"""Figures of the window: usage says how many, events say when, however many tokens one carries."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.bench.window import Window, figures, quantiles
from tests.support.bench import outcome


@pytest.mark.parametrize("each", [1, 2, 4, 8])
def test_speed_does_not_depend_on_how_many_tokens_an_event_carries(each: int) -> None:
    """Four streams of 50 tok/s each: counting events would say 200, 100, 50, 25."""
    streams = [
        outcome(begun=0.001 * number, gap=0.02 * each, events=1000 // each, each=each)
        for number in range(4)
    ]
    found = figures(streams, Window(2.0, 12.0))
    assert found.throughput == pytest.approx(200, rel=0.01)
    assert found.per_user == pytest.approx(50, rel=0.01)
    assert found.tpot is not None
    assert found.tpot.p50 == pytest.approx(0.02, rel=0.01)


def test_gaps_are_reported_between_events_not_between_tokens() -> None:
    found = figures([outcome(gap=0.08, events=200, each=4)], Window(2.0, 12.0))
    assert found.event_gap is not None
    assert found.event_gap.p50 == pytest.approx(0.08)
    assert found.tpot is not None
    assert found.tpot.p50 == pytest.approx(0.02, rel=0.01)


def test_the_first_event_carries_one_token_whatever_the_others_do() -> None:
    """Else a short speculative answer would look slower than it was: 1 + 25 * 2.52 tokens."""
    found = figures([outcome(gap=0.03, events=26, tokens=64, asked=64)], Window(0.0, 5.0))
    assert found.tpot is not None
    assert found.tpot.p50 == pytest.approx(0.03 * 25 / 63)
    assert found.tokens == pytest.approx(64)


@given(st.integers(1, 300), st.integers(1, 8), st.floats(0.0, 20.0))
def test_two_windows_side_by_side_count_every_token_once(
    events: int, each: int, cut: float
) -> None:
    answer = outcome(events=events, each=each)
    before, after = Window(-1.0, cut), Window(cut, 50.0)
    total = sum(figures([answer], window).tokens for window in (before, after))
    assert total == pytest.approx(events * each)


def test_ramp_and_drain_do_not_count() -> None:
    slow_start = outcome(begun=0.0, gap=1.0, events=5)
    steady = outcome(begun=5.0, gap=0.02, events=500)
    slow_end = outcome(begun=16.0, gap=1.0, events=5)
    found = figures([slow_start, steady, slow_end], Window(6.0, 14.0))
    assert found.throughput == pytest.approx(50, rel=0.01)
    assert found.streams == pytest.approx(1.0, rel=0.01)


def test_many_streams_that_answer_in_one_step_are_not_counted_by_halves() -> None:
    """250 streams at 3 tok/s: a window cut in the midst of a step would be off by a third of one.

    Both edges are the last event seen by then, so any window gives the same speed.
    """
    streams = [outcome(begun=0.0, first=0.5 + n * 1e-5, gap=1 / 3, events=200) for n in range(250)]
    for shift in (0.0, 0.1, 0.2, 0.3):
        found = figures(streams, Window(10.0 + shift, 20.0 + 2 * shift))
        assert found.throughput == pytest.approx(750, rel=0.003)


def test_time_to_first_token_is_of_requests_sent_in_the_window() -> None:
    early = outcome(begun=0.0, first=9.0, events=500)
    inside = [outcome(begun=10.0 + n, first=0.2, events=20) for n in range(3)]
    found = figures([early, *inside], Window(9.5, 14.0))
    assert found.ttft is not None
    assert found.ttft.p99 == pytest.approx(0.2)


def test_failed_requests_count_nowhere() -> None:
    found = figures([outcome(ok=False, why="status 500", events=500)], Window(1.0, 5.0))
    assert (found.tokens, found.events, found.ttft) == (0, 0, None)


def test_nothing_at_all_gives_zeros_and_no_quantiles() -> None:
    found = figures([], Window(0.0, 0.0))
    assert (found.tokens, found.throughput, found.per_user, found.tpot) == (0, 0.0, 0.0, None)


@given(st.integers(0, 2**32), st.sampled_from([1, 2, 3]), st.floats(0.0, 0.05))
def test_jitter_and_mixed_events_change_the_speed_by_little(
    seed: int, most: int, jitter: float
) -> None:
    """Events of 1 to `most` tokens, each up to 50 ms late, give the speed that was there."""
    rng = random.Random(seed)
    streams = []
    for stream in range(8):
        at, times, tokens, last = 0.1 + stream * 0.013, [], 0, 0.0
        while at < 30.0:
            carried = rng.randint(1, most)
            tokens += carried
            at += 0.02 * carried
            last = max(last, at + rng.uniform(0.0, jitter))
            times.append(last)
        streams.append(outcome(times=times, tokens=tokens, asked=tokens))
    assert figures(streams, Window(3.0, 27.0)).throughput == pytest.approx(400, rel=0.03)


@given(st.lists(st.floats(0, 1e3), min_size=1))
def test_quantiles_are_ordered_and_within_the_values(values: list[float]) -> None:
    found = quantiles(values)
    assert found is not None
    assert min(values) <= found.p50 <= found.p90 <= found.p99 <= max(values)


def test_quantiles_of_nothing_are_none() -> None:
    assert quantiles([]) is None
