"""One holder at a time: an advisory lock that the kernel drops when its holder dies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock

from opsctl.errors import TemporaryError


@contextmanager
def lock(path: Path, *, what: str = "this state directory") -> Iterator[None]:
    """Hold `path` as a lock file; raises TemporaryError at once when somebody else does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    holder = filelock.FileLock(path, mode=0o600)
    try:
        holder.acquire(blocking=False)
    except filelock.Timeout as error:
        raise TemporaryError(
            f"{what} is in use by another opsctl (lock {path})",
            hint="stop the other one, or use another --state-dir",
        ) from error
    try:
        yield
    finally:
        holder.release()
