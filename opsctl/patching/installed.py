"""What is on disk of the files that patches change; read once, then only looked at.

Beside a patched package, in its dist-info folder, opsctl keeps

    opsctl/manifest.json     which patches are applied, to which files
    opsctl/RECORD            the wheel's own RECORD
    opsctl/original/...      the files as released, and their byte code

all of it listed in RECORD, so that uninstalling the package removes it too.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from opsctl.patching.environment import Environment, Package
from opsctl.patching.record import digest, digests
from opsctl.patching.series import Series
from opsctl.system.transaction_files import STRAY

KEPT = "opsctl"
MANIFEST, RECORD, ORIGINAL = f"{KEPT}/manifest.json", f"{KEPT}/RECORD", f"{KEPT}/original"
LARGEST = 8 << 20
"""Bytes; no Python file of SGLang comes near, so a larger one is nothing to read."""


class Kept(BaseModel):
    """A file as it was before: its SHA-256 and time."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    sha256: str
    mtime_ns: int


class Applied(BaseModel):
    """A patched file: by which patch, how it looks now, how it and its byte code looked before."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    patch: str
    sha256: str
    original: Kept
    compiled: dict[str, Kept]


class Manifest(BaseModel):
    """What opsctl did to a package."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: Literal[1] = 1
    version: str
    files: dict[str, Applied]
    written: tuple[str, ...]
    """Byte code that was made for the patched files."""


@dataclass(frozen=True)
class File:
    """A file's content; None with the reason where there is none to be read."""

    content: bytes | None
    mtime_ns: int = 0
    why: str = ""

    @property
    def sha256(self) -> str | None:
        """Digest of the content."""
        return None if self.content is None else digest(self.content)


@dataclass(frozen=True)
class Installed:
    """A package and what patching it needs to know. Paths are relative to site-packages."""

    package: Package
    files: Mapping[str, File]
    compiled: Mapping[str, Mapping[str, File]]
    """Byte code of each file, by path."""
    kept: Mapping[str, File]
    record: bytes = b""
    own_record: bytes | None = None
    """The wheel's own RECORD, where opsctl has written another."""
    manifest: Manifest | None = None

    @cached_property
    def recorded(self) -> Mapping[str, str]:
        """SHA-256 of each file in the wheel's own RECORD, as far as it can be known."""
        return digests(self.record if self.own_record is None else self.own_record)

    @property
    def info(self) -> str:
        """Name of the dist-info folder."""
        return self.package.info.name if self.package.info is not None else ""

    def kept_at(self, path: str) -> str:
        """Return where the original of a file is kept."""
        return f"{self.info}/{ORIGINAL}/{path}"


def read(environment: Environment, series: Series) -> dict[str, Installed]:
    """Read the state of every package of the series that is installed and can be patched.

    What cannot be read is told as such by the `File`s; nothing is raised for it.
    """
    return {
        name: _read(environment, package, series)
        for name, package in environment.packages.items()
        if package.trouble is None and package.info is not None
    }


def _read(environment: Environment, package: Package, series: Series) -> Installed:
    root, info = environment.root, package.info or environment.root
    manifest = _manifest(info, package.version)
    paths = set(_touched(series, package)) | (set(manifest.files) if manifest else set())
    compiled = {path: _compiled(root, path) for path in sorted(paths)}
    kept = {*paths, *_paths(manifest)} if manifest else paths
    kept |= set(_found(info / ORIGINAL))
    return Installed(
        package=package,
        files={path: _file(root, path) for path in sorted(paths)},
        compiled=compiled,
        kept={path: _file(root, f"{info.name}/{ORIGINAL}/{path}") for path in sorted(kept)},
        record=_file(root, f"{info.name}/RECORD").content or b"",
        own_record=_file(root, f"{info.name}/{RECORD}").content,
        manifest=manifest,
    )


def _touched(series: Series, package: Package) -> Iterable[str]:
    for patch in series.patches:
        file = patch.file_for(package.version or "") if patch.package == package.name else None
        for change in file.changes if file is not None else ():
            yield change.path


def _manifest(info: Path, version: str | None) -> Manifest | None:
    """Read it; a damaged one, or one of another version, counts as none: the digests decide."""
    try:
        text = (info / MANIFEST).read_text(encoding="utf-8")
        manifest = Manifest.model_validate_json(text)
    except (OSError, ValidationError, ValueError):
        return None
    safe = all(_is_inside(path) for path in _paths(manifest))
    return manifest if safe and manifest.version == version else None


def _paths(manifest: Manifest) -> Iterable[str]:
    yield from manifest.written
    for path, applied in manifest.files.items():
        yield path
        yield from applied.compiled


def _found(folder: Path) -> Iterable[str]:
    """What is kept, whether or not a manifest tells of it; not what a killed run left beside."""
    for place, _, names in os.walk(folder):
        ours = (name for name in names if not STRAY.fullmatch(name))
        yield from (str((Path(place) / name).relative_to(folder)) for name in ours)


def _is_inside(path: str) -> bool:
    return not any(part in {"", ".", ".."} for part in path.split("/"))


def _compiled(root: Path, path: str) -> dict[str, File]:
    source = Path(path)
    folder = source.parent / "__pycache__"
    try:
        names = sorted(x.name for x in (root / folder).glob(f"{source.stem}.*.pyc"))
    except OSError:
        return {}
    return {str(folder / name): _file(root, str(folder / name)) for name in names}


def _file(root: Path, path: str) -> File:
    target = root / path
    try:
        status = target.lstat()
        if not stat.S_ISREG(status.st_mode):
            return File(None, why="is not a regular file")
        if status.st_size > LARGEST:
            return File(None, why=f"has {status.st_size} bytes, which no release has")
        return File(target.read_bytes(), status.st_mtime_ns)
    except FileNotFoundError:
        return File(None, why="is missing")
    except OSError as error:
        return File(None, why=f"cannot be read: {error.strerror}")
