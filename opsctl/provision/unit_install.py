"""Lays the files of a unit on the host: shown first, replaced whole, only where they are ours."""

from __future__ import annotations

import difflib
import shutil
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.errors import OpsctlError, PreconditionError
from opsctl.provision.unit import MARK, UNITS, UnitFile
from opsctl.system.files import write_atomic

MODE = 0o644
_WANTS = "multi-user.target.wants"


@dataclass(frozen=True)
class Change:
    """One file that is not as it should be. `before` is None where there is none."""

    path: str
    before: str | None
    after: str
    masked: bool = False
    """Whether the unit was masked, a link to /dev/null: it can then not be started at all."""

    @property
    def what(self) -> str:
        """In one word: new, masked, changed, or mode (only its permissions are wrong)."""
        if self.masked:
            return "masked"
        if self.before is None:
            return "new"
        return "mode" if self.before == self.after else "changed"

    def diff(self) -> str:
        """Lines of a unified diff."""
        before = (self.before or "").splitlines(keepends=True)
        lines = difflib.unified_diff(
            before, self.after.splitlines(keepends=True), self.path, self.path
        )
        return "".join(lines)


def changes(files: Sequence[UnitFile], root: Path = Path("/")) -> tuple[Change, ...]:
    """What has to be written so that the files are as rendered; reads only.

    Raises PreconditionError for a file in the way that opsctl did not write.
    """
    found = (_change(file, under(root, file.path)) for file in files)
    return tuple(change for change in found if change is not None)


def _change(file: UnitFile, path: Path) -> Change | None:
    if path.is_symlink():
        if str(path.readlink()) != "/dev/null":
            raise _foreign(path, f"a link to {path.readlink()}")
        return Change(file.path, None, file.content, masked=True)
    try:
        before = path.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return Change(file.path, None, file.content)
    except OSError as error:
        raise PreconditionError(f"{path} cannot be read: {error.strerror}") from error
    if before.strip() and not before.startswith(MARK):
        raise _foreign(path, "it does not begin with the mark of opsctl's files")
    same = before == file.content and stat.S_IMODE(path.stat().st_mode) == MODE
    return None if same else Change(file.path, before, file.content)


def _foreign(path: Path, why: str) -> PreconditionError:
    return PreconditionError(
        f"{path} was not written by opsctl: {why}",
        hint="move it away, or put your settings in a drop-in (systemctl edit)",
    )


def is_enabled(unit: str, root: Path = Path("/")) -> bool:
    """Whether the unit is started at boot."""
    return under(root, f"{UNITS}/{_WANTS}/{unit}").is_symlink()


def apply(wanted: Sequence[Change], root: Path = Path("/")) -> None:
    """Write the files; a running systemd then reads them, and makes the lock's folder.

    Nothing is started, stopped or restarted. Raises PreconditionError where that is not allowed.
    """
    for change in wanted:
        path = under(root, change.path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, change.after, MODE)
        except OSError as error:
            raise PreconditionError(
                f"{path} cannot be written: {error.strerror}", hint="run it as root"
            ) from error
    if root == Path("/") and wanted and runs_systemd():
        _call("systemctl", "daemon-reload")
        _call("systemd-tmpfiles", "--create", *(x.path for x in wanted if "tmpfiles" in x.path))


def enable(unit: str, root: Path = Path("/")) -> None:
    """Have the unit started at boot; it is not started now."""
    _call("systemctl", *([] if root == Path("/") else [f"--root={root}"]), "enable", unit)


def runs_systemd() -> bool:
    """Whether this host was booted with systemd (sd_booted(3))."""
    return Path("/run/systemd/system").is_dir()


def under(root: Path, path: str) -> Path:
    """An absolute path in the tree of a system that lies below `root`."""
    return root / path.lstrip("/")


def _call(program: str, *arguments: str) -> None:
    if program == "systemd-tmpfiles" and arguments == ("--create",):
        return  # it would go through everybody's files
    found = shutil.which(program)
    if found is None:
        raise PreconditionError(f"{program} is not here: this host has no systemd")
    done = subprocess.run(
        [found, *arguments], capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode != 0:
        raise OpsctlError(f"{program} {' '.join(arguments)}: {done.stderr.strip()}")
