"""For tests of transactions: a tree to change, what is seen of it, and a hand on every step."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from opsctl.system.transaction import FileChange

STEPS = (
    *("open", "write", "fsync", "fchmod", "fchown", "utime", "close"),
    *("link", "rename", "replace", "unlink", "mkdir", "rmdir"),
)
"""Every call by which a transaction changes something on disk."""

Step = Callable[[], Any]


def plant(root: Path) -> None:
    """Make a small environment: three files with times and modes of their own."""
    (root / "p").mkdir(parents=True)
    for name in ("p/a.py", "p/b.py", "top.py"):
        path = root / name
        path.write_text(f"old {name}")
        os.utime(path, ns=(1_000_000_007, 2_000_000_009))
    (root / "p/b.py").chmod(0o640)


def three(root: Path) -> list[FileChange]:
    """One file changed, one removed, one new in new directories."""
    return [
        FileChange(root / "p/a.py", b"new a"),
        FileChange(root / "p/b.py", None),
        FileChange(root / "q/r/c.py", b"new c"),
    ]


def snapshot(root: Path) -> dict[str, tuple[object, ...]]:
    """Everything that an undone change may not have touched; a directory has no times here."""
    seen: dict[str, tuple[object, ...]] = {}
    for path in sorted(root.rglob("*")):
        was = path.lstat()
        facts: tuple[object, ...] = (stat.filemode(was.st_mode), was.st_uid, was.st_gid)
        if stat.S_ISREG(was.st_mode):
            facts += (was.st_ino, was.st_nlink, was.st_mtime_ns, path.read_bytes())
        seen[str(path.relative_to(root))] = facts
    return seen


@contextmanager
def steps(act: Callable[[str, Step], Any]) -> Iterator[list[str]]:
    """Put `act(name of the step, the step)` around every step; yields what was done.

    Flushing is noted but left out: it costs time, and nothing here cuts the power.
    """
    done: list[str] = []
    with pytest.MonkeyPatch.context() as patched:
        for name in STEPS:
            patched.setattr(os, name, _around(name, getattr(os, name), act, done))
        yield done


def _around(
    name: str, real: Callable[..., Any], act: Callable[[str, Step], Any], done: list[str]
) -> Callable[..., Any]:
    def step(*arguments: Any, **options: Any) -> Any:
        done.append(f"{name} {arguments[0]}")
        if name == "fsync":
            return act(done[-1], lambda: None)
        return act(done[-1], lambda: real(*arguments, **options))

    return step
