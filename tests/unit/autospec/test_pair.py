from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.autospec.pair import Pair, Speed
from opsctl.autospec.suite import surface

RATES = {1: 40.0, 4: 100.0, 32: 300.0, 64: 280.0}
FLAT = Speed(surface("plain", {0: RATES}, speculative=False))
ROWS = {0: RATES, 8000: {1: 20.0, 4: 60.0, 32: 120.0}}
DEEP = Speed(surface("plain", ROWS, speculative=False))
PAIR = Pair(
    surface("draft", {0: {1: 60.0, 8: 90.0}}, speculative=True),
    surface("plain", {0: RATES}, speculative=False),
)


@pytest.mark.parametrize("speed", [FLAT, DEEP])
@pytest.mark.parametrize("context", [0, 8000])
def test_whole_numbers_of_streams_are_as_on_the_surface(speed: Speed, context: int) -> None:
    for streams in range(1, 65):
        wanted = speed.surface.tok_s(streams, context)
        assert speed.tok_s(streams, context) == pytest.approx(wanted, rel=0.01)
    assert FLAT.tok_s(4, context) == pytest.approx(100.0)


@given(context=st.floats(0, 300_000), streams=st.integers(1, 100))
def test_between_measured_contexts_a_table_is_off_by_less_than_a_few_percent(
    context: float, streams: int
) -> None:
    wanted = DEEP.surface.tok_s(streams, context)
    assert DEEP.tok_s(streams, context) == pytest.approx(wanted, rel=0.01)


def test_a_part_of_a_stream_has_that_part_of_its_speed() -> None:
    assert FLAT.tok_s(0.25, 0) == pytest.approx(10.0)
    assert FLAT.tok_s(0, 0) == 0.0


def test_between_whole_numbers_the_speed_lies_between() -> None:
    low, middle, high = (FLAT.tok_s(streams, 0) for streams in (2, 2.5, 3))
    assert middle == pytest.approx((low + high) / 2)
    below, above = FLAT.tok_s(31.999, 0), FLAT.tok_s(32, 0)
    assert below == pytest.approx(above, rel=0.001)


def test_more_streams_than_measured_are_as_fast_as_the_most() -> None:
    assert FLAT.tok_s(64, 0) == FLAT.tok_s(65, 0) == FLAT.tok_s(9999.5, 0) == pytest.approx(280.0)


def test_the_capacity_is_the_best_of_any_number_not_that_of_the_most() -> None:
    assert FLAT.capacity(0) == pytest.approx(300.0)
    assert DEEP.capacity(8000) == pytest.approx(120.0, rel=0.01)
    assert DEEP.capacity(0) == pytest.approx(300.0)


def test_a_negative_context_is_none() -> None:
    assert DEEP.tok_s(4, -5.0) == DEEP.tok_s(4, 0.0)


def test_a_longer_context_never_is_faster_where_no_row_says_so() -> None:
    speeds = [DEEP.tok_s(8, context) for context in range(0, 9000, 250)]
    assert all(a >= b for a, b in pairwise(speeds))


def test_a_pair_knows_its_profiles_the_speculative_one_first() -> None:
    assert PAIR.names == ("draft", "plain")
    assert (PAIR.other("draft"), PAIR.other("plain")) == ("plain", "draft")
    assert PAIR.speeds["draft"].tok_s(1, 0) == pytest.approx(60.0)
    assert PAIR.speeds["plain"].tok_s(1, 0) == pytest.approx(40.0)
