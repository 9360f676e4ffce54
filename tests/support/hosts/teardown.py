"""Taking a host down, and proof that nothing of it is left."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from opsctl.system import procfs
from opsctl.system.cgroup import Cgroup, writable_parent

NAME = "opsctl-host"
GROUP = "opsctl-hosts"
DOWN_TIMEOUT = 20.0
_OWNED = re.compile(rf"{GROUP}-(?P<space>\d+)-(?P<pid>\d+)-(?P<start>\d+)-(?P<host>{NAME}-\w+)")


def owned_group(parent: Cgroup, host: str) -> Cgroup:
    """Make the cgroup of a host, its name saying which test process it belongs to."""
    found = procfs.stat(os.getpid())
    assert found is not None
    return parent.create(f"{GROUP}-{_process_space()}-{found.pid}-{found.start_time}-{host}")


def take_down(group: Cgroup, folder: Path) -> None:
    """Kill everything in a host's cgroup and wait until the kernel has let go of it.

    The mounts go with the last process of their namespace. AssertionError when one survives.
    """
    group.kill()
    assert await_empty(group, DOWN_TIMEOUT), f"{group.path}: alive after kill: {group.pids()}"
    assert group.remove(), f"{group.path} cannot be removed"
    shutil.rmtree(folder, ignore_errors=True)


def sweep(parent: Cgroup) -> None:
    """Take down hosts whose test process is gone, killed before it could do it itself."""
    for path in parent.path.glob(f"{GROUP}-{_process_space()}-*"):
        owned = _OWNED.fullmatch(path.name)
        if owned is None:
            continue
        found = procfs.stat(int(owned["pid"]))
        if found is None or found.start_time != int(owned["start"]):
            with contextlib.suppress(OSError, AssertionError):  # another sweep may be at it
                take_down(Cgroup(path), folder_of(owned["host"]))


def folder_of(host: str) -> Path:
    """Return where the files of a host are that are not its own: keys and console."""
    return Path(tempfile.gettempdir()) / host


def await_empty(group: Cgroup, timeout: float) -> bool:
    """Wait until no process is left in a group or below it; False when it takes too long."""
    deadline = time.monotonic() + timeout
    with (group.path / "cgroup.events").open() as events:
        watch = select.poll()
        watch.register(events, select.POLLPRI)
        while True:
            events.seek(0)
            if "populated 0" in events.read():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            watch.poll(left * 1000)


def leftovers(host: str) -> list[str]:
    """Return what is still there of a host: cgroups, folders, processes, and mounts anywhere."""
    parent = writable_parent()
    groups = [] if parent is None else parent.path.rglob(f"*{host}*")
    found = [f"cgroup {path}" for path in groups]
    found += [f"folder {path}" for path in Path(tempfile.gettempdir()).glob(f"{host}*")]
    return found + list(_in_processes(host))


def _in_processes(host: str) -> Iterator[str]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it has just gone
            if host in (entry / "mountinfo").read_text():
                yield f"mount that process {entry.name} sees"
            if host.encode() in (entry / "cmdline").read_bytes():
                yield f"process {entry.name}"


def _process_space() -> int:
    """The process namespace: a pid of another one says nothing here."""
    return Path("/proc/self/ns/pid").stat().st_ino
