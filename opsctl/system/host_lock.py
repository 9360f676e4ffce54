"""A lock that programs of several users share: whoever can open the file can hold it.

`filelock` would need write access, and says nothing of the holder. flock(2) needs neither: a
descriptor for reading will do, the kernel drops the lock with its holder, and /proc/locks tells
whose it is.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

LOCKS = Path("/proc/locks")


class HostLock:
    """One lock file. Never waits; the holder's death gives it free."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor is not None

    def take(self) -> bool:
        """Hold it if nobody else does; whether it is held now. Raises OSError without a file."""
        if self._descriptor is not None:
            return True
        descriptor = _open(self.path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def give_back(self) -> None:
        """Let others hold it; nothing happens when it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def holder(self) -> int | None:
        """Process id of whoever holds it; None when nobody does or the kernel does not say."""
        try:
            file, text = self.path.stat(), LOCKS.read_text()
        except OSError:
            return None
        name = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
        for line in text.splitlines():
            fields = line.split()
            # number: FLOCK ADVISORY WRITE pid device:inode start end; waiters have "->" instead
            if len(fields) > 5 and fields[1] == "FLOCK" and fields[5] == name:
                return int(fields[4]) or None
        return None


def _open(path: Path) -> int:
    """Open for reading; make the file where there is none and that is allowed."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        return os.open(path, flags | os.O_CREAT, 0o644)
