"""The patches that ship with opsctl, each with the releases it is for.

`patches/<package>/series.yaml` says what a patch is for, the header of each patch file which
releases it fits, `digests.json` what its files look like before and after in each release.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources.abc import Traversable
from typing import Literal

import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from opsctl.errors import OpsctlError, UsageError
from opsctl.patching.diff import MalformedError
from opsctl.patching.headers import PatchFile, read
from opsctl.system import resources

SERIES, DIGESTS = "series.yaml", "digests.json"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Otherwise(_Model):
    """Releases that need no patch file, and why."""

    releases: str
    state: Literal["superseded", "not needed"]
    why: str

    @field_validator("releases")
    @classmethod
    def _is_a_range(cls, value: str) -> str:
        SpecifierSet(value)
        return value


class Instead(_Model):
    """What is recommended in some releases in place of a patch."""

    releases: str
    use: str
    why: str


class Entry(_Model):
    """What `series.yaml` says of one patch."""

    name: str
    purpose: str
    optional: bool
    caution: str | None
    enables: str | None
    needs: tuple[str, ...]
    instead: Instead | None
    files: tuple[str, ...]
    otherwise: tuple[Otherwise, ...]


class _SeriesFile(_Model):
    package: str
    releases: tuple[str, ...]
    patches: tuple[Entry, ...]


@dataclass(frozen=True)
class Digests:
    """SHA-256 of a file as released, and with the patch applied."""

    released: str
    patched: str


@dataclass(frozen=True)
class Patch:
    """A patch by its name: one purpose, several releases."""

    package: str
    entry: Entry
    files: tuple[PatchFile, ...]
    digests: Mapping[str, Mapping[str, Digests]]
    """By release, then by file."""

    @property
    def name(self) -> str:
        """What the user types."""
        return self.entry.name

    def file_for(self, version: str) -> PatchFile | None:
        """Return the patch file for a release, if it needs one."""
        return next((file for file in self.files if file.covers(public(version))), None)

    def otherwise(self, version: str) -> Otherwise | None:
        """Return why a release needs no patch file."""
        return next((x for x in self.entry.otherwise if _in(version, x.releases)), None)

    def instead(self, version: str) -> Instead | None:
        """Return what is recommended in place of the patch in a release."""
        instead = self.entry.instead
        return instead if instead is not None and _in(version, instead.releases) else None


@dataclass(frozen=True)
class Series:
    """All patches, and the releases that were looked at, by package."""

    releases: Mapping[str, tuple[str, ...]]
    patches: tuple[Patch, ...]

    def patch(self, name: str) -> Patch:
        """Return a patch; raises UsageError naming those there are."""
        for patch in self.patches:
            if patch.name == name:
                return patch
        known = ", ".join(patch.name for patch in self.patches)
        raise UsageError(f"no patch {name!r}", hint=f"there are: {known}")

    def knows(self, package: str, version: str) -> bool:
        """Whether this release is among those that were looked at."""
        return public(version) in self.releases[package]

    def with_needs(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return names and those they need, in the order they are applied."""
        found: dict[str, None] = {}
        for name in names:
            needs = self.patch(name).entry.needs
            found.update(dict.fromkeys([*self.with_needs(needs), name]))
        return tuple(found)


@cache
def load() -> Series:
    """Return the series that ships with opsctl; raises OpsctlError when it is damaged."""
    return read_series(resources.tree("patches"))


def read_series(folder: Traversable) -> Series:
    """Read the series of a folder; raises OpsctlError that says what is wrong with it."""
    try:
        packages = sorted(x.name for x in folder.iterdir() if x.joinpath(SERIES).is_file())
        found = [_package(folder.joinpath(name)) for name in packages]
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise OpsctlError(
            f"{folder}: opsctl's patches cannot be read: {error}",
            hint="the installation is damaged: install opsctl again",
        ) from error
    return Series(
        {package: releases for package, releases, _ in found},
        tuple(patch for _, _, patches in found for patch in patches),
    )


def public(version: str) -> str:
    """Return a version without what a builder added: `0.5.14+cu130` is release `0.5.14`."""
    try:
        return Version(version).public
    except InvalidVersion:
        return version


def _package(folder: Traversable) -> tuple[str, tuple[str, ...], tuple[Patch, ...]]:
    try:
        series = _SeriesFile.model_validate(yaml.safe_load(_text(folder, SERIES)))
    except ValidationError as error:
        raise ValueError(f"{folder.name}/{SERIES}: {error}") from error
    digests = _digests(json.loads(_text(folder, DIGESTS)))
    patches = tuple(_patch(folder, series.package, entry, digests) for entry in series.patches)
    return series.package, series.releases, patches


def _patch(
    folder: Traversable,
    package: str,
    entry: Entry,
    digests: Mapping[str, Mapping[str, Mapping[str, Digests]]],
) -> Patch:
    files = tuple(read(name, _text(folder, name)) for name in entry.files)
    for file in files:
        if file.package != package or file.optional != entry.optional:
            raise MalformedError(f"{file.name}: package or X-Opsctl-Optional contradict {SERIES}")
    return Patch(package, entry, files, digests.get(entry.name, {}))


def _digests(data: object) -> dict[str, dict[str, dict[str, Digests]]]:
    if not isinstance(data, dict):
        raise MalformedError(f"{DIGESTS} is no mapping")
    return {
        name: {
            version: {path: Digests(*pair) for path, pair in files.items()}
            for version, files in versions.items()
        }
        for name, versions in data.items()
    }


def _text(folder: Traversable, name: str) -> str:
    return folder.joinpath(name).read_text(encoding="utf-8")


def _in(version: str, releases: str) -> bool:
    return SpecifierSet(releases).contains(public(version), prereleases=True)
