from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.config.weekly import MINUTES, format_clock, format_days, parse_clock, parse_days


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("mon", {0}),
        ("mon-fri", {0, 1, 2, 3, 4}),
        ("fri-mon", {4, 5, 6, 0}),
        ("sat,sun", {5, 6}),
        ("mon-tue, sat", {0, 1, 5}),
        ("daily", set(range(7))),
    ],
)
def test_days_are_read(text: str, days: set[int]) -> None:
    assert parse_days(text) == days


@pytest.mark.parametrize("text", ["", "monday", "mon-", "-mon", "mon,,tue", "Mon", "8"])
def test_what_is_no_day_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write days as"):
        parse_days(text)


@pytest.mark.parametrize(
    "text", ["", "2:00", "24:01", "25:00", "02:60", "0200", "02:00:00", "٠٢:00"]
)
def test_what_is_no_time_of_day_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a time of day"):
        parse_clock(text)


def test_times_are_read() -> None:
    assert [parse_clock(text) for text in ("00:00", "02:30", "24:00")] == [0, 150, MINUTES]


@given(st.frozensets(st.integers(0, 6), min_size=1))
def test_days_are_read_as_they_are_shown(days: frozenset[int]) -> None:
    assert parse_days(format_days(days)) == days


@given(st.integers(0, MINUTES))
def test_times_are_read_as_they_are_shown(minutes: int) -> None:
    assert parse_clock(format_clock(minutes)) == minutes
