"""A file of lines that is renamed when it is full, so that what is kept stays bounded."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


class RotatingFile:
    """Appends to `path`, renamed to `path.1` … `path.<keep>` when it would exceed `max_bytes`.

    Each file begins with what `first` returns, so that it can be read by itself. The files are
    the user's own (0600).
    """

    def __init__(
        self, path: Path, *, max_bytes: int, keep: int, first: Callable[[], str] = lambda: ""
    ) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._first = first

    def append(self, text: str) -> None:
        """Write whole lines; raises OSError."""
        size = self._size()
        if size and size + len(text) > self._max_bytes:
            self._rotate()
            size = 0
        with open(self.path, "a", encoding="utf-8", opener=_private) as file:
            file.write(text if size else self._first() + text)

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def _rotate(self) -> None:
        for number in range(self._keep - 1, 0, -1):
            older = rotated(self.path, number)
            if older.exists():
                older.replace(rotated(self.path, number + 1))
        self.path.replace(rotated(self.path, 1))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def rotated(path: Path, number: int) -> Path:
    """Name of the `number`-th rotated file of `path`; 1 is the youngest."""
    return path.with_name(f"{path.name}.{number}")
