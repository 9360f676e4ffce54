"""The load snapshot: one small file in /dev/shm, written by the scheduler, read by the front.

Reading it needs no answer from the scheduler, so /v1/loads still works, with an old timestamp,
when the scheduler hangs. SGLang guards its file with flock; here a sequence number does it, so
that a scheduler stopped in the middle of a write cannot stop the reader too.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from pathlib import Path
from typing import Any

_HEADER = struct.Struct("<QI")
_SIZE = 16 * 1024
_TRIES = 50


def create(port: int) -> Path:
    """Create the file for the server on `port` and return its path."""
    path = Path("/dev/shm") / f"sglang_loads_opsctl_simulated_{port}_{os.getpid()}.shm"  # noqa: S108
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, _SIZE)
    finally:
        os.close(descriptor)
    return path


def _map(path: Path) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(descriptor, _SIZE)
    finally:
        os.close(descriptor)


class Writer:
    """Publishes snapshots."""

    def __init__(self, path: Path) -> None:
        self._map = _map(path)
        self._sequence = 0

    def write(self, snapshot: dict[str, Any]) -> None:
        """Replace the snapshot; the number is odd while it is being written."""
        data = json.dumps(snapshot).encode()
        if len(data) > _SIZE - _HEADER.size:
            raise ValueError("load snapshot is larger than its slot")
        _HEADER.pack_into(self._map, 0, self._sequence + 1, len(data))
        self._map[_HEADER.size : _HEADER.size + len(data)] = data
        self._sequence += 2
        _HEADER.pack_into(self._map, 0, self._sequence, len(data))


class Reader:
    """Reads the last complete snapshot."""

    def __init__(self, path: Path) -> None:
        self._map = _map(path)
        self._last: dict[str, Any] = {}

    def read(self) -> dict[str, Any]:
        """Return the newest snapshot, or the one before when a write is in progress."""
        for _ in range(_TRIES):
            before, length = _HEADER.unpack_from(self._map, 0)
            data = self._map[_HEADER.size : _HEADER.size + length]
            after, _ = _HEADER.unpack_from(self._map, 0)
            if before == after and before % 2 == 0 and length:
                self._last = json.loads(data)
                break
        return self._last
