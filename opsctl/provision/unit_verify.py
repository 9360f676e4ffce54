"""Whether an installed unit is what it should be, by comparison and by systemd's own judgement."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from opsctl.provision.unit import Service, UnitFile
from opsctl.provision.unit_install import changes, under

THRESHOLD = 30
"""Most exposure, in tenths, as `systemd-analyze security --threshold` wants it: 3.0."""

Verdict = Literal["ok", "fail", "unknown"]


@dataclass(frozen=True)
class Check:
    """One look at the unit. `why` says what is wrong, or why it could not be told."""

    id: str
    status: Verdict
    why: str


def verify(
    service: Service, files: Sequence[UnitFile], root: Path = Path("/")
) -> tuple[Check, ...]:
    """Compare what is installed with what would be rendered, then let systemd judge what is there.

    Reads only. Where systemd's tools are missing, their checks are unknown.
    """
    compared = _compare(files, root)
    text = _installed(service, files, root)
    with tempfile.TemporaryDirectory(prefix="opsctl-unit-") as folder:
        unit = Path(folder) / service.name
        unit.write_text(text, encoding="utf-8", errors="surrogateescape")
        return (*compared, _syntax(unit), _exposure(unit))


def _compare(files: Sequence[UnitFile], root: Path) -> tuple[Check, ...]:
    different = {change.path: change for change in changes(files, root)}
    return tuple(
        Check(file.path, "fail", _difference(different[file.path].what))
        if file.path in different
        else Check(file.path, "ok", "as the configuration wants it")
        for file in files
    )


def _difference(what: str) -> str:
    words = {"new": "is not installed", "masked": "is masked", "mode": "is not 0644"}
    return words.get(what, "is not what the configuration wants (opsctl unit install --diff)")


def _installed(service: Service, files: Sequence[UnitFile], root: Path) -> str:
    """The unit as installed, its drop-in behind it; as rendered where it is not installed."""
    parts = []
    for file in files:
        if "/systemd/system/" in file.path:
            path = under(root, file.path)
            there = path.is_file() and not path.is_symlink()
            parts.append(path.read_text("utf-8", "surrogateescape") if there else file.content)
    # The assertion that the drop-in is there cannot hold for a copy in another folder.
    return re.sub(r"^AssertPathExists=.*$", "", "\n".join(parts), flags=re.MULTILINE)


def _syntax(unit: Path) -> Check:
    done = _analyze("verify", "--man=no", "--recursive-errors=no", str(unit))
    if isinstance(done, str):
        return Check("syntax", "unknown", done)
    said = done.stderr.strip().replace(str(unit), unit.name)
    # An unknown key or a bad value is only told on stderr, with exit code 0.
    if done.returncode == 0 and unit.name not in said:
        return Check("syntax", "ok", "systemd reads every line")
    return Check("syntax", "fail", said or f"systemd-analyze verify ended with {done.returncode}")


def _exposure(unit: Path) -> Check:
    done = _analyze(
        "security", "--offline=true", f"--threshold={THRESHOLD}", "--no-pager", str(unit)
    )
    if isinstance(done, str):
        return Check("exposure", "unknown", done)
    found = re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)
    if found is None:  # --offline came with systemd 250
        return Check("exposure", "unknown", done.stderr.strip() or "no verdict of systemd-analyze")
    wanted = f"{THRESHOLD / 10} or less"
    return Check(
        "exposure", "ok" if done.returncode == 0 else "fail", f"{found[1]}, wanted {wanted}"
    )


def _analyze(*arguments: str) -> subprocess.CompletedProcess[str] | str:
    program = shutil.which("systemd-analyze")
    if program is None:
        return "systemd-analyze is not here"
    try:
        return subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "systemd-analyze did not answer within 60 s"
