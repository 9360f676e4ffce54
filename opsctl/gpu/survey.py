"""One look at the host: every reader once, joined into a census."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

from opsctl.gpu import engines, kernel_log, nvml, processes
from opsctl.gpu.census import census
from opsctl.gpu.model import Census, Snapshot
from opsctl.system import procfs
from opsctl.system.threads import aside


def look(
    state_dirs: Sequence[str] = (),
    *,
    deadline: float = 5.0,
    device_prefix: str = processes.DEVICES,
    about: Sequence[int] = (),
    reader: nvml.Nvml | None = None,
) -> Census:
    """Read NVML, /proc and the state files, and judge. Never hangs on the driver.

    `state_dirs` are looked at beside the usual ones (`engines.state_dirs`); `deadline` is in
    seconds, for NVML; `about` are processes to read in full, whatever they hold; `reader` is for
    those who look again and again.
    """
    read = nvml.read if reader is None else reader.read
    return _join(read(deadline=deadline), state_dirs, device_prefix, about)


async def look_async(
    state_dirs: Sequence[str] = (),
    *,
    deadline: float = 5.0,
    device_prefix: str = processes.DEVICES,
) -> Census:
    """`look` for the owner of an event loop, which it does not hold up."""
    snapshot = await nvml.read_async(deadline=deadline)
    return await aside(partial(_join, snapshot, state_dirs, device_prefix, ()))


def _join(
    snapshot: Snapshot, state_dirs: Sequence[str], device_prefix: str, about: Sequence[int]
) -> Census:
    wanted = {*about, *(use.pid for use in snapshot.uses)}
    found = processes.read(wanted, device_prefix=device_prefix)
    directories = engines.state_dirs(state_dirs, os.environ, found)
    return census(
        snapshot,
        found,
        engines.known(directories),
        me=os.getpid(),
        host_pids=procfs.in_first_pid_namespace(),
        xids=kernel_log.read() or () if snapshot.state != "absent" else (),
    )
