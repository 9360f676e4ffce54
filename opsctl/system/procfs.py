"""What the kernel says about processes. Every function takes vanished processes for granted."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")

_SECRET_FLAG = re.compile(r"^--?[\w-]*(key|token|secret|password)[\w-]*(?P<value>=.*)?$", re.I)
_TITLE_LENGTH = 200
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO, the same number on every Linux


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


def is_blind(error: OSError) -> bool:
    """Whether it is this process that cannot read now, which proves nothing about others."""
    return error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


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
    content = _read(f"{PROC}/{pid}/stat")
    return None if content is None else parse_stat(content.decode(errors="replace"))


def snapshot() -> dict[int, ProcessStat]:
    """Every process that can be seen, by number."""
    return {found.pid: found for pid in pids() if (found := stat(pid)) is not None}


def title(pid: int, comm: str = "") -> str:
    """The command line for people, values of secret flags removed; `[comm]` for a zombie."""
    content = _read(f"{PROC}/{pid}/cmdline")
    words = (content or b"").decode(errors="replace").rstrip("\0 ").split("\0")
    line = " ".join(" ".join(_hide_secrets(words)).split())  # a newline must not forge a log line
    return line[:_TITLE_LENGTH] or f"[{comm}]"


def environ_value(pid: int, name: str) -> str | None:
    """A variable a process was started with; None when unset or unreadable.

    Programs that retitle themselves (setproctitle) may overwrite this area with their title,
    so that absence proves nothing.
    """
    content = _read(f"{PROC}/{pid}/environ")
    prefix = f"{name}=".encode()
    for entry in (content or b"").split(b"\0"):
        if entry.startswith(prefix):
            return entry[len(prefix) :].decode(errors="replace")
    return None


def cgroup_of(pid: int | str) -> str | None:
    """The cgroup2 path of a process as its cgroup namespace shows it; None when unknown."""
    content = _read(f"{PROC}/{pid}/cgroup")
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
    content = _read(f"{PROC}/sys/kernel/random/boot_id")
    return (content or b"").decode().strip()


def shared_memory(pid: int) -> frozenset[tuple[str, int]]:
    """Names and inodes of the /dev/shm files a process has mapped or open."""
    return frozenset({*_mapped_shared_memory(pid), *_open_shared_memory(pid)})


def _mapped_shared_memory(pid: int) -> Iterator[tuple[str, int]]:
    content = _read(f"{PROC}/{pid}/maps")
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


def open_files(pid: int) -> tuple[str, ...] | None:
    """What a process's descriptors point to; None when they may not be read."""
    directory = f"{PROC}/{pid}/fd"
    try:
        numbers = os.listdir(directory)  # noqa: PTH208 - thousands of them; paths cost twice as much
    except OSError:
        return None
    return tuple(target for n in numbers if (target := _readlink(f"{directory}/{n}")) is not None)


def mapped_files(pid: int) -> frozenset[str] | None:
    """Paths of the files a process has mapped; None when they may not be read."""
    content = _read(f"{PROC}/{pid}/maps")
    if content is None:
        return None
    lines = (line.split(None, 5) for line in content.decode(errors="replace").splitlines())
    return frozenset(fields[5] for fields in lines if len(fields) == 6)


def owner(pid: int) -> int | None:
    """The effective user id. The owner of /proc/PID itself is root where dumping is forbidden."""
    content = _read(f"{PROC}/{pid}/status")
    found = re.search(rb"^Uid:\s+\d+\s+(\d+)", content or b"", re.MULTILINE)
    return int(found[1]) if found else None


def age(start_time: int) -> float:
    """Seconds since a process started."""
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - start_time / _CLOCK_TICKS)


def wchan(pid: int) -> str | None:
    """The kernel function a process sleeps in; None when it runs or that may not be read."""
    name = (_read(f"{PROC}/{pid}/wchan") or b"").decode(errors="replace").strip()
    return name if name not in {"", "0"} else None


def kernel_stack(pid: int) -> tuple[str, ...]:
    """Kernel functions a process is in, innermost first, such as `uvm_spin_loop [nvidia_uvm]`.

    Empty for a process that runs in user space, and for everyone but root.
    """
    content = (_read(f"{PROC}/{pid}/stack") or b"").decode(errors="replace")
    found = re.findall(r"^\[<\w+>\] ([\w.]+)(?:\+\S+)?(?: (\[\w+\]))?", content, re.MULTILINE)
    return tuple(f"{name} {module}".strip() for name, module in found)


def thread_count(pid: int) -> int:
    """Threads of a process; a zombie with more than one still lives in the others."""
    try:
        return len(list((PROC / str(pid) / "task").iterdir()))
    except OSError:
        return 0


def in_first_pid_namespace() -> bool | None:
    """Whether process numbers here are those of the host; None when that cannot be told."""
    try:
        return (PROC / "self/ns/pid").stat().st_ino == _FIRST_PID_NAMESPACE
    except OSError:
        return None


def locked(path: Path) -> int | None:
    """The process that holds an advisory lock on a file; None when nobody is seen to."""
    try:
        inode = path.stat().st_ino
    except OSError:
        return None
    content = (_read(f"{PROC}/locks") or b"").decode(errors="replace")
    for line in content.splitlines():  # 1: FLOCK  ADVISORY  WRITE 31152 fe:00:2368912 0 EOF
        fields = line.split()
        if len(fields) == 8 and fields[5].rpartition(":")[2] == str(inode):
            return int(fields[4])
    return None


def _readlink(path: str) -> str | None:
    try:
        return os.readlink(path)  # noqa: PTH115 - as in open_files
    except OSError:  # closed meanwhile, or not ours to read
        return None


def _read(path: str) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if is_blind(error):
            raise
        return None  # gone, or not ours to read
    try:
        return b"".join(iter(lambda: os.read(descriptor, 65536), b""))
    except OSError:
        return None
    finally:
        os.close(descriptor)


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
