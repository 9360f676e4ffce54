"""Telling things on stderr without ever waiting for whoever reads it.

A pager, a terminal stopped with Ctrl-S or a log collector that hangs leaves a pipe full, and a
write to it then blocks for as long as they like: the event loop of a gateway must not be the one
that waits.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from contextlib import suppress

_ROOM = 1000  # lines
_FAREWELL = 1.0  # seconds
_POLL = 0.01


class Stderr:
    """Lines handed to a thread of its own, which alone waits; too many of them are left out."""

    def __init__(self, descriptor: int = 2, *, room: int = _ROOM) -> None:
        self._descriptor = descriptor
        self._lines: queue.Queue[str] = queue.Queue(room)
        self._thread: threading.Thread | None = None
        self._left_out = 0

    def say(self, line: str) -> None:
        """Tell one line; returns at once and never raises."""
        if self._thread is None:
            # A daemon, so that a reader who never reads again does not keep the program alive.
            self._thread = threading.Thread(target=self._write, name="stderr", daemon=True)
            self._thread.start()
        if self._left_out:
            line = f"({self._left_out} lines were left out)\n{line}"
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._left_out += 1
        else:
            self._left_out = 0

    def close(self) -> None:
        """Give what was told a moment to get out."""
        deadline = time.monotonic() + _FAREWELL
        while self._lines.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(_POLL)

    def _write(self) -> None:
        while True:
            data = self._lines.get().encode(errors="backslashreplace") + b"\n"
            with suppress(OSError):  # nobody is there
                while data:
                    # Not through sys.stderr: a thread that holds its lock for ever would make
                    # the interpreter abort at its end.
                    data = data[os.write(self._descriptor, data) :]
            self._lines.task_done()
