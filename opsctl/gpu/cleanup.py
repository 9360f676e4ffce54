"""Files that ended processes leave behind: /dev/shm segments, sockets and temporary files.

Whose a file is can only be proved while its owner lives, so it is recorded then, by inode, and
removed afterwards, if nobody else has it. Names alone decide nothing.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from opsctl.system import procfs, segments

_FAMILIES = ("sglang", "sgl_")
_PROMETHEUS = ".db"
_ENDPOINTS = "pymp-"


@dataclass(frozen=True)
class TempFile:
    """A file as it was while its owner lived."""

    path: str
    device: int
    inode: int
    uid: int
    socket: bool


@dataclass(frozen=True)
class Belongings:
    """What some processes had, to be removed when they are dead."""

    segments: frozenset[segments.Segment] = frozenset()
    files: frozenset[TempFile] = frozenset()
    uids: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Removed:
    """Paths that were removed, and those still there because somebody has them."""

    removed: tuple[str, ...]
    kept: tuple[str, ...]


def record(pids: Iterable[int]) -> Belongings:
    """Files of living processes that carry the marks of an engine.

    A process with another view of the file system (a container) is passed over: its paths mean
    other files here.
    """
    here = [pid for pid in pids if _same_files(pid)]
    bound = _bound_sockets()
    return Belongings(
        segments=segments.used_by(here),
        files=frozenset(file for pid in here for file in _files(pid, bound)),
        uids=frozenset(uid for pid in here if (uid := procfs.owner(pid)) is not None),
    )


def remove(belongings: Belongings) -> Removed:
    """Remove what was recorded, is still the same file, and is in nobody's hands."""
    shared = segments.remove_unused(belongings.segments, belongings.uids)
    gone = {path for path, _ in shared}
    left = {path for path, _ in segments.remaining(belongings.segments)}
    bound = frozenset(_bound_sockets().values())
    regular = {(file.device, file.inode) for file in belongings.files if not file.socket}
    held = _open_files(regular) if regular else frozenset()
    for file in belongings.files:
        busy = file.path in bound if file.socket else (file.device, file.inode) in held
        if not busy and _unlink(file):
            gone.add(file.path)
        elif _is_same(file):
            left.add(file.path)
    return Removed(tuple(sorted(gone)), tuple(sorted(left)))


def _files(pid: int, bound: dict[int, str]) -> Iterator[TempFile]:
    uid = procfs.owner(pid)
    roots = _temporary_roots(pid)
    for link in procfs.descriptors(pid):
        with contextlib.suppress(OSError, ValueError):
            target = str(link.readlink())
            if target.startswith("socket:["):
                path = bound.get(int(target[8:-1]), "")
            else:
                path = target if _is_family(target, pid) else ""
            if path and _below(path, roots):
                found = Path(path).lstat()
                if found.st_uid == uid and (stat.S_ISSOCK if path != target else stat.S_ISREG)(
                    found.st_mode
                ):
                    yield TempFile(path, found.st_dev, found.st_ino, uid, path != target)


def _is_family(path: str, pid: int) -> bool:
    """SGLang's own names, and the metric files prometheus_client keeps per process."""
    name = path.rpartition("/")[2]
    return name.startswith(_FAMILIES) or name.endswith(f"_{pid}{_PROMETHEUS}")


def _temporary_roots(pid: int) -> frozenset[str]:
    own = procfs.environ_value(pid, "TMPDIR")
    return frozenset(root.rstrip("/") for root in (tempfile.gettempdir(), own) if root)


def _below(path: str, roots: Iterable[str]) -> bool:
    return ".." not in path.split("/") and any(path.startswith(root + "/") for root in roots)


def _unlink(file: TempFile) -> bool:
    """Unlink through the directory, so that a swapped one is not followed somewhere else."""
    parent, _, name = file.path.rpartition("/")
    try:
        directory = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if (found.st_dev, found.st_ino, found.st_uid) != (file.device, file.inode, file.uid):
            return False
        os.unlink(name, dir_fd=directory)
    except OSError:
        return False
    finally:
        os.close(directory)
    base = parent.rpartition("/")[2]
    if base.startswith(_ENDPOINTS) or file.path.endswith(_PROMETHEUS):
        with contextlib.suppress(OSError):  # others still have files in it
            Path(parent).rmdir()
    return True


def _is_same(file: TempFile) -> bool:
    try:
        found = Path(file.path).lstat()
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (file.device, file.inode)


def _bound_sockets() -> dict[int, str]:
    """Paths of unix sockets that are bound in this network namespace, by socket inode."""
    try:
        text = (procfs.PROC / "net/unix").read_text(errors="surrogateescape")
    except OSError:
        return {}
    lines = (line.split(None, 7) for line in text.splitlines()[1:])
    return {
        int(fields[6]): fields[7]
        for fields in lines
        if len(fields) == 8 and fields[6].isdigit() and fields[7].startswith("/")
    }


def _open_files(wanted: set[tuple[int, int]]) -> frozenset[tuple[int, int]]:
    """Which of these files some process has open."""
    found = set()
    for pid in procfs.pids():
        for link in procfs.descriptors(pid):
            with contextlib.suppress(OSError):
                status = link.stat()
                found.add((status.st_dev, status.st_ino))
    return frozenset(found & wanted)


def _same_files(pid: int) -> bool:
    try:
        own = (procfs.PROC / "self/ns/mnt").stat()
        theirs = (procfs.PROC / str(pid) / "ns/mnt").stat()
    except OSError:
        return False
    return (own.st_dev, own.st_ino) == (theirs.st_dev, theirs.st_ino)
