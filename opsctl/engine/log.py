"""The engine's log file: followed line by line, and kept from filling the disk."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import shutil
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path

_LINE = 8192  # characters; a log line may hold a whole prompt
_CHUNK = 1 << 20
_TOO_FAR_BEHIND = 16 * _CHUNK


class EngineLog:
    """Follows a file that the engine appends to by itself.

    The engine holds the file open (so that it survives opsctl), hence rotation copies and
    truncates: lines written in the instant between are lost, a bounded disk is worth that.
    Starts at `offset` bytes; `at_end` begins with what comes next.
    """

    def __init__(
        self,
        path: Path,
        *,
        offset: int = 0,
        keep_lines: int = 1000,
        max_bytes: int = 50 << 20,
        keep: int = 5,
    ) -> None:
        self.path = path
        self._offset = offset
        self._inode: int | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._partial = ""
        self._skipping = False
        self._tail: deque[str] = deque(maxlen=keep_lines)
        self._max_bytes = max_bytes
        self._keep = keep

    @classmethod
    def at_end(cls, path: Path) -> EngineLog:
        """Follow only what is written from now on."""
        try:
            return cls(path, offset=path.stat().st_size)
        except OSError:
            return cls(path)

    def tail(self, count: int = 100) -> list[str]:
        """The last `count` lines read so far, oldest first."""
        return list(self._tail)[-count:]

    def read_new(self) -> list[str]:
        """Complete lines written since the last call, at most a megabyte of them.

        Carriage returns end a line too, because progress bars use them. Lines longer than 8192
        characters are cut. When the engine writes faster than that for long, what is far behind is
        passed over, because what it wrote last explains its death. Never raises: an unreadable
        file has no new lines.
        """
        try:
            data = self._read()
        except OSError:
            return []
        lines = self._split(self._decoder.decode(data))
        self._tail.extend(lines)
        self.rotate_if_large()
        return lines

    async def lines(self, *, poll: float = 0.2) -> AsyncIterator[str]:
        """Every line, as it comes; ends only when its consumer stops."""
        while True:
            lines = self.read_new()
            for line in lines:
                yield line
            if not lines:
                await asyncio.sleep(poll)

    def rotate_if_large(self) -> bool:
        """Copy the file away and truncate it when it outgrew its limit.

        Waits until it was read to the end, unless the engine writes faster than it is read. On a
        full disk the copy is given up and the file truncated all the same. Of a file that grew
        far beyond the limit only the end is kept: copies are bounded, and the loop that makes
        them has streams to pass on.
        """
        try:
            size = self.path.stat().st_size
            unread = size - self._offset
            if size <= self._max_bytes or (unread > 0 and size < 2 * self._max_bytes):
                return False
            with contextlib.suppress(OSError):
                self._copy_away()
            os.truncate(self.path, 0)
        except OSError:
            return False
        self._offset = 0
        return True

    def _read(self) -> bytes:
        with self.path.open("rb") as file:
            status = os.fstat(file.fileno())
            replaced = self._inode not in (None, status.st_ino)
            if replaced or status.st_size < self._offset:  # another file, or truncated
                self._offset = 0
                self._decoder.reset()
                self._partial, self._skipping = "", False
            self._inode = status.st_ino
            if status.st_size - self._offset > _TOO_FAR_BEHIND:
                self._offset = status.st_size - _CHUNK
                self._decoder.reset()
                self._partial, self._skipping = "", True  # in the middle of a line
            file.seek(self._offset)
            data = file.read(_CHUNK)
        self._offset += len(data)
        return data

    def _split(self, text: str) -> list[str]:
        *complete, partial = (self._partial + text).replace("\r", "\n").split("\n")
        lines = []
        for line in complete:
            if not self._skipping and line:
                lines.append(line[:_LINE])
            self._skipping = False
        if len(partial) > _LINE and not self._skipping:
            lines.append(partial[:_LINE])
            self._skipping = True
        self._partial = "" if self._skipping else partial
        return lines

    def _copy_away(self) -> None:
        def older(number: int) -> Path:
            return self.path.with_name(f"{self.path.name}.{number}")

        for number in range(self._keep - 1, 0, -1):
            if older(number).exists():
                older(number).replace(older(number + 1))
        fresh = older(1)
        try:
            with self.path.open("rb") as source, fresh.open("wb") as target:
                source.seek(max(0, os.fstat(source.fileno()).st_size - self._max_bytes))
                shutil.copyfileobj(source, target, _CHUNK)
            fresh.chmod(0o600)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
