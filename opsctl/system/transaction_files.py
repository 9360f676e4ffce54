"""The steps on disk that a change of several files is made of; each may be the last one."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from opsctl.errors import PreconditionError

STRAY = re.compile(r"\.opsctl-[0-9a-f]{12}-[0-9a-f]{8}-\d+\.(new|old)")
"""Names beside the targets: of what is to come, and of what was there."""

NO_FILE = "no regular file"
"""Stands in for the digest of a directory, a symbolic link or a device."""

_CANNOT_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM}
_CANNOT_LINK = {errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS, errno.EXDEV}
_WORDS = {
    errno.ENOSPC: ("no space left on the disk", "free some space there, then run it again"),
    errno.EDQUOT: ("the disk quota is used up", "free some space there, then run it again"),
    errno.EROFS: (
        "the file system is read-only",
        "mount it writable, or change the image that it comes from",
    ),
    errno.EACCES: ("permission denied", "run it as the owner of the file, or as root"),
    errno.EPERM: (
        "the system does not permit it",
        "run it as the owner of the file, or as root; `lsattr` shows whether it is immutable",
    ),
    errno.EBUSY: ("it is in use as a mount point", "unmount it, then run it again"),
}


def mark(journal: Path) -> str:
    """Return the part of a stray's name that tells whose it is: one journal, one mark."""
    place = str(journal.parent.resolve() / journal.name)
    return hashlib.sha256(place.encode(errors="surrogateescape")).hexdigest()[:12]


def strays(folders: Iterable[Path], journal: Path) -> list[Path]:
    """Return what runs with this journal left in these folders."""
    start = f".opsctl-{mark(journal)}-"
    return [
        entry
        for folder in sorted(set(folders))
        if folder.is_dir()
        for entry in sorted(folder.iterdir())
        if entry.name.startswith(start) and STRAY.fullmatch(entry.name) and not entry.is_dir()
    ]


def digest(path: Path) -> str | None:
    """Return a regular file's SHA-256, None where nothing is, NO_FILE for anything else."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return NO_FILE
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_new(
    path: Path, content: bytes, *, mode: int, owner: os.stat_result, mtime_ns: int | None
) -> None:
    """Write a file that is not there yet, flushed, with owner and group as in `owner`.

    They stay the caller's where the system does not let it give files away. Raises OSError.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        _give(descriptor, owner)
        os.fchmod(descriptor, mode)  # after the owner: a change of owner takes bits away
        if mtime_ns is not None:
            os.utime(descriptor, ns=(time.time_ns(), mtime_ns))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def keep_old(path: Path, old: Path) -> None:
    """Give a file a second name, or where that cannot be had a copy; raises OSError.

    A second name costs no space and gives the very file back: inode, times, mode and owner.
    Some file systems have none, and Linux refuses it for files of others that are not writable
    (fs.protected_hardlinks).
    """
    try:
        old.hardlink_to(path)
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
        was = path.lstat()
        mode = stat.S_IMODE(was.st_mode)
        write_new(old, path.read_bytes(), mode=mode, owner=was, mtime_ns=was.st_mtime_ns)


def discard(path: Path) -> None:
    """Remove a file of opsctl's own, if it is there; raises OSError.

    It is looked for first: on a read-only file system even removing nothing is an error.
    """
    if os.path.lexists(path):
        path.unlink()


def make_folder(path: Path) -> None:
    """Make a directory that belongs to whom its parent belongs to; raises OSError."""
    path.mkdir(0o755)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _give(descriptor, path.parent.stat())
    finally:
        os.close(descriptor)


def remove_folder(path: Path) -> None:
    """Remove a directory unless somebody has put something into it; raises OSError."""
    try:
        path.rmdir()
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST}:
            raise


def sync(folders: Iterable[Path]) -> None:
    """Make names in directories survive a power cut; raises OSError.

    Directories that are gone and file systems that cannot are passed over.
    """
    for folder in sorted(folder for folder in set(folders) if folder.is_dir()):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno not in _CANNOT_SYNC:
                raise


@contextmanager
def about(path: Path) -> Iterator[None]:
    """Let an OSError name the file that it is about, not one of the names beside it."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def in_words(error: OSError, outcome: str) -> PreconditionError:
    """Say what failed, where, what that left behind and what to do next."""
    usual = (error.strerror or str(error), "see that the disk and the folder are in order")
    what, hint = _WORDS.get(error.errno or 0, usual)
    where = f"{error.filename}: " if error.filename else ""
    return PreconditionError(f"{where}{what}; {outcome}", hint=hint)


def _give(descriptor: int, owner: os.stat_result) -> None:
    now = os.fstat(descriptor)
    if owner.st_gid != now.st_gid:
        with contextlib.suppress(OSError):
            os.fchown(descriptor, -1, owner.st_gid)
    if owner.st_uid != now.st_uid:
        with contextlib.suppress(OSError):
            os.fchown(descriptor, owner.st_uid, -1)
