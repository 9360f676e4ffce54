"""Released modules as text, before and after one of the patches that ship with opsctl."""

from __future__ import annotations

from functools import cache

from opsctl.patching.diff import apply_strictly
from opsctl.patching.series import load
from tests.support.released import released_or_skip


def before(package: str, version: str, path: str) -> str:
    """Return a file of a release; skips the test where the release cannot be had."""
    return (released_or_skip(package, version) / path).read_text(encoding="utf-8")


def after(patch: str, version: str, path: str) -> str:
    """Return a file of a release with a patch applied; unchanged where the patch leaves it."""
    return _applied(patch, version, path, before(load().patch(patch).package, version, path))


@cache
def _applied(patch: str, version: str, path: str, text: str) -> str:
    file = load().patch(patch).file_for(version)
    for change in file.changes if file is not None else ():
        if change.path == path:
            return apply_strictly(text.encode(), change).decode()
    return text
