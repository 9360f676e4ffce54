"""Engines of this state directory that no state file tells of, found by where their output goes.

Every process of an engine's tree inherits the engine log of its state directory as its standard
output. That alone is no proof, anybody may append to a file: the process must also carry a launch
nonce of opsctl, live in a cgroup of opsctl, or have one of the titles under which SGLang's children
hide their environment.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

from opsctl.errors import ReleaseError
from opsctl.system import pidfd, procfs

PATIENCE = 10.0
"""Seconds for killed processes to be gone."""


def writers(logs: Collection[Path], *, spare: Collection[int] = ()) -> dict[int, int]:
    """Pid and start time of every living process that writes its output to one of `logs`."""
    logs = {log.resolve() for log in logs}
    own = procfs.ancestors(os.getpid()) | set(spare)
    found = {}
    for pid, stat in procfs.snapshot().items():
        alive = pid not in own and stat.state not in {"Z", "X"}
        if alive and _writes_to(pid, logs) and _is_launched(pid):
            found[pid] = stat.start_time
    return found


def _writes_to(pid: int, logs: Collection[Path]) -> bool:
    try:
        return any((procfs.PROC / f"{pid}/fd/{n}").readlink() in logs for n in (1, 2))
    except OSError:
        return False


def _is_launched(pid: int) -> bool:
    group = (procfs.cgroup_of(pid) or "").rsplit("/", 1)[-1]
    return (
        bool(procfs.environ_value(pid, "OPSCTL_NONCE"))
        or group.startswith("opsctl-")
        or procfs.title(pid).startswith("sglang::")
    )


async def end(logs: Collection[Path], *, spare: Collection[int] = ()) -> tuple[int, ...]:
    """Kill those processes and wait until they are gone; the pids. Raises ReleaseError.

    They are killed without being asked: nobody supervises them, and what they answered is lost.
    """
    killed: dict[int, int] = {}
    deadline = time.monotonic() + PATIENCE
    while found := writers(logs, spare=spare):
        if time.monotonic() > deadline:
            raise ReleaseError(
                f"processes of an earlier engine will not go: {sorted(found)}",
                hint="see `opsctl gpu explain PID`; if they cannot be ended, reset or reboot",
            )
        for pid, start_time in found.items():
            killed[pid] = start_time
            pidfd.signal_process(pid, start_time, signal.SIGKILL)
        await asyncio.sleep(0.1)
    return tuple(killed)
