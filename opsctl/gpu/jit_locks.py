"""Locks in the caches of just-in-time compilers whose builder is dead.

A start that was killed while it compiled leaves its lock behind, and the next one waits for it for
ever at "Loading JIT ops" with an idle GPU (flashinfer issue 972). Two kinds: `baton` (torch
extensions) blocks by being there; `flock` (flashinfer, tvm-ffi, inductor) only while it is held,
its file may lie about for years without harm.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from opsctl.system import procfs
from opsctl.system.compilers import is_compiler

_MOST_DIRECTORIES = 20_000
VARIABLES = (
    "HOME",
    "XDG_CACHE_HOME",
    "FLASHINFER_WORKSPACE_BASE",
    "TVM_FFI_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "TRITON_HOME",
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
)
"""Environment variables that move a cache."""


@dataclass(frozen=True)
class Cache:
    """A cache directory of one user."""

    root: Path
    uid: int
    batons: bool = False


@dataclass(frozen=True)
class JitLock:
    """A lock file. `holder` is the process that has it open, or a compiler at work in the cache."""

    path: str
    kind: Literal["baton", "flock"]
    uid: int
    age: float
    holder: int | None = None
    title: str | None = None
    removed: bool = False
    why: str = ""

    @property
    def stale(self) -> bool:
        """Whether no builder lives, as far as can be seen."""
        return self.holder is None


def caches(uid: int, environment: Mapping[str, str]) -> tuple[Cache, ...]:
    """Where the compilers of a user keep what they built, given the engine's environment."""
    name, home = _name_and_home(uid, environment)
    base = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    extensions = base / "torch_extensions"
    triton = Path(environment.get("TRITON_HOME") or home) / ".triton/cache"
    inductor = Path(tempfile.gettempdir()) / f"torchinductor_{name}"
    return (
        Cache(flashinfer_cache(uid, environment), uid),
        Cache(Path(environment.get("TVM_FFI_CACHE_DIR") or base / "tvm-ffi"), uid),
        Cache(Path(environment.get("TORCH_EXTENSIONS_DIR") or extensions), uid, batons=True),
        Cache(Path(environment.get("TRITON_CACHE_DIR") or triton), uid),
        Cache(Path(environment.get("TORCHINDUCTOR_CACHE_DIR") or inductor), uid),
    )


def flashinfer_cache(uid: int, environment: Mapping[str, str]) -> Path:
    """Where FlashInfer keeps what it built for a user."""
    home = _name_and_home(uid, environment)[1]
    return Path(environment.get("FLASHINFER_WORKSPACE_BASE") or home) / ".cache/flashinfer"


def _name_and_home(uid: int, environment: Mapping[str, str]) -> tuple[str, Path]:
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return str(uid), Path(environment.get("HOME") or "/nonexistent")
    return user.pw_name, Path(environment.get("HOME") or user.pw_dir)


def caches_of(pid: int) -> tuple[Cache, ...]:
    """The caches of a living process."""
    uid = procfs.owner(pid)
    if uid is None:
        return ()
    values = {name: procfs.environ_value(pid, name) for name in VARIABLES}
    return caches(uid, {name: value for name, value in values.items() if value})


def of_caller() -> frozenset[Cache]:
    """The caches of whoever asks."""
    return frozenset(caches(os.geteuid(), os.environ))


def survey(found_in: Iterable[Cache], *, clear: bool = False) -> tuple[JitLock, ...]:
    """Lock files of these caches; with `clear`, those without a living builder are removed."""
    roots = {replace(cache, root=Path(os.path.realpath(cache.root))) for cache in found_in}
    return tuple(lock for cache in sorted(roots, key=str) for lock in _cache(cache, clear))


def _cache(cache: Cache, clear: bool) -> Iterator[JitLock]:
    if not os.access(cache.root, os.R_OK | os.X_OK):
        return
    builder, opened = _builder(cache.root), _opened()
    for directory, where, name in _lock_files(cache.root):
        lock = _lock(cache, directory, where, name)
        if lock is not None:
            lock = _held_by(lock, opened.get(lock.path, builder))
            yield _cleared(lock, directory, name) if clear else lock


def _lock_files(root: Path) -> Iterator[tuple[int, str, str]]:
    """Descriptor and path of a directory, and the name of a lock in it.

    Walking by descriptor, so that a directory swapped for a link leads nowhere else.
    """
    with contextlib.suppress(OSError):
        for count, (where, _, names, directory) in enumerate(os.fwalk(root)):
            if count >= _MOST_DIRECTORIES:
                return
            for name in names:
                if name == "lock" or name.endswith(".lock"):
                    yield directory, where, name


def _lock(cache: Cache, directory: int, where: str, name: str) -> JitLock | None:
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode) or status.st_uid != cache.uid:
        return None
    kind: Literal["baton", "flock"] = "baton" if cache.batons and name == "lock" else "flock"
    age = max(0.0, time.time() - status.st_mtime)
    return JitLock(os.path.join(where, name), kind, cache.uid, age)  # noqa: PTH118


def _held_by(lock: JitLock, holder: int | None) -> JitLock:
    return lock if holder is None else replace(lock, holder=holder, title=procfs.title(holder))


def _cleared(lock: JitLock, directory: int, name: str) -> JitLock:
    """Remove a lock nobody has, or say why not."""
    if not lock.stale:
        return replace(lock, why=f"process {lock.holder} builds")
    if os.geteuid() not in {0, lock.uid}:
        return replace(lock, why="its user's processes may not be looked into")
    try:
        if lock.kind == "baton":
            if (holder := _opened().get(lock.path)) is not None:
                return replace(lock, holder=holder, why=f"process {holder} builds")
            os.unlink(name, dir_fd=directory)
        else:
            _unlink_locked(name, directory)
    except BlockingIOError:
        return replace(lock, why="locked by a process that cannot be seen, perhaps on another host")
    except OSError as error:
        return replace(lock, why=str(error.strerror))
    return replace(lock, removed=True)


def _unlink_locked(name: str, directory: int) -> None:
    """Hold the lock while its file goes, so that nobody gets it in between and works unlocked."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=directory)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(name, dir_fd=directory)
    finally:
        os.close(descriptor)


def _opened() -> dict[str, int]:
    """Lock files that are open, and by whom."""
    opened = {}
    for pid in procfs.pids():
        for link in procfs.descriptors(pid):
            with contextlib.suppress(OSError):
                target = str(link.readlink())
                if target.endswith("lock"):
                    opened[target] = pid
    return opened


def _builder(root: Path) -> int | None:
    """A compiler that lives and works in or for this cache."""
    for pid in procfs.pids():
        if is_compiler(procfs.title(pid)) and _works_in(pid, root):
            return pid
    return None


def _works_in(pid: int, root: Path) -> bool:
    """A compiler that may not be looked into counts: better a lock too many than a torn build."""
    try:
        where = (procfs.PROC / str(pid) / "cwd").readlink()
        line = (procfs.PROC / str(pid) / "cmdline").read_bytes()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return where.is_relative_to(root) or os.fsencode(root) in line
