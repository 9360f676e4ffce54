"""Environments to patch in tests: released files laid out as a venv has them, and what is seen."""

from __future__ import annotations

import hashlib
import io
import json
import os
import py_compile
import shutil
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from opsctl.cli.main import run
from opsctl.patching.record import digest, digests, rewritten
from opsctl.patching.series import load
from tests.support.released import released_or_skip

PINS = {
    "0.5.9": "0.6.3",
    "0.5.10": "0.6.7.post2",
    "0.5.11": "0.6.8.post1",
    "0.5.12": "0.6.11.post1",
    **dict.fromkeys(("0.5.13", "0.5.14", "0.5.15"), "0.6.12"),
    "0.5.16": "0.6.14",
    "0.5.17": "0.6.15.post1",
    "0.5.18": "0.6.17",
    **dict.fromkeys(("0.5.19", "0.5.20", "0.5.21"), "0.6.18"),
    "0.5.22": "0.7.1",
    "0.5.23": "0.7.2",
}
"""The FlashInfer that each SGLang asks for."""

NO_CACHE = {"FLASHINFER_WORKSPACE_BASE": "/nonexistent"}
"""Keeps a test away from the JIT cache of whoever runs it."""

TAG = sys.implementation.cache_tag
Photograph = dict[str, tuple[object, ...]]


@dataclass(frozen=True)
class Answer:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """Return the JSON that it printed."""
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def states(self) -> dict[str, str]:
        """Return the state of each patch."""
        return {x["name"]: x["state"] for x in self.document["patches"]}

    @property
    def reasons(self) -> dict[str, str]:
        """Return the reason of each state."""
        return {x["name"]: x["reason"] for x in self.document["patches"]}


def patch(*arguments: object) -> Answer:
    """Run `opsctl patch ... -o json` in this process; nothing is flushed, as nothing cuts power.

    The JIT cache of whoever runs the tests is out of reach.
    """
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: None)
        patched.setenv("FLASHINFER_WORKSPACE_BASE", NO_CACHE["FLASHINFER_WORKSPACE_BASE"])
        patched.setattr("sys.stdout", out)
        patched.setattr("sys.stderr", err)
        code = run(["patch", *map(str, arguments), "-o", "json"])
    return Answer(code, out.getvalue(), err.getvalue())


def touched(package: str, version: str) -> list[str]:
    """Return the files that patches change in a release."""
    files = [x.file_for(version) for x in load().patches if x.package == package]
    return [change.path for file in files if file is not None for change in file.changes]


def all_touched(sglang: str = "0.5.14") -> set[str]:
    """Return the files that patches change in a release and in its FlashInfer."""
    return {path for package, version in packages(sglang) for path in touched(package, version)}


def packages(sglang: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return SGLang and the FlashInfer it pins."""
    return ("sglang", sglang), ("flashinfer-python", PINS[sglang])


def whole(folder: Path, sglang: str) -> Path:
    """Lay out a release with all its files, hard links where no patch reaches them."""
    root = _venv(folder)
    for package, version in packages(sglang):
        release = released_or_skip(package, version)
        shutil.copytree(release, root, copy_function=os.link, dirs_exist_ok=True)
        info = _info(root, package, version).name
        for path in (*touched(package, version), *_files(release, info)):
            (root / path).unlink()
            shutil.copy2(release / path, root / path)
    return root


def small(folder: Path, sglang: str = "0.5.14", *, byte_code: bool = True) -> Path:
    """Lay out only the files that patches reach and the metadata; with byte code as pip does it."""
    root = _venv(folder)
    for package, version in packages(sglang):
        release = released_or_skip(package, version)
        wanted = touched(package, version) or [f"{_module(package)}/__init__.py"]
        for path in (*wanted, *_files(release, _info(release, package, version).name)):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(release / path, root / path)
        if byte_code:
            compile_all(root, package, version)
    return root


def compile_all(root: Path, package: str, version: str) -> None:
    """Compile the files that patches reach, and note that in RECORD as pip does."""
    record = _info(root, package, version) / "RECORD"
    made: dict[str, bytes | None] = {}
    for path in touched(package, version):
        made[byte_code(path)] = None
        py_compile.compile(str(root / path), str(root / byte_code(path)), doraise=True)
    record.write_bytes(rewritten(record.read_bytes(), {}, made, ()))


def byte_code(path: str, tag: str = TAG) -> str:
    """Return where the byte code of a file lies."""
    source = Path(path)
    return str(source.parent / "__pycache__" / f"{source.stem}.{tag}.pyc")


def _venv(folder: Path) -> Path:
    version = f"python3.{sys.version_info.minor}"
    root = folder / "lib" / version / "site-packages"
    root.mkdir(parents=True)
    (folder / "bin").mkdir()
    for name in ("python", version):
        (folder / "bin" / name).symlink_to(sys.executable)
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    return root.resolve()


def info(root: Path, package: str = "sglang") -> Path:
    """Return the metadata folder of a package."""
    (found,) = root.glob(f"{package.replace('-', '_')}-*.dist-info")
    return found


def _info(root: Path, package: str, version: str) -> Path:
    return root / f"{package.replace('-', '_')}-{version}.dist-info"


def _module(package: str) -> str:
    return package.partition("-")[0]


def _files(release: Path, folder: str) -> Iterator[str]:
    for path in (release / folder).rglob("*"):
        if path.is_file():
            yield str(path.relative_to(release))


def photograph(root: Path) -> Photograph:
    """Everything that a revert must bring back. The time of byte code counts, that of RECORD not:
    it is written anew.
    """
    seen: Photograph = {}
    for folder, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = Path(folder, name)
            was = path.lstat()
            facts: tuple[object, ...] = (stat.filemode(was.st_mode), was.st_uid, was.st_gid)
            if stat.S_ISREG(was.st_mode):
                times = () if name == "RECORD" else (was.st_mtime_ns,)
                facts += (*times, hashlib.sha256(path.read_bytes()).hexdigest())
            elif path.is_symlink():
                facts += (str(path.readlink()),)
            seen[str(path.relative_to(root))] = facts
    return seen


def difference(before: Photograph, after: Photograph) -> list[str]:
    """Return the paths that are not the same in two photographs."""
    return sorted(x for x in before.keys() | after.keys() if before.get(x) != after.get(x))


def record_lies(root: Path) -> list[str]:
    """Return the files whose content is not what RECORD says, in all packages there."""
    return [
        path
        for record in root.glob("*.dist-info/RECORD")
        for path, wanted in digests(record.read_bytes()).items()
        if (root / path).is_file() and digest((root / path).read_bytes()) != wanted
    ]
