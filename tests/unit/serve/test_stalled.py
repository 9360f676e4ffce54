"""Clients that have stopped reading."""

from __future__ import annotations

from asyncio import WriteTransport

from opsctl.serve.stalled import Unread


class Pipe(WriteTransport):
    """As much as a test says waits in it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def get_write_buffer_size(self) -> int:
        return self.size


def test_who_reads_nothing_is_found_when_the_time_is_over_and_not_before() -> None:
    unread, pipe = Unread(60.0), Pipe(70_000)
    assert unread.stalled([pipe], 0.0) == []
    assert unread.stalled([pipe], 59.9) == []
    assert unread.stalled([pipe], 60.0) == [pipe]


def test_who_reads_a_little_now_and_then_is_waited_for() -> None:
    unread, pipe = Unread(60.0), Pipe(70_000)
    for now in range(0, 1000, 50):
        pipe.size -= 1
        assert unread.stalled([pipe], float(now)) == []


def test_who_has_read_everything_is_waited_for_as_long_as_it_takes() -> None:
    unread, pipe = Unread(60.0), Pipe(0)
    for now in (0.0, 1000.0, 2000.0):
        assert unread.stalled([pipe], now) == []
    pipe.size = 500
    assert unread.stalled([pipe], 3000.0) == []


def test_connections_that_are_gone_are_forgotten() -> None:
    unread, pipe = Unread(60.0), Pipe(500)
    unread.stalled([pipe], 0.0)
    unread.stalled([], 30.0)
    assert unread.stalled([pipe], 90.0) == []
