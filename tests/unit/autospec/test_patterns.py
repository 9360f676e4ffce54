from __future__ import annotations

import pytest

from opsctl.autospec.arrivals import Requests, synthetic
from opsctl.autospec.cost import SwitchCost
from opsctl.autospec.pair import Pair
from opsctl.autospec.patterns import ALL, BUSY, CLOSED, PATTERNS, QUIET, Group, Served
from opsctl.autospec.simulate import Host, Outcome, scheduled
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


def test_about_how_many_requests_a_pattern_makes_is_known_before() -> None:
    for name, pattern in ALL.items():
        made_now = pattern.requests(SOURCE, PAIR, hours=4)
        assert pattern.count(SOURCE, PAIR, 4) == pytest.approx(len(made_now), rel=0.05), name


# -- clients that wait ------------------------------------------------------------------------

EVEN = Requests("even", (1.0,), (0,), (200,), 1 / 3600)
"""Answers of 200 tokens."""
SIZES = Pair(
    surface("draft", {0: {1: 100.0, 2: 150.0, 8: 150.0, 120: 150.0}}, speculative=True),
    surface("plain", {0: {1: 40.0, 2: 80.0, 30: 600.0, 120: 600.0}}, speculative=False),
)
"""Two are faster with drafts (150 tok/s by 80), many without (600 by 150, from 30 on)."""


def waiting(name: str, hours: float | None = None) -> Requests:
    return CLOSED[name].requests(EVEN, SIZES, hours=hours)


def alone(requests: Requests, profile: str) -> Outcome:
    return scheduled(requests, Host(SIZES, SwitchCost()), profile)


def test_closed_patterns_stand_beside_the_open_ones() -> None:
    assert list(CLOSED) == ["clients few", "clients many", "clients sessions", "clients thinking"]
    assert list(ALL) == [*PATTERNS, *CLOSED]
    assert all(pattern.name == name and pattern.about for name, pattern in CLOSED.items())
    assert all(waiting(name).waits for name in CLOSED)


def test_many_are_as_many_as_bring_the_host_near_its_most() -> None:
    """98 %: on the way to 32 streams, tok/s as their power of 0.58, 31 are enough."""
    assert Served(EVEN, PAIR).many == 31
    assert Served(EVEN, SIZES).many == 30
    rising = surface("plain", {0: {1: 10.0, 250: 2500.0}}, speculative=False)
    assert Served(EVEN, Pair(SIZES.speculative, rising)).many == 100


def test_two_clients_keep_the_faster_profile_for_twelve_hours() -> None:
    """150 tok/s are 0.75 requests a second."""
    requests = waiting("clients few")
    assert len(requests) == 12 * 3600 * 0.75
    assert requests.after.count(-1) == 2
    assert (requests.work, requests.span) == (12, 12)
    assert alone(requests, "draft").end == pytest.approx(12 * 3600)
    slower = alone(requests, "plain").end
    assert slower == pytest.approx(12 * 3600 * 150 / 80)
    assert requests.hours * 3600 > 2 * slower


def test_many_clients_keep_it_for_four_hours_and_a_slow_profile_longer() -> None:
    """600 tok/s are 3 requests a second."""
    requests = waiting("clients many")
    assert (len(requests), requests.after.count(-1)) == (4 * 3600 * 3, 30)
    assert alone(requests, "plain").end == pytest.approx(4 * 3600)
    assert alone(requests, "draft").end == pytest.approx(16 * 3600)
    assert alone(requests, "plain").mean == pytest.approx(10.0)
    assert requests.hours > 2 * 16


def test_sessions_of_many_come_every_two_hours_beside_two_clients() -> None:
    requests = waiting("clients sessions")
    begins = [at for at, after in zip(requests.at, requests.after, strict=True) if after < 0]
    rushes = [hour * 3600.0 for hour in (1, 3, 5, 7)]
    assert sorted(begins) == [0.0, 0.0] + [at for at in rushes for _ in range(30)]
    assert len(requests) == 8 * 3600 * 0.75 + 4 * 1800 * 3
    outcome = alone(requests, "plain")
    assert requests.clients(outcome.latencies) == 32
    assert 8 * 3600 < outcome.end < requests.hours * 3600 / 2


def test_clients_that_think_do_so_for_as_long_as_a_request_takes() -> None:
    requests = waiting("clients thinking")
    thoughts = {at for at, after in zip(requests.at, requests.after, strict=True) if after >= 0}
    assert list(thoughts) == pytest.approx([10.0])
    assert requests.after.count(-1) == 30


def test_clients_that_think_take_four_hours_and_do_not_all_run_at_once() -> None:
    """With answers of many sizes: even ones would keep all clients in step."""
    requests = CLOSED["clients thinking"].requests(SOURCE, SIZES)
    outcome = alone(requests, "plain")
    assert outcome.end == pytest.approx(4 * 3600, rel=0.05)
    thought = max(requests.at)
    assert outcome.mean < 0.9 * thought


def test_running_and_thinking_clients_are_all_there_are() -> None:
    """10 clients on a host of 10 tok/s: 20 s of thought are 1 of 20 a second, 4 s apart."""
    flat = surface("plain", {0: {1: 10.0}}, speculative=False)
    pair = Pair(surface("draft", {0: {1: 5.0}}, speculative=True), flat)
    served = Served(Requests("r", (0.0,), (0,), (20,), 1.0), pair)
    assert served.rates(Group(0.0, 10, 1.0, 4.0)) == pytest.approx((0.25, 0.5))
    assert served.rates(Group(0.0, 10, 1.0, 100.0))[1] == pytest.approx(10 / (100 + 2), rel=0.02)


def test_fewer_hours_are_less_work_of_the_same_shape() -> None:
    short = waiting("clients sessions", 2)
    assert len(short) == pytest.approx(len(waiting("clients sessions")) / 4, rel=0.02)
    assert max(at for at, after in zip(short.at, short.after, strict=True) if after < 0) == 6300.0
    assert short.span == 2


def test_clients_have_other_sizes_with_another_seed() -> None:
    def sizes(seed: int) -> tuple[int, ...]:
        return CLOSED["clients few"].requests(SOURCE, PAIR, hours=1, seed=seed).output

    assert sizes(1) == sizes(1) != sizes(2)
