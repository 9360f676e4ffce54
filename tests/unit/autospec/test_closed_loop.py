"""Clients that wait for their answers, told apart from arrivals that do not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from heapq import heappop, heappush

import pytest

from opsctl.autospec.closed_loop import ClosedLoop

Second = tuple[int, int, int]
"""Requests at once, arrivals so far, answers so far."""


def watched(seconds: Iterator[Second], tempo: float = 1.0) -> ClosedLoop:
    loop = ClosedLoop(tempo)
    tell(loop, seconds, tempo)
    return loop


def tell(loop: ClosedLoop, seconds: Iterator[Second], tempo: float = 1.0) -> int:
    """Tell what happened; return after how many seconds it was first taken for closed (or 0)."""
    before, found = (0, 0), 0
    for number, (count, arrived, completed) in enumerate(seconds, 1):
        loop.see(count, arrived - before[0], completed - before[1], tempo, is_open=True)
        before = arrived, completed
        if not found and loop.clients is not None:
            found = number
    return found


def clients(
    count: int, seconds: int, *, takes: float = 10.0, think: float = 0.0, seed: int = 1
) -> Iterator[Second]:
    """So many, each with a request that takes `takes` seconds or so, then the next one."""
    chosen = random.Random(seed)
    due = [(chosen.uniform(0, takes), True) for _ in range(count)]
    arrived = completed = 0
    here = count
    arrived = count
    heap: list[tuple[float, bool]] = []
    for item in due:
        heappush(heap, item)
    for second in range(1, seconds + 1):
        while heap[0][0] <= second:
            at, ends = heappop(heap)
            if ends:
                here, completed = here - 1, completed + 1
                heappush(heap, (at + (chosen.expovariate(1 / think) if think else 0.0), False))
            else:
                here, arrived = here + 1, arrived + 1
                heappush(heap, (at + chosen.uniform(0.5, 1.5) * takes, True))
        yield here, arrived, completed


def in_step(count: int, rounds: int, *, takes: int, late: int = 0) -> Iterator[Second]:
    """All of them are answered in the same second; in each round `late` seconds pass first."""
    for number in range(rounds):
        for _ in range(takes):
            yield count, count * (number + 1), count * number
        for _ in range(late):
            yield 0, count * (number + 1), count * (number + 1)


def at_random(rate: float, takes: float, seconds: int, seed: int = 1) -> Iterator[Second]:
    """Arrivals that know nothing of the answers."""
    chosen = random.Random(seed)
    ends: list[float] = []
    arrived = completed = 0
    due = chosen.expovariate(rate)
    for second in range(1, seconds + 1):
        while due <= second:
            arrived += 1
            heappush(ends, due + chosen.uniform(0.5, 1.5) * takes)
            due += chosen.expovariate(rate)
        while ends and ends[0] <= second:
            heappop(ends)
            completed += 1
        yield len(ends), arrived, completed


@pytest.mark.parametrize("count", [2, 8, 40, 200])
def test_clients_that_wait_are_found_and_counted(count: int) -> None:
    loop = watched(clients(count, 900))
    assert loop.clients == pytest.approx(count, rel=0.05)


def test_they_are_found_within_half_a_minute_when_there_are_many() -> None:
    assert 0 < tell(ClosedLoop(), clients(40, 120)) <= 30


def test_clients_that_are_all_answered_in_the_same_second_are_found_too() -> None:
    """Which is what a load generator with answers of one length does."""
    assert 0 < tell(ClosedLoop(), in_step(40, 10, takes=5)) <= 8 * 5
    assert 0 < tell(ClosedLoop(), in_step(40, 10, takes=9, late=1)) <= 8 * 10


@pytest.mark.parametrize(
    ("rate", "takes"), [(0.2, 3.0), (0.5, 4.0), (1.0, 10.0), (4.0, 10.0), (5.0, 1.0), (20.0, 8.0)]
)
@pytest.mark.parametrize("seed", range(3))
def test_arrivals_at_random_are_never_taken_for_clients(
    rate: float, takes: float, seed: int
) -> None:
    assert tell(ClosedLoop(), at_random(rate, takes, 6 * 3600, seed)) == 0


def test_a_queue_that_grows_is_no_closed_loop() -> None:
    assert tell(ClosedLoop(), ((n, 2 * n, n) for n in range(1, 3600))) == 0


def test_clients_that_think_are_taken_for_an_open_loop() -> None:
    assert tell(ClosedLoop(), clients(40, 3600, think=10.0)) == 0


def test_it_follows_clients_that_come_and_go() -> None:
    loop = watched(clients(4, 1800))
    tell(loop, ((n + 36, a, c) for n, a, c in clients(4, 5)))
    tell(loop, clients(40, 300))
    assert loop.clients == pytest.approx(40, rel=0.05)
    tell(loop, clients(4, 900))
    assert loop.clients == pytest.approx(4, rel=0.05)


def test_when_all_have_gone_it_says_so_within_twenty_seconds() -> None:
    loop = watched(clients(40, 300))
    tell(loop, ((0, 0, 0) for _ in range(60)))
    assert loop.clients == pytest.approx(0, abs=3)


def test_it_is_open_again_when_arrivals_no_longer_wait() -> None:
    loop = watched(clients(10, 900))
    assert loop.clients is not None
    tell(loop, at_random(1.0, 10.0, 300))
    assert loop.clients is None


def test_what_goes_on_coming_to_a_closed_gate_is_no_closed_loop_for_a_day() -> None:
    """A generator at a fixed rate looks like one until nobody answers it."""
    loop = watched((5, n, n) for n in range(600))
    assert loop.clients == pytest.approx(5)
    for waiting in range(60):
        loop.see(5 + waiting, 1, 0, 1.0, is_open=False)
    assert loop.clients is None
    hours = 23 * 3600
    tell(loop, ((5, n, n) for n in range(hours)))
    assert loop.clients is None
    tell(loop, ((5, n, n) for n in range(2 * 3600)))
    assert loop.clients == pytest.approx(5)


def test_as_many_at_a_closed_gate_as_there_are_clients_refute_nothing() -> None:
    loop = watched(clients(40, 300))
    for _ in range(240):
        loop.see(40, 0, 0, 1.0, is_open=False)
    assert loop.clients == pytest.approx(40, rel=0.05)


def test_missing_samples_begin_a_new_stretch() -> None:
    loop = watched(clients(40, 300))
    loop.interrupted()
    assert loop.clients == pytest.approx(40, rel=0.05), "what was known is not forgotten"


def test_less_than_one_client_is_no_closed_loop() -> None:
    """One request at once four seconds of five, as arrivals now and then would have it."""
    cycle = ((int(second % 5 < 4), (second + 4) // 5, second // 5) for second in range(3600))
    assert tell(ClosedLoop(), cycle) == 0


def test_clients_that_come_are_followed_within_a_few_stretches() -> None:
    """Compared is with the last three stretches: for two of them more evidence than doubt."""
    loop = watched((4, n, n) for n in range(900))
    for _ in range(4):
        tell(loop, ((40, 4 * n, 4 * n) for n in range(1, 4)))
        assert loop.clients is not None
    assert loop.clients == pytest.approx(40)


def test_more_clients_at_the_next_closed_gate_refute_nothing() -> None:
    """Each closing is compared with its own first second."""
    loop = watched(clients(10, 900))
    loop.see(10, 0, 0, 1.0, is_open=False)
    tell(loop, clients(40, 300))
    for _ in range(60):
        loop.see(40, 0, 0, 1.0, is_open=False)
    assert loop.clients == pytest.approx(40, rel=0.05)


def test_it_knows_for_how_long_clients_have_been_waiting() -> None:
    loop = watched(at_random(4.0, 10.0, 900))
    assert loop.clients is None
    found = tell(loop, clients(40, 120))
    assert found - 10 <= loop.rising - (120 - found) <= found + 20


def test_what_was_begun_before_the_gate_closed_says_nothing_of_the_clients_after_it() -> None:
    loop = watched(clients(40, 300))
    tell(loop, ((0, 0, 0) for _ in range(15)))
    for _ in range(60):
        loop.see(40, 0, 0, 1.0, is_open=False)
    tell(loop, ((40, 0, 0) for _ in range(8)))
    assert loop.clients == pytest.approx(40, rel=0.05)


def test_a_clock_four_times_as_fast_says_that_all_have_gone_four_times_as_soon() -> None:
    loop = watched(clients(40, 300), 0.25)
    tell(loop, ((0, 0, 0) for _ in range(60)), 0.25)
    assert loop.clients == pytest.approx(0, abs=3)


def test_a_day_of_a_faster_clock_is_as_much_shorter() -> None:
    loop = watched(((5, n, n) for n in range(600)), 0.01)
    for waiting in range(60):
        loop.see(5 + waiting, 1, 0, 0.01, is_open=False)
    assert loop.clients is None
    tell(loop, ((5, n, n) for n in range(864 + 300)), 1.0)
    assert loop.clients == pytest.approx(5)


def test_what_is_above_and_what_is_below_count_together() -> None:
    """For seven seconds of ten there are 40; for two there are more, for one as many fewer."""
    levels = (40, 43, 40, 40, 43, 40, 37, 40, 40, 40)
    assert tell(ClosedLoop(), ((levels[n % 10], n, n) for n in range(1200))) == 0
