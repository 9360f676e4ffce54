"""The processes of this host, as far as a census of GPU memory needs them.

Every process is looked at, because memory is also held by those NVML does not list; the costly
details are read only for those that may matter.
"""

from __future__ import annotations

import pwd
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import cache

from opsctl.gpu import names
from opsctl.gpu.model import HostProcess
from opsctl.system import ports, procfs
from opsctl.system.procfs import ProcessStat

DEVICES = "/dev/nvidia"
NONCE = "OPSCTL_NONCE"

_KERNEL_THREADS = "kthreadd"
_OWN_GROUP = re.compile(r"/opsctl-[^/]+")
_LOOKS = 3
_Listening = Callable[[], Mapping[int, int]]
_BETWEEN = 0.1


def read(
    pids: Iterable[int] | None = None, *, device_prefix: str = DEVICES
) -> dict[int, HostProcess]:
    """Every process that can be seen; `pids` are those that NVML lists.

    `device_prefix` is what the paths of the driver's device files begin with. Takes 0.3 s longer
    when a process that matters is in state D, to tell a stuck one from one that reads a disk.
    """
    listed = frozenset(pids or ())
    listening = cache(ports.by_inode)  # costs the kernel milliseconds, so only when needed
    table = procfs.snapshot()
    kernel = table.get(2)
    has_threads = kernel is not None and kernel.comm == _KERNEL_THREADS
    found: dict[int, HostProcess] = {}
    for entry in table.values():
        if has_threads and 2 in {entry.ppid, entry.pid}:
            found[entry.pid] = _plain(entry, f"[{entry.comm}]")
        else:
            found[entry.pid] = _read(entry, listed, listening, device_prefix)
    return _settled(found, listed)


def _plain(entry: ProcessStat, title: str) -> HostProcess:
    return HostProcess(
        pid=entry.pid,
        start_time=entry.start_time,
        state=entry.state,
        ppid=entry.ppid,
        session=entry.session,
        group=entry.group,
        comm=entry.comm,
        title=title,
        devices=frozenset(),
    )


def _read(
    entry: ProcessStat, listed: Collection[int], listening: _Listening, prefix: str
) -> HostProcess:
    pid = entry.pid
    files = procfs.open_files(pid)
    process = replace(
        _plain(entry, procfs.title(pid, entry.comm)),
        cgroup=procfs.cgroup_of(pid),
        nonce=procfs.environ_value(pid, NONCE),
        devices=None if files is None else frozenset(f for f in files if f.startswith(prefix)),
    )
    if not _matters(process, listed):
        return process
    return _detailed(process, files or (), listening, prefix)


def _matters(process: HostProcess, listed: Collection[int]) -> bool:
    return bool(
        process.devices
        or process.pid in listed
        or process.nonce
        or names.is_sglang(process)
        or (process.cgroup and _OWN_GROUP.search(process.cgroup))
    )


def _detailed(
    process: HostProcess, files: Iterable[str], listening: _Listening, prefix: str
) -> HostProcess:
    pid, uid = process.pid, procfs.owner(process.pid)
    devices = process.devices
    if devices is not None and not devices:  # a mapping outlives its descriptor
        mapped = procfs.mapped_files(pid) or frozenset[str]()
        devices = frozenset(path for path in mapped if path.startswith(prefix))
    return replace(
        process,
        uid=uid,
        user=None if uid is None else user_name(uid),
        devices=devices,
        ports=_ports(files, listening()),
        age=procfs.age(process.start_time),
        wchan=_where_in_kernel(process),
        threads=procfs.thread_count(pid) if process.state == "Z" else 1,
    )


def _ports(files: Iterable[str], listening: Mapping[int, int]) -> tuple[int, ...]:
    inodes = (name[8:-1] for name in files if name.startswith("socket:["))
    return tuple(sorted({listening[int(n)] for n in inodes if int(n) in listening}))


def _where_in_kernel(process: HostProcess) -> str | None:
    """The driver's innermost function on the kernel stack where there is one, else the wchan."""
    if process.state not in "DR":
        return None
    stack = procfs.kernel_stack(process.pid)
    return next(filter(names.in_driver, stack), None) or procfs.wchan(process.pid)


def _settled(found: dict[int, HostProcess], listed: Collection[int]) -> dict[int, HostProcess]:
    """Look again at those that seem to hang: one that moves on is not stuck."""
    for _ in range(_LOOKS):
        hanging = [p for p in found.values() if _seems_to_hang(p) and _matters(p, listed)]
        if not hanging:
            break
        time.sleep(_BETWEEN)
        for process in hanging:
            found[process.pid] = _looked_at_again(process)
    return found


def _seems_to_hang(process: HostProcess) -> bool:
    return process.state == "D" or (process.state == "R" and process.wchan is not None)


def _looked_at_again(process: HostProcess) -> HostProcess:
    entry = procfs.stat(process.pid)
    if entry is None or entry.start_time != process.start_time:
        return replace(process, state="X", wchan=None)
    now = replace(process, state=entry.state)
    return replace(now, wchan=_where_in_kernel(now))


@cache
def user_name(uid: int) -> str:
    """The name of a user, or the number where there is no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
