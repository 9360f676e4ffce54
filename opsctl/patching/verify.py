"""Looks whether what is applied is whole: the symbols that changed, RECORD, byte code, originals.

It reads everything anew from the disk and imports nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from opsctl.patching.headers import PatchFile
from opsctl.patching.installed import Installed
from opsctl.patching.record import digest, digests, paths
from opsctl.patching.series import public
from opsctl.patching.states import PatchState
from opsctl.patching.symbols import changed

_TIME, _SIZE = slice(8, 12), slice(12, 16)
"""Where byte code names the time and size of its source (PEP 552, flags 0)."""


@dataclass(frozen=True)
class Finding:
    """Something about an applied patch that is not as it must be."""

    patch: str
    path: str
    what: str


def findings(
    states: Iterable[PatchState], installed: Mapping[str, Installed]
) -> tuple[Finding, ...]:
    """Return what is wrong with the applied patches; drifted ones are findings themselves."""
    found: list[Finding] = []
    for state in states:
        name = state.patch.name
        if state.state == "drifted":
            found.append(Finding(name, "", state.reason))
        if state.state == "applied":
            found += [Finding(name, "", state.reason)] if state.reason else []
            package = installed[state.patch.package]
            file = state.patch.file_for(public(package.package.version or ""))
            for path in sorted(file.symbols) if file is not None else ():
                told = _file(package, file, path) if file is not None else ()
                found += [Finding(name, path, what) for what in told]
    return tuple(found)


def _file(installed: Installed, file: PatchFile, path: str) -> Iterator[str]:
    content = installed.files[path].content or b""
    original = installed.kept[path].content
    yield from _recorded(installed, path, content)
    yield from _byte_code(installed, path, content)
    if original is None:
        yield "its original is not kept; a revert takes the patch back from the file itself"
        return
    if digest(original) != installed.recorded.get(path):
        yield "the kept original is not what the wheel's RECORD names"
    yield from wrong_symbols(original, content, file.symbols[path])


def wrong_symbols(before: bytes, after: bytes, intended: frozenset[str]) -> Iterator[str]:
    """Tell what differs between two texts of a module beside, or instead of, what is intended."""
    try:
        found = changed(before, after)
    except (SyntaxError, ValueError) as error:
        yield f"it cannot be parsed: {error}"
        return
    if intended - found:
        yield f"unchanged although the patch is for it: {', '.join(sorted(intended - found))}"
    if found - intended:
        yield f"changed although the patch is not for it: {', '.join(sorted(found - intended))}"


def _recorded(installed: Installed, path: str, content: bytes) -> Iterator[str]:
    if digests(installed.record).get(path) != digest(content):
        yield "RECORD names another content"
    listed = set(paths(installed.record))
    kept = f"{installed.kept_at(path)}"
    if installed.kept[path].content is not None and kept not in listed:
        yield "RECORD does not list its kept original"


def _byte_code(installed: Installed, path: str, content: bytes) -> Iterator[str]:
    seconds = installed.files[path].mtime_ns // 1_000_000_000
    expected = (seconds & 0xFFFFFFFF).to_bytes(4, "little")
    for name, file in installed.compiled.get(path, {}).items():
        code = file.content or b""
        if code[4:8] != bytes(4):
            yield f"{name} is not checked against its source"
        elif code[_TIME] != expected or code[_SIZE] != len(content).to_bytes(4, "little"):
            yield f"{name} is stale"
