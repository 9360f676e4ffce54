"""Folders of wheels from which a host without network installs opsctl and its engine.

Three parts, each made once for what it is made of and kept with the tests' other things: what
opsctl requires (from pip's own configuration), opsctl itself, the engine's stand-ins.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from filelock import FileLock

from tests.support.hosts import standin_wheels, tools

Python = Literal["3.11", "3.13"]

PROJECT = Path(__file__).resolve().parents[3]
REQUIREMENTS = PROJECT / "requirements/runtime.txt"
PACKAGED = ("pyproject.toml", "README.md", "LICENSE", "opsctl", "playbooks", "templates", "patches")
"""What opsctl's own wheel is built from."""
UNPACKAGED = shutil.ignore_patterns("__pycache__", "*.pyc")
TIMEOUT = 300.0
KEPT_FOR = 7 * 86400.0
"""Seconds after which wheels of a state of the tree that is no more are removed."""


def make_wheelhouse(python: Python, sglang: Sequence[str], extra: Sequence[str]) -> Path:
    """Return a folder of wheels; raises UnavailableError where one cannot be had."""
    requirements = REQUIREMENTS.read_text()
    parts = [
        _kept("required", (python, requirements), lambda into: _download(python, into)),
        _opsctl(),
        *(_kept("engine", (version, *_sources()), _engine(version)) for version in sglang),
        *(_kept("extra", (python, name), _extra(python, name)) for name in extra),
    ]
    name = _digest("\n".join(part.name for part in parts).encode())
    return _kept("house", (name,), lambda into: _gather(parts, into))


def _kept(kind: str, key: Sequence[str], make: Callable[[Path], None]) -> Path:
    """Return the folder for a key, made with `make` if need be."""
    folder = tools.cache_root() / f"host-wheels-{kind}-{_digest(repr(key).encode())}"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            _forget_old(kind)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix="unfinished-") as name:
                unfinished = Path(name) / "wheels"
                unfinished.mkdir(mode=0o755)
                make(unfinished)
                unfinished.rename(folder)
        os.utime(folder)
    return folder


def _forget_old(kind: str) -> None:
    for folder in tools.cache_root().glob(f"host-wheels-{kind}-*"):
        if folder.is_dir() and time.time() - folder.stat().st_mtime > KEPT_FOR:
            shutil.rmtree(folder, ignore_errors=True)


def _download(python: Python, into: Path) -> None:
    wanted = ["--require-hashes", "--requirement", str(REQUIREMENTS)]
    tools.checked([*_pip_download(python, into), "--no-deps", *wanted], timeout=TIMEOUT)


def _extra(python: Python, requirement: str) -> Callable[[Path], None]:
    def make(into: Path) -> None:
        tools.checked([*_pip_download(python, into), requirement], timeout=TIMEOUT)

    return make


def _pip_download(python: Python, into: Path) -> list[str]:
    for_python = ["--python-version", python, "--only-binary", ":all:"]
    return [sys.executable, "-m", "pip", "download", "--quiet", *for_python, "--dest", str(into)]


def _engine(version: str) -> Callable[[Path], None]:
    def make(into: Path) -> None:
        for wheel in standin_wheels.engine_wheels(version):
            wheel.write(into)

    return make


def _sources() -> tuple[str, ...]:
    """What stand-ins are made with: another recipe makes others."""
    return (Path(standin_wheels.__file__).read_text(),)


def _opsctl() -> Path:
    """Build opsctl from a copy of this tree, which others may be changing."""
    with tempfile.TemporaryDirectory(prefix="opsctl-tree-") as name:
        tree = Path(name)
        for part in PACKAGED:
            source = PROJECT / part
            if source.is_dir():
                shutil.copytree(source, tree / part, ignore=UNPACKAGED)
            else:
                shutil.copy(source, tree)
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]

        def make(into: Path) -> None:
            options = ["--no-build-isolation", "--wheel-dir", str(into), str(tree)]
            tools.checked([*build, *options], timeout=TIMEOUT)

        return _kept("opsctl", _state(tree), make)


def _state(tree: Path) -> tuple[str, ...]:
    files = sorted(path for path in tree.rglob("*") if path.is_file())
    return tuple(f"{path.relative_to(tree)} {_digest(path.read_bytes())}" for path in files)


def _gather(parts: Sequence[Path], into: Path) -> None:
    for part in parts:
        for wheel in part.iterdir():
            target = into / wheel.name
            if not target.exists():
                target.hardlink_to(wheel)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
