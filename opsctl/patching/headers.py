"""The header of a patch file: DEP-3 fields and opsctl's own. Pure.

Description, Origin, Bug, Forwarded, Last-Update   https://dep-team.pages.debian.net/deps/dep3/
License                   of the context lines, which are the upstream project's
X-Opsctl-Requires         package and range, one a line; the first is the patched package
X-Opsctl-Arch             compute capabilities the patch is for
X-Opsctl-Wipe             builds in FlashInfer's JIT cache that it makes stale, as a glob
X-Opsctl-Optional         yes: works without it, only another way
X-Opsctl-Symbols          file: names that may change there, and no others
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from opsctl.patching.diff import FileDiff, MalformedError, parse

REQUIRED = ("Description", "Origin", "Forwarded", "Last-Update", "License", "X-Opsctl-Requires")
KNOWN = frozenset(
    [*REQUIRED, "Bug", "X-Opsctl-Arch", "X-Opsctl-Wipe", "X-Opsctl-Optional", "X-Opsctl-Symbols"]
)
_FIELD = re.compile(r"([A-Za-z][A-Za-z0-9-]*):[ \t]*(.*)")
_MODULES = re.compile(r"[A-Za-z0-9_*?\[\]-]+")


@dataclass(frozen=True)
class PatchFile:
    """One patch file: its header and the diff."""

    name: str
    text: str
    header: Mapping[str, str]
    requires: tuple[Requirement, ...]
    optional: bool
    arch: tuple[str, ...]
    wipe: str | None
    symbols: Mapping[str, frozenset[str]]
    changes: tuple[FileDiff, ...]

    @property
    def description(self) -> str:
        """The first line of the description."""
        return self.header["Description"].partition("\n")[0]

    @property
    def package(self) -> str:
        """Normalized name of the package that is patched."""
        return canonicalize_name(self.requires[0].name)

    def covers(self, version: str) -> bool:
        """Whether the patch is for this release of its package."""
        return self.requires[0].specifier.contains(version, prereleases=True)


def read(name: str, text: str) -> PatchFile:
    """Read a patch file; raises MalformedError."""
    head, separator, body = text.partition("\n---\n")
    if not separator:
        raise MalformedError(f"{name}: no line `---` between header and diff")
    header = _fields(name, head)
    missing = [field for field in REQUIRED if not header.get(field)]
    if missing or header.keys() - KNOWN:
        wrong = [*(f"no {x}" for x in missing), *(f"unknown {x}" for x in header.keys() - KNOWN)]
        raise MalformedError(f"{name}: header: {', '.join(wrong)}")
    wipe = header.get("X-Opsctl-Wipe")
    if wipe is not None and not _MODULES.fullmatch(wipe):
        raise MalformedError(f"{name}: X-Opsctl-Wipe is no glob of module names: {wipe}")
    changes = parse(body)
    symbols = _symbols(name, header.get("X-Opsctl-Symbols", ""))
    if symbols.keys() != {change.path for change in changes}:
        raise MalformedError(f"{name}: X-Opsctl-Symbols does not name the files of the diff")
    return PatchFile(
        name=name,
        text=text,
        header=header,
        requires=_requirements(name, header["X-Opsctl-Requires"]),
        optional=header.get("X-Opsctl-Optional", "no") == "yes",
        arch=tuple(header.get("X-Opsctl-Arch", "").replace(",", " ").split()),
        wipe=wipe,
        symbols=symbols,
        changes=changes,
    )


def _fields(name: str, head: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    last = None
    for line in head.splitlines():
        if line.startswith(" ") and last is not None:
            fields[last] += "\n" + line[1:]
            continue
        match = _FIELD.fullmatch(line)
        if match is None or match[1] in fields:
            raise MalformedError(f"{name}: header: {line!r} is no field of its own")
        last = match[1]
        fields[last] = match[2]
    return fields


def _requirements(name: str, value: str) -> tuple[Requirement, ...]:
    try:
        return tuple(Requirement(line) for line in value.splitlines() if line.strip())
    except InvalidRequirement as error:
        raise MalformedError(f"{name}: X-Opsctl-Requires: {error}") from error


def _symbols(name: str, value: str) -> dict[str, frozenset[str]]:
    symbols = {}
    for line in value.splitlines():
        path, separator, names = line.partition(":")
        if not separator:
            raise MalformedError(f"{name}: X-Opsctl-Symbols: {line!r} is not `file: names`")
        symbols[path.strip()] = frozenset(x.strip() for x in names.split(",") if x.strip())
    return symbols
