"""Which packages an environment holds, found by looking at its folders; nothing is imported."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from packaging.utils import canonicalize_name

from opsctl.errors import UsageError
from opsctl.profiles.catalogue import site_packages_of

MODULES = {"sglang": "sglang", "flashinfer-python": "flashinfer"}
"""The folder that each package installs."""
_INFO = re.compile(r"(?P<name>[A-Za-z0-9._]+)-(?P<version>[0-9][^-]*)\.(?:dist-info|egg-info)")
_EGG = re.compile(r"(?P<name>[A-Za-z0-9._]+)-(?P<version>[0-9][^-]*)(?:-py[0-9.]+)?\.egg")
_LIBRARY = re.compile(r"python(3\.[0-9]+)")


@dataclass(frozen=True)
class Package:
    """An installed package. `trouble` says why it cannot be patched, whatever its version."""

    name: str
    version: str | None
    info: Path | None
    trouble: str | None = None


@dataclass(frozen=True)
class Environment:
    """A `site-packages` folder, its interpreter where it is known, and what it holds."""

    root: Path
    python: Path | None
    packages: Mapping[str, Package]

    @property
    def journal(self) -> Path:
        """Where a change that is under way is written down."""
        return self.root / ".opsctl-patch.json"

    @property
    def named(self) -> str:
        """How a command line names it."""
        return f"--python {self.python}" if self.python else f"--site-packages {self.root}"


def locate(python: str | None = None, site_packages: Path | None = None) -> Environment:
    """Find an environment by its interpreter, its folder, or its site-packages.

    Raises UsageError when there is none.
    """
    if site_packages is not None:
        root: Path | None = site_packages if site_packages.is_dir() else None
        asked = str(site_packages)
    else:
        asked = python or ""
        root = site_packages_of(asked)
    if root is None:
        raise UsageError(
            f"{asked}: no Python environment there",
            hint="give the interpreter that runs SGLang (--python) or its site-packages folder",
        )
    root = root.resolve()
    packages = {name: found for name in MODULES if (found := _package(root, name)) is not None}
    return Environment(root, _interpreter(root, python), packages)


def _interpreter(root: Path, python: str | None) -> Path | None:
    given = shutil.which(python) if python else None
    if given is not None:
        return Path(given).absolute()
    library = _LIBRARY.fullmatch(root.parent.name)
    if library is None:
        return None
    beside = root.parents[2] / "bin" / f"python{library[1]}"
    return beside if os.access(beside, os.X_OK) else None


def _package(root: Path, name: str) -> Package | None:
    found = list(_claims(root, name))
    if not found:
        if not (root / MODULES[name]).exists():
            return None
        return Package(name, None, None, "it has no dist-info, so its version is unknown")
    if len(found) > 1:
        names = ", ".join(sorted(path.name for path, _ in found))
        return Package(name, None, None, f"several versions claim this folder: {names}")
    ((info, version),) = found
    return Package(name, _version(info) or version, info, _trouble(root, name, info))


def _claims(root: Path, name: str) -> Iterator[tuple[Path, str]]:
    for path in root.iterdir():
        match = _INFO.fullmatch(path.name) or _EGG.fullmatch(path.name)
        if match is not None and canonicalize_name(match["name"]) == name:
            yield path, match["version"]


def _version(info: Path) -> str | None:
    try:
        text = (info / "METADATA").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    version = HeaderParser().parsestr(text, headersonly=True)["Version"]
    return str(version).strip() if version else None


def _trouble(root: Path, name: str, info: Path) -> str | None:
    if not info.name.endswith(".dist-info"):
        return f"it is installed as {info.name}; only wheels can be patched"
    origin = _editable(info)
    if origin is not None:
        return f"it is installed for development from {origin}; change it there"
    module = root / MODULES[name]
    if module.is_symlink() or not module.is_dir():
        return f"{module} is not a folder of its own"
    if not (info / "RECORD").is_file():
        return f"{info.name} has no RECORD to tell what was installed"
    return None


def _editable(info: Path) -> str | None:
    try:
        direct = json.loads((info / "direct_url.json").read_text(encoding="utf-8"))
        return str(direct["url"]) if direct["dir_info"]["editable"] is True else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
