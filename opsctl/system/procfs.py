"""What the kernel says about processes. Every function takes vanished processes for granted."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")

_SECRET_FLAG = re.compile(r"^--?[\w-]*(key|token|secret|password)[\w-]*(?P<value>=.*)?$", re.I)
_TITLE_LENGTH = 200


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """One line of /proc/PID/stat; times are clock ticks, `start_time` counts from boot."""

    pid: int
    comm: str
    state: str
    ppid: int
    group: int
    session: int
    cpu_time: int
    start_time: int


def parse_stat(text: str) -> ProcessStat | None:
    """Read one stat line. The name may hold spaces and parentheses; the last one ends it."""
    head, _, tail = text.rpartition(")")
    number, _, comm = head.partition("(")
    fields = tail.split()
    try:
        return ProcessStat(
            pid=int(number),
            comm=comm,
            state=fields[0],
            ppid=int(fields[1]),
            group=int(fields[2]),
            session=int(fields[3]),
            cpu_time=int(fields[11]) + int(fields[12]),
            start_time=int(fields[19]),
        )
    except (IndexError, ValueError):
        return None


def stat(pid: int) -> ProcessStat | None:
    """The state of one process; None when it does not exist."""
    content = _read(PROC / str(pid) / "stat")
    return None if content is None else parse_stat(content.decode(errors="replace"))


def snapshot() -> dict[int, ProcessStat]:
    """Every process that can be seen, by number."""
    return {found.pid: found for pid in pids() if (found := stat(pid)) is not None}


def title(pid: int, comm: str = "") -> str:
    """The command line for people, values of secret flags removed; `[comm]` for a zombie."""
    content = _read(PROC / str(pid) / "cmdline")
    words = (content or b"").decode(errors="replace").rstrip("\0 ").split("\0")
    line = " ".join(" ".join(_hide_secrets(words)).split())  # a newline must not forge a log line
    return line[:_TITLE_LENGTH] or f"[{comm}]"


def environ_value(pid: int, name: str) -> str | None:
    """A variable a process was started with; None when unset or unreadable.

    Programs that retitle themselves (setproctitle) may overwrite this area with their title,
    so that absence proves nothing.
    """
    content = _read(PROC / str(pid) / "environ")
    prefix = f"{name}=".encode()
    for entry in (content or b"").split(b"\0"):
        if entry.startswith(prefix):
            return entry[len(prefix) :].decode(errors="replace")
    return None


def cgroup_of(pid: int | str) -> str | None:
    """The cgroup2 path of a process as its cgroup namespace shows it; None when unknown."""
    content = _read(PROC / str(pid) / "cgroup")
    for line in (content or b"").decode(errors="replace").splitlines():
        if line.startswith("0::"):
            return line[3:]
    return None


def ancestors(pid: int) -> frozenset[int]:
    """The process itself and every parent up to the root."""
    found: set[int] = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        entry = stat(pid)
        pid = entry.ppid if entry is not None else 0
    return frozenset(found)


def boot_id() -> str:
    """Changes with every boot, so that recorded process numbers expire with it."""
    content = _read(PROC / "sys/kernel/random/boot_id")
    return (content or b"").decode().strip()


def shared_memory(pid: int) -> frozenset[tuple[str, int]]:
    """Names and inodes of the /dev/shm files a process has mapped or open."""
    return frozenset({*_mapped_shared_memory(pid), *_open_shared_memory(pid)})


def _mapped_shared_memory(pid: int) -> Iterator[tuple[str, int]]:
    content = _read(PROC / str(pid) / "maps")
    for line in (content or b"").decode(errors="replace").splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and _is_shared_memory(fields[5]):
            yield fields[5], int(fields[4])


def _open_shared_memory(pid: int) -> Iterator[tuple[str, int]]:
    for link in descriptors(pid):
        try:
            target = str(link.readlink())
            if _is_shared_memory(target):
                yield target, link.stat().st_ino
        except OSError:
            continue


def _is_shared_memory(path: str) -> bool:
    return path.startswith("/dev/shm/") and not path.endswith(" (deleted)")  # noqa: S108


def descriptors(pid: int) -> tuple[Path, ...]:
    """Links of a process's open descriptors; empty when they may not be read."""
    try:
        return tuple((PROC / str(pid) / "fd").iterdir())
    except OSError:
        return ()


def pids() -> Iterator[int]:
    """Numbers of all processes that can be seen."""
    with os.scandir(PROC) as entries:
        yield from (int(entry.name) for entry in entries if entry.name.isdigit())


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:  # gone, or not ours to read
        return None


def _hide_secrets(words: list[str]) -> Iterator[str]:
    hide_next = False
    for word in words:
        match = _SECRET_FLAG.match(word)
        if hide_next and not word.startswith("--"):
            yield "***"
        elif match and match["value"]:
            yield word.partition("=")[0] + "=***"
        else:
            yield word
        hide_next = match is not None and not match["value"]
