"""What the kernel knows of a real connection."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from opsctl.system.sockets import unacknowledged

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Two ends of a connection; the second one takes little at a time."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server, socket.socket() as taker:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        taker.connect(server.getsockname())
        sender, _ = server.accept()
        sender.setblocking(False)
        with sender:
            yield sender, taker


def fill(sender: socket.socket) -> None:
    try:
        while True:
            sender.send(bytes(65536))
    except BlockingIOError:
        return


def test_what_is_not_taken_waits_and_goes_as_it_is_taken(ends: Ends) -> None:
    sender, taker = ends
    assert unacknowledged(sender.fileno()) == 0
    fill(sender)
    before = unacknowledged(sender.fileno())
    assert before > 0
    for _ in range(64):
        taker.recv(4096)
    assert 0 < unacknowledged(sender.fileno()) < before


def test_of_what_is_no_connection_nothing_waits() -> None:
    with Path(os.devnull).open() as file:
        assert unacknowledged(file.fileno()) == 0
    assert unacknowledged(-1) == 0
