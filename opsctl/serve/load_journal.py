"""Writes the load journal: every sample the policy was told, beside the event loop.

A disk that hangs or is full must not hold up a stream or a decision, so lines wait in memory and
one thread at a time writes what has come together; when too many wait, new ones are dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from opsctl import __version__
from opsctl.autospec.history import Record, SetUp, header, line
from opsctl.observe.rotating import RotatingFile, rotated
from opsctl.system.threads import aside

MAX_BYTES, KEEP = 20 * 2**20, 9
"""Ten files of 20 MiB: about three weeks of samples."""
MOST_WAITING = 3600
"""Lines that wait for the disk at most: an hour."""
TAIL = 16 * 2**20
"""Bytes of the past that are read at a start: a day of samples, and some more."""
LAST_WORDS = 2.0
"""Seconds that are waited for the last lines to be written."""
_LONGEST = 4 * 2**20
"""Bytes of a line: the one with the surfaces is the longest by far."""


class LoadJournal:
    """Appends records to `path`; never raises, never blocks. `dropped` counts lost lines.

    `failed` is told why once, when the disk begins to refuse them.
    """

    def __init__(
        self,
        path: Path,
        *,
        failed: Callable[[str], None] = lambda why: None,
        max_bytes: int = MAX_BYTES,
        keep: int = KEEP,
    ) -> None:
        self.path = path
        self.dropped = 0
        self._failed = failed
        self._failing = False
        self._waiting: deque[str] = deque()
        self._first = header(__version__)
        self._file = RotatingFile(path, max_bytes=max_bytes, keep=keep, first=lambda: self._first)
        self._writing: asyncio.Task[None] | None = None

    def note(self, record: Record) -> None:
        """Take a record; it is written soon."""
        if isinstance(record, SetUp):
            self.begin_with(record)
        if len(self._waiting) >= MOST_WAITING:
            self.dropped += 1
            return
        self._waiting.append(line(record))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(self._write())

    def begin_with(self, setup: SetUp) -> None:
        """Let each new file begin with this set-up, so that it can be replayed by itself."""
        again = SetUp(setup.time, setup.wall, setup.boot, "again", setup.plan)
        self._first = header(__version__) + line(again)

    async def flush(self) -> None:
        """Wait until all is written, but not for a disk that does not answer."""
        if self._writing is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS):
                    await asyncio.shield(self._writing)

    async def close(self) -> None:
        """Write what still waits, and take no more."""
        await self.flush()
        if self._writing is not None:
            self._writing.cancel()

    async def _write(self) -> None:
        while self._waiting:
            lines = list(self._waiting)
            try:
                await aside(partial(self._file.append, "".join(lines)))
            except OSError as error:
                self.dropped += len(lines)
                if not self._failing:
                    self._failed(str(error))
                self._failing = True
            else:
                self._failing = False
            for _ in lines:
                self._waiting.popleft()


class NoJournal:
    """Keeps nothing: without `--auto-spec` nobody is told a sample."""

    dropped = 0

    def note(self, record: Record) -> None:
        """See `LoadJournal.note`."""

    def begin_with(self, setup: SetUp) -> None:
        """See `LoadJournal.begin_with`."""

    async def flush(self) -> None:
        """See `LoadJournal.flush`."""

    async def close(self) -> None:
        """See `LoadJournal.close`."""


def tail(path: Path, most: int = TAIL) -> Iterable[str]:
    """Return the last lines of the journal, at most `most` bytes; an unreadable file has none.

    Of a file that is only read in part, the lines that say what follows are read too.
    """
    found: list[list[str]] = []
    for name in (path, rotated(path, 1)):
        lines, size = _last_lines(name, most)
        found.append(lines)
        most -= size
        if most <= 0:
            break
    return [text for lines in reversed(found) for text in lines]


def _last_lines(path: Path, most: int) -> tuple[list[str], int]:
    try:
        with path.open("rb") as file:
            head = [file.readline(_LONGEST) for _ in range(2)]
            begin = file.tell()
            size = file.seek(0, 2)
            file.seek(max(size - most, begin))  # half a line is passed over like any other
            rest = file.read(most)
    except OSError:
        return [], 0
    text = [*head, *rest.splitlines()]
    return [item.decode(errors="replace") for item in text], size
