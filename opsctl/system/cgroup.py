"""Control groups (cgroup2) as a fence around one engine: what is born inside stays inside.

Neither a double fork nor a new session leaves a cgroup, and `cgroup.kill` ends everything in it
in one step that no fork can outrun. Only membership is used, never a controller, so the rule
that inner groups hold no processes (it binds groups that distribute controllers) does not apply.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opsctl.system import procfs


@dataclass(frozen=True)
class Cgroup:
    """One cgroup2 directory, named by its absolute path."""

    path: Path

    def create(self, name: str) -> Cgroup:
        """Make a group below this one; raises OSError where that is not allowed."""
        child = Cgroup(self.path / name)
        child.path.mkdir(mode=0o755)
        return child

    def pids(self) -> frozenset[int]:
        """Living processes of this group and of groups below it."""
        return frozenset(pid for group in self._groups() for pid in _pids(group))

    def kill(self) -> bool:
        """SIGKILL everything in the group at once; False where the kernel (before 5.14) cannot."""
        try:
            (self.path / "cgroup.kill").write_text("1")
        except OSError:
            return False
        return True

    def remove(self) -> bool:
        """Remove the group and those below it; False while any of them still holds a process."""
        try:
            for group in reversed(tuple(self._groups())):
                group.rmdir()
        except OSError:
            return not self.path.exists()
        return True

    def sweep(self, prefix: str, *, older_than: float) -> None:
        """Remove empty groups of this prefix that nobody cleared away, some seconds after birth."""
        for group in self.path.glob(f"{prefix}*"):
            with contextlib.suppress(OSError):  # not empty, or not ours
                if time.time() - group.stat().st_mtime > older_than:
                    group.rmdir()

    def _groups(self) -> Iterator[Path]:
        for directory, _, _ in os.walk(self.path):
            yield Path(directory)


def writable_parent() -> Cgroup | None:
    """The group opsctl itself lives in, when groups may be made below it; None otherwise.

    The cgroup2 mount is found through mountinfo: a hybrid host has it beside the old hierarchies.
    """
    directory = directory_of(procfs.cgroup_of("self"))
    if directory is None or not _may_create(directory):
        return None
    return Cgroup(directory)


def directory_of(path: str | None) -> Path | None:
    """The directory of the cgroup2 path that /proc/PID/cgroup shows; None when not visible."""
    content = (procfs.PROC / "self/mountinfo").read_text(errors="surrogateescape")
    return own_directory(content, path)


def own_directory(mountinfo: str, own: str | None) -> Path | None:
    """Where the cgroup2 path `own` is visible, given the text of /proc/self/mountinfo."""
    if own is None or own.startswith("/.."):  # outside this cgroup namespace
        return None
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        if rest.split(" ", 1)[0] != "cgroup2":
            continue
        root, mount_point = (_unescape(field) for field in fields.split()[3:5])
        if root == "/":
            return Path(mount_point + own)
        if own == root or own.startswith(root + "/"):  # a bind mount of one branch
            return Path(mount_point + own[len(root) :])
    return None


def _may_create(directory: Path) -> bool:
    """Joining a child group needs write access to cgroup.procs of the common ancestor too."""
    try:
        kind = (directory / "cgroup.type").read_text().strip()
    except OSError:  # the root group has no type
        kind = "domain"
    return (
        kind in {"domain", "domain threaded"}
        and os.access(directory, os.W_OK | os.X_OK)
        and os.access(directory / "cgroup.procs", os.W_OK)
    )


def _pids(group: Path) -> tuple[int, ...]:
    try:
        return tuple(int(line) for line in (group / "cgroup.procs").read_text().split())
    except OSError as error:
        if procfs.is_blind(error):
            raise
        return ()
    except ValueError:
        return ()


def _unescape(field: str) -> str:
    """mountinfo writes space, tab, newline and backslash as octal."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field
