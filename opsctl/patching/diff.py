"""Unified diffs, applied strictly: no fuzz, and at the only place they fit. Pure.

`git apply` moves a hunk to the first place its context fits; with the minimal context that patches
for many releases need, that can be the wrong function. Here the old text of each hunk must occur
in the file exactly once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk as DiffHunk
from unidiff.patch import PatchedFile, PatchSet

_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
Presence = Literal["old", "new", "both", "neither"]


class DoesNotApplyError(ValueError):
    """A hunk's text is not there, or not at one place only."""


class MalformedError(ValueError):
    """The text is not a unified diff that changes lines of existing files."""


@dataclass(frozen=True)
class Hunk:
    """Some lines of a file before and after, context included; `line` is a hint for people."""

    line: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]


@dataclass(frozen=True)
class FileDiff:
    """What changes in one file; `path` is relative to site-packages."""

    path: str
    hunks: tuple[Hunk, ...]


def parse(text: str) -> tuple[FileDiff, ...]:
    """Read a unified diff; raises MalformedError also for new, removed and renamed files."""
    try:
        patch = PatchSet(text)
    except UnidiffParseError as error:
        raise MalformedError(f"not a unified diff: {error}") from error
    files = tuple(_file(entry) for entry in patch)
    if not files:
        raise MalformedError("the diff changes nothing")
    return files


def _file(entry: PatchedFile) -> FileDiff:
    if entry.is_added_file or entry.is_removed_file or entry.is_rename:
        raise MalformedError(f"{entry.path}: only lines of existing files can be changed")
    if any(part in {"", ".", ".."} for part in entry.path.split("/")):
        raise MalformedError(f"{entry.path}: not a path below site-packages")
    return FileDiff(entry.path, tuple(_hunk(entry.path, hunk) for hunk in entry))


def _hunk(path: str, hunk: DiffHunk) -> Hunk:
    if any(line.line_type == "\\" for line in hunk):
        raise MalformedError(f"{path}: a hunk at an end of file without a newline")
    old = tuple(x.value.encode() for x in hunk if x.is_context or x.is_removed)
    new = tuple(x.value.encode() for x in hunk if x.is_context or x.is_added)
    if not old or not new or old == new:
        raise MalformedError(
            f"{path}:{hunk.source_start}: a hunk without context or without change"
        )
    return Hunk(hunk.source_start, old, new)


def apply_strictly(content: bytes, diff: FileDiff, *, reverse: bool = False) -> bytes:
    """Return the content with every hunk applied (or taken back); raises DoesNotApplyError."""
    lines = _lines(content)
    edits = [_edit(lines, diff.path, hunk, reverse) for hunk in diff.hunks]
    for one, following in pairwise(edits):
        if one.start + len(one.old) > following.start:
            raise DoesNotApplyError(f"{diff.path}: its hunks overlap or are out of order there")
    for edit in reversed(edits):
        lines[edit.start : edit.start + len(edit.old)] = edit.new
    return b"".join(lines)


@dataclass(frozen=True)
class _Edit:
    start: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]


def _edit(lines: list[bytes], path: str, hunk: Hunk, reverse: bool) -> _Edit:
    old, new = (hunk.new, hunk.old) if reverse else (hunk.old, hunk.new)
    return _Edit(_only_place(lines, old, path, hunk), old, new)


def presence(content: bytes, diff: FileDiff) -> tuple[Presence, ...]:
    """Tell for each hunk whether its text before, after, or neither is in the content."""
    lines = _lines(content)
    return tuple(_presence(lines, hunk) for hunk in diff.hunks)


def _lines(content: bytes) -> list[bytes]:
    r"""Split at "\n" only, as diff does; the other ends that Python knows are part of a line."""
    return _LINE.findall(content)


def _presence(lines: list[bytes], hunk: Hunk) -> Presence:
    old, new = bool(_places(lines, hunk.old)), bool(_places(lines, hunk.new))
    if old and new:
        return "both"
    return "old" if old else "new" if new else "neither"


def _only_place(lines: list[bytes], text: tuple[bytes, ...], path: str, hunk: Hunk) -> int:
    places = _places(lines, text)
    if len(places) == 1:
        return places[0]
    where = f"{path}: the hunk of line {hunk.line}"
    if not places:
        raise DoesNotApplyError(f"{where} fits nowhere")
    numbers = ", ".join(str(place + 1) for place in places)
    raise DoesNotApplyError(f"{where} fits at {len(places)} places (lines {numbers})")


def _places(lines: list[bytes], text: tuple[bytes, ...]) -> list[int]:
    size, wanted = len(text), list(text)
    return [
        start
        for start in range(len(lines) - size + 1)
        if lines[start] == wanted[0] and lines[start : start + size] == wanted
    ]
