"""Orphans of an engine become children of opsctl, which sees them and reaps them.

A scheduler whose parent was killed is otherwise re-parented to init, outside every tree that
opsctl could walk, and in a container whose process 1 does not reap it stays a zombie for ever.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

from opsctl.system import procfs

_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37


def become() -> bool:
    """Adopt orphaned descendants from now on; False where the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def active() -> bool:
    """Whether this process adopts orphaned descendants."""
    libc = ctypes.CDLL(None, use_errno=True)
    value = ctypes.c_int(0)
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(value), 0, 0, 0)
    return value.value == 1


def reap(pids: Iterable[int]) -> tuple[int, ...]:
    """Reap those of `pids` that are adopted zombies of this process; the ones reaped.

    Only named processes: `waitpid(-1)` would steal the exit code of somebody else's subprocess.
    """
    reaped = []
    for pid in pids:
        try:
            done, _ = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue
        if done:
            reaped.append(pid)
    return tuple(reaped)


class OrphanReaper:
    """Reaps orphans that ended unseen, such as those of a daemon that lived for a moment.

    Only what was a zombie in the last round too: whoever waits for a child of opsctl's own has had
    the time. What shares opsctl's session never came from an engine.
    """

    def __init__(self) -> None:
        self._last: frozenset[tuple[int, int]] = frozenset()

    def round(self) -> tuple[int, ...]:
        """Reap what is due; to be called seconds apart."""
        me, session = os.getpid(), os.getsid(0)
        zombies = frozenset(
            (pid, entry.start_time)
            for pid, entry in procfs.snapshot().items()
            if entry.state == "Z" and entry.ppid == me and entry.session != session
        )
        due, self._last = zombies & self._last, zombies - self._last
        return reap(pid for pid, _ in due)
