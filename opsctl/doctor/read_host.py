"""Reads limits, memory, /dev/shm, governors and small files of the kernel."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

from opsctl.config.state_dir import state_dir
from opsctl.doctor.checks import driver, links, peers, system
from opsctl.doctor.host import Limits, Memory, Shm
from opsctl.doctor.sources import Sources, Subject, text
from opsctl.gpu import engines

TEXTS = (
    driver.VERSION_FILE,
    peers.PARAMS,
    links.CMDLINE,
    links.ASPM,
    links.HMM,
    system.NUMA_BALANCING,
    system.SWAPPINESS,
    system.PTRACE_SCOPE,
    system.SELF_STATUS,
    system.THP,
)
"""Small files that checks look at as they are."""
_NO_LIMIT = 1 << 62
"""From here on a cgroup's limit of memory is none."""


def texts(sources: Sources) -> dict[str, str]:
    """Read the small files that are there."""
    found = {path: text(sources.at(path)) for path in TEXTS}
    return {path: content for path, content in found.items() if content is not None}


def limits(sources: Sources, subject: Subject) -> tuple[Limits, ...]:
    """Read the limits of recorded engines that live, else of this process."""
    directory = state_dir(None, subject.config, sources.environment)
    alive = [engine.pid for engine in engines.known((directory,)) if engine.main_alive]
    found = [(f"engine (pid {pid})", str(pid)) for pid in alive] or [("this process", "self")]
    read = [(of, text(sources.proc / pid / "limits")) for of, pid in found]
    return tuple(
        parsed
        for of, content in read
        if content is not None and (parsed := parse_limits(content, of)) is not None
    )


def parse_limits(content: str, of: str) -> Limits | None:
    """Read /proc/PID/limits; None when it is not such a text. The soft limits count."""
    memlock = re.search(r"^Max locked memory\s+(unlimited|\d+)\s", content, re.MULTILINE)
    nofile = re.search(r"^Max open files\s+(unlimited|\d+)\s", content, re.MULTILINE)
    if memlock is None or nofile is None:
        return None
    return Limits(of, _limit(memlock[1]), _limit(nofile[1]))


def _limit(word: str) -> int | None:
    return None if word == "unlimited" else int(word)


def memory(sources: Sources) -> Memory:
    """Read /proc/meminfo and the limit of this process's cgroup."""
    values = parse_meminfo(text(sources.proc / "meminfo") or "")
    return Memory(
        total=values.get("MemTotal", 0),
        available=values.get("MemAvailable", 0),
        cgroup_limit=_cgroup_limit(sources),
        huge=values.get("HugePages_Total", 0) * values.get("Hugepagesize", 0),
    )


def parse_meminfo(content: str) -> dict[str, int]:
    """Read /proc/meminfo: bytes, or a number where no unit stands."""
    found = re.findall(r"^(\w+(?:\(\w+\))?):\s+(\d+)( kB)?\s*$", content, re.MULTILINE | re.ASCII)
    return {name: int(value) * (1024 if unit else 1) for name, value, unit in found}


def _cgroup_limit(sources: Sources) -> int | None:
    """Return the least limit of this process's cgroup2 path, where that is mounted as usual."""
    own = re.search(r"^0::(/\S*)$", text(sources.proc / "self/cgroup") or "", re.MULTILINE)
    if own is None:
        return None
    found = []
    directory = sources.sys / "fs/cgroup" / own[1].lstrip("/")
    while directory != sources.sys / "fs" and directory != directory.parent:
        value = (text(directory / "memory.max") or "max").strip()
        if value.isdecimal() and int(value) < _NO_LIMIT:
            found.append(int(value))
        directory = directory.parent
    return min(found, default=None)


def shm(sources: Sources) -> Shm:
    """Read size and free space of /dev/shm."""
    try:
        status = os.statvfs(sources.shm)
    except OSError:
        return Shm()
    return Shm(status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail)


def governors(sources: Sources) -> dict[str, int]:
    """Count the CPUs with each frequency governor."""
    files = (sources.sys / "devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    found = (text(path) for path in files)
    return dict(Counter(content.strip() for content in found if content))


def file_system(sources: Sources, path: Path) -> str | None:
    """Return the type of the file system a path is on; None when it cannot be told."""
    try:
        real = os.path.realpath(path)
    except OSError:
        return None
    return type_of_mount(text(sources.proc / "self/mountinfo") or "", real)


def type_of_mount(mountinfo: str, path: str) -> str | None:
    """Find the mount a path is on in the text of /proc/self/mountinfo; later ones lie on top."""
    best: tuple[int, str] | None = None
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        words = fields.split(" ")
        if len(words) < 5 or not rest:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), words[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and (best is None or len(point) >= best[0]):
            best = (len(point), rest.split(" ", 1)[0])
    return best[1] if best else None
