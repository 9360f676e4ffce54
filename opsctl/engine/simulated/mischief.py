"""Child processes that outlive the engine, for faults `escaped_child` and `port_squatter`."""

from __future__ import annotations

import os
import signal
import time
from typing import NoReturn

LIFETIME = 600.0
"""Seconds after which a stray process ends by itself, so that a broken test leaves none behind."""


def escape() -> None:
    """Start a process that is in another session, has no parent of ours, and keeps the environment
    (as a compiler started by a JIT may). Only the launch nonce in its environment names it."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork() == 0:
            _linger(keep=None)
        os._exit(0)
    os.waitpid(pid, 0)


def squat(listening: int) -> None:
    """Start a child that holds the listening socket, so that the port stays taken after the
    engine's death."""
    if os.fork() == 0:
        _linger(keep=listening)


def _linger(keep: int | None) -> NoReturn:
    """Hold nothing but standard streams and `keep`, ignore polite signals, and wait."""
    try:
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(signum, signal.SIG_IGN)
        limit = os.sysconf("SC_OPEN_MAX")
        os.closerange(3, keep if keep is not None else limit)
        if keep is not None:
            os.closerange(keep + 1, limit)
        time.sleep(LIFETIME)
    finally:
        os._exit(0)
