"""Finds clients that have stopped in the middle: who send no more of a body, or read no answer.

The engine cannot move their requests, so each of them would hold up every drain, and with it every
switch, for as long as a drain may last.
"""

from __future__ import annotations

from asyncio import WriteTransport
from collections.abc import Iterable
from dataclasses import dataclass, field

from opsctl.system.sockets import unacknowledged


def _waiting(transport: WriteTransport) -> int:
    """Bytes here and in the kernel, which asks for more only when a third of its own are gone."""
    connection = transport.get_extra_info("socket")
    here = transport.get_write_buffer_size()
    return here if connection is None else here + unacknowledged(connection.fileno())


@dataclass
class Unread:
    """Watches how much of what was sent clients have yet to read."""

    limit: float
    """Seconds without any of it being read."""
    _seen: dict[WriteTransport, tuple[int, float]] = field(default_factory=dict)
    """Bytes that waited, and since when just so many did."""

    def stalled(self, transports: Iterable[WriteTransport], now: float) -> list[WriteTransport]:
        """Return those whose clients read nothing for too long; `now` is the loop's time.

        What waits only grows while an answer is written into a buffer that has room, so a client
        that does not read is found as soon as the buffer is full, or the answer over.
        """
        seen = {}
        for transport in transports:
            if transport.get_write_buffer_size():
                size = _waiting(transport)
                before = self._seen.get(transport)
                seen[transport] = before if before and before[0] == size else (size, now)
        self._seen = seen
        return [found for found, (_, since) in seen.items() if now - since >= self.limit]
