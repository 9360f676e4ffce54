from __future__ import annotations

import pytest

from opsctl.autospec.arrivals import Requests, synthetic
from opsctl.autospec.pair import Pair
from opsctl.autospec.patterns import BUSY, PATTERNS, QUIET
from opsctl.autospec.suite import surface

SOURCE = synthetic(4000, 1)
PAIR = Pair(
    surface("draft", {0: {1: 60.0, 8: 90.0}}, speculative=True),
    surface("plain", {0: {1: 40.0, 32: 300.0}}, speculative=False),
)
MEANS = {
    "quiet": QUIET,
    "busy": BUSY,
    "diurnal": 0.37,
    "bursts": (QUIET * 900 + BUSY * 600) / 1500,
    "flapping": (QUIET + BUSY) / 2,
    "ramp": (0.02 + 0.85) / 2,
    "spike": QUIET + (BUSY - QUIET) / 8,
}
"""Share of the most tok/s of the faster profile."""


def made(name: str, hours: float | None = None, seed: int = 0) -> Requests:
    return PATTERNS[name].requests(SOURCE, PAIR, hours=hours, seed=seed)


def offered(requests: Requests, begin: float, end: float) -> float:
    """Tokens that are asked for in these seconds, by what could be served at most."""
    tokens = sum(
        output
        for at, output in zip(requests.at, requests.output, strict=True)
        if begin <= at < end
    )  # fmt: skip
    return tokens / (end - begin) / 300.0


def test_all_patterns_are_there() -> None:
    assert list(PATTERNS) == ["quiet", "busy", "diurnal", "bursts", "flapping", "ramp", "spike"]
    assert all(pattern.name == name and pattern.about for name, pattern in PATTERNS.items())


@pytest.mark.parametrize("name", PATTERNS)
def test_the_host_is_asked_for_the_share_of_what_it_can_that_the_pattern_says(name: str) -> None:
    requests = made(name)
    assert requests.hours == PATTERNS[name].hours
    assert offered(requests, 0, requests.hours * 3600) == pytest.approx(MEANS[name], rel=0.05)


def test_a_day_is_least_at_four_and_most_at_sixteen() -> None:
    day = made("diurnal")
    by_hour = [offered(day, hour * 3600, hour * 3600 + 3600) for hour in range(24)]
    assert 3 <= by_hour.index(min(by_hour)) <= 4
    assert by_hour.index(max(by_hour)) in range(13, 19)
    assert offered(day, 3.5 * 3600, 4.5 * 3600) == pytest.approx(0.04, abs=0.02)
    assert offered(day, 15 * 3600, 17 * 3600) == pytest.approx(0.70, abs=0.05)


def test_bursts_last_ten_minutes_of_twenty_five() -> None:
    found = made("bursts")
    for begin in (0, 1500, 15_000):
        assert offered(found, begin, begin + 900) == pytest.approx(QUIET, abs=0.05)
        assert offered(found, begin + 900, begin + 1500) == pytest.approx(BUSY, abs=0.2)


def test_flapping_turns_every_hundred_seconds() -> None:
    found = made("flapping")
    quiet = [offered(found, t, t + 100) for t in range(0, 14_000, 200)]
    busy = [offered(found, t + 100, t + 200) for t in range(0, 14_000, 200)]
    assert sum(quiet) / len(quiet) == pytest.approx(QUIET, abs=0.03)
    assert sum(busy) / len(busy) == pytest.approx(BUSY, abs=0.06)


def test_a_ramp_rises_to_85_percent() -> None:
    found = made("ramp")
    parts = [offered(found, t * 5400, (t + 1) * 5400) for t in range(4)]
    assert parts == pytest.approx([0.124, 0.331, 0.539, 0.746], abs=0.05)


def test_a_spike_is_an_eighth_of_the_time_from_the_middle_on() -> None:
    found = made("spike", hours=16)
    assert offered(found, 8 * 3600, 10 * 3600) == pytest.approx(BUSY, rel=0.1)
    assert offered(found, 0, 8 * 3600) == pytest.approx(QUIET, rel=0.1)
    assert offered(found, 10 * 3600, 16 * 3600) == pytest.approx(QUIET, rel=0.1)


def test_fewer_hours_make_the_same_shape_shorter() -> None:
    found = made("spike", hours=2)
    assert found.hours == 2
    assert offered(found, 3600, 4500) == pytest.approx(BUSY, rel=0.2)


def test_a_seed_gives_the_same_requests_and_another_one_others() -> None:
    assert made("quiet", 1.0, 2) == made("quiet", 1.0, 2)
    assert made("quiet", 1.0, 2).at != made("quiet", 1.0, 3).at
