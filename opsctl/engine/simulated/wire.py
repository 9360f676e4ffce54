"""Messages between the processes: one JSON value a line over stream sockets."""

from __future__ import annotations

import json
import socket
from typing import Any


class Line:
    """One end of a socket pair, for the children's plain select loops.

    Writes never block: what the other side does not take is kept in memory, as zmq does, so that a
    stopped detokenizer does not stop the scheduler.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._in = bytearray()
        self._out = bytearray()
        self.closed = False

    def fileno(self) -> int:
        """Return the descriptor, so that a Line can be selected on."""
        return self.sock.fileno()

    @property
    def pending(self) -> bool:
        """Whether something is left to write."""
        return bool(self._out)

    def send(self, message: Any) -> None:
        """Queue a message and write as much as the socket takes."""
        self._out += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Write as much as the socket takes."""
        try:
            while self._out:
                del self._out[: self.sock.send(self._out)]
        except BlockingIOError:
            return
        except OSError:
            self.closed = True
            self._out.clear()

    def receive(self) -> list[Any]:
        """Return the complete messages that have arrived."""
        try:
            while data := self.sock.recv(1 << 16):
                self._in += data
            self.closed = True
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True
        *lines, rest = self._in.split(b"\n")
        self._in = bytearray(rest)
        return [json.loads(line) for line in lines]
