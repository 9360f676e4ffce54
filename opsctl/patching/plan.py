"""Which files become what, to have a set of patches applied and no others. Pure.

The plan is made from the wanted end, never from a list of steps: every file is either as released
or patched, and RECORD and manifest follow from that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from opsctl.errors import PreconditionError
from opsctl.patching.diff import DoesNotApplyError, FileDiff, apply_strictly
from opsctl.patching.installed import (
    KEPT,
    MANIFEST,
    RECORD,
    Applied,
    Installed,
    Kept,
    Manifest,
)
from opsctl.patching.record import digest, paths, rewritten
from opsctl.patching.series import Digests, Patch, public
from opsctl.patching.states import PatchState


@dataclass(frozen=True)
class Write:
    """A file below site-packages and what it becomes; None: removed. `mtime_ns` None: now."""

    path: str
    content: bytes | None
    mtime_ns: int | None = None


@dataclass(frozen=True)
class Source:
    """A source file in the wanted state: the patch that owns it, if any, and its release."""

    path: str
    patch: str | None
    content: bytes
    original: bytes


def wanted_names(found: Iterable[PatchState], selected: Collection[str], apply: bool) -> list[str]:
    """Return which patches are to be applied afterwards; raises PreconditionError with every
    patch of the selection that stands in the way.
    """
    found = list(found)
    wrong = [x for x in found if x.patch.name in selected and x.state in {"drifted", "blocked"}]
    if wrong:
        lines = [f"  {x.patch.name} is {x.state}: {x.reason}" for x in wrong]
        raise PreconditionError("nothing was changed:\n" + "\n".join(lines), hint=_remedy(wrong))
    keep = {x.patch.name for x in found if x.state == "applied" or x.outdated}
    if apply:
        return sorted(keep | {x.patch.name for x in found if _can_be(x, selected)})
    remaining = keep - set(selected)
    dependents = [
        f"  {x.patch.name} needs {need}"
        for x in found
        for need in x.patch.entry.needs
        if x.patch.name in remaining and need in keep and need not in remaining
    ]
    if dependents:
        raise PreconditionError(
            "nothing was changed:\n" + "\n".join(dependents),
            hint="take back both: give --only once for each",
        )
    return sorted(remaining)


def _can_be(state: PatchState, selected: Collection[str]) -> bool:
    return state.patch.name in selected and state.state == "applicable"


def _remedy(wrong: Iterable[PatchState]) -> str:
    drifted = sorted({x.patch.package for x in wrong if x.state == "drifted"})
    if drifted:
        names = ", ".join(drifted)
        return (
            "opsctl changes no file that somebody else has changed: install the package anew "
            f"(same version, --force-reinstall --no-deps): {names}"
        )
    return "see `opsctl patch status`"


def sources(
    installed: Installed, patches: Iterable[Patch], wanted: Collection[str]
) -> list[Source]:
    """Return every file that is patched now or shall be, in its wanted state.

    Raises PreconditionError where the released content cannot be had or a patch does not give
    what is recorded for it.
    """
    version = public(installed.package.version or "")
    found = []
    for patch in patches:
        file = patch.file_for(version)
        for change in file.changes if file is not None else ():
            known = patch.digests[version][change.path]
            if patch.name in wanted or installed.files[change.path].sha256 != known.released:
                found.append(_source(installed, patch, change, known, patch.name in wanted))
    return [*found, *_left_over(installed, {x.path for x in found})]


def _left_over(installed: Installed, known: Collection[str]) -> Iterable[Source]:
    """Files that another opsctl's edition of a patch has changed, and this one's does not."""
    for path, applied in installed.manifest.files.items() if installed.manifest else ():
        kept = installed.kept[path]
        if path in known or kept.content is None or kept.sha256 != applied.original.sha256:
            continue
        yield Source(path, None, kept.content, kept.content)


def _source(
    installed: Installed, patch: Patch, change: FileDiff, known: Digests, wanted: bool
) -> Source:
    original = _original(installed, change, known)
    if not wanted:
        return Source(change.path, None, original, original)
    try:
        content = apply_strictly(original, change)
    except DoesNotApplyError as error:
        raise PreconditionError(f"{patch.name} does not apply: {error}") from error
    if digest(content) != known.patched:
        raise PreconditionError(
            f"{patch.name}: {change.path} would not become what is recorded for it",
            hint="the installation of opsctl is damaged: install it again",
        )
    return Source(change.path, patch.name, content, original)


def _original(installed: Installed, change: FileDiff, known: Digests) -> bytes:
    """Return the released content: as it is, as it was kept, or by taking the patch back."""
    current = installed.files[change.path]
    for file in (current, installed.kept.get(change.path)):
        if file is not None and file.content is not None and file.sha256 == known.released:
            return file.content
    try:
        content = apply_strictly(current.content or b"", change, reverse=True)
    except DoesNotApplyError:
        content = b""
    if digest(content) != known.released:
        raise PreconditionError(
            f"{change.path}: its released content can be had neither from what was kept nor by "
            "taking the patch back",
            hint="install the package anew (same version, --force-reinstall --no-deps)",
        )
    return content


def writes(
    installed: Installed,
    wanted: Iterable[Source],
    compiled: Mapping[str, Mapping[str, bytes]],
    now_ns: int,
) -> list[Write]:
    """Return all that has to be written so that the package is in the wanted state.

    `compiled` holds new byte code by source and path; `now_ns` is the time patched files get,
    since the epoch. Nothing, when everything is as wanted.
    """
    wanted = list(wanted)
    changing = [x for x in wanted if x.content != installed.files[x.path].content]
    if not changing:
        return []
    manifest = _manifest(installed, wanted, compiled, now_ns)
    found = [x for source in changing for x in _file(installed, source, compiled, now_ns)]
    return [*found, *_books(installed, wanted, manifest)]


def _file(
    installed: Installed, source: Source, compiled: Mapping[str, Mapping[str, bytes]], now_ns: int
) -> Iterable[Write]:
    path, before = source.path, _before(installed, source.path)
    was = installed.compiled.get(path, {})
    if source.patch is not None:
        yield Write(path, source.content, now_ns)
        for name, kept in before.compiled.items():
            yield Write(installed.kept_at(name), _byte_code(installed, name), kept.mtime_ns)
        new = compiled.get(path, {})
        yield from (Write(name, None) for name in was if name not in new)
        yield from (Write(name, content) for name, content in new.items())
        return
    yield Write(path, source.content, before.original.mtime_ns if before.patch else None)
    yield Write(installed.kept_at(path), None)
    yield from (Write(name, None) for name in was if name not in before.compiled)
    for name, kept in before.compiled.items():
        yield Write(name, _byte_code(installed, name), kept.mtime_ns)
        yield Write(installed.kept_at(name), None)


def _before(installed: Installed, path: str) -> Applied:
    """Return how a file was before any patch; what is not known of it is as it is now."""
    applied = installed.manifest.files.get(path) if installed.manifest else None
    if applied is not None:
        there = {x: k for x, k in applied.compiled.items() if installed.kept[x].sha256 == k.sha256}
        return applied.model_copy(update={"compiled": there})
    file = installed.files[path]
    pristine = file.sha256 == installed.recorded.get(path)
    was = installed.compiled.get(path, {}) if pristine else {}
    return Applied(
        patch="",
        sha256="",
        original=Kept(sha256=file.sha256 or "", mtime_ns=file.mtime_ns),
        compiled={x: Kept(sha256=f.sha256 or "", mtime_ns=f.mtime_ns) for x, f in was.items()},
    )


def _byte_code(installed: Installed, name: str) -> bytes:
    kept = installed.kept.get(name)
    if kept is not None and kept.content is not None:
        return kept.content
    return next(x[name].content or b"" for x in installed.compiled.values() if name in x)


def _manifest(
    installed: Installed,
    wanted: Iterable[Source],
    compiled: Mapping[str, Mapping[str, bytes]],
    now_ns: int,
) -> Manifest:
    files: dict[str, Applied] = {}
    written: list[str] = []
    for source in wanted:
        if source.patch is None:
            continue
        before = _before(installed, source.path)
        original = Kept(sha256=digest(source.original), mtime_ns=before.original.mtime_ns)
        files[source.path] = Applied(
            patch=source.patch,
            sha256=digest(source.content),
            original=original,
            compiled=before.compiled,
        )
        written += compiled.get(source.path, _still_written(installed, source))
    version = installed.package.version or ""
    return Manifest(version=version, files=files, written=tuple(sorted(written)))


def _still_written(installed: Installed, source: Source) -> Iterable[str]:
    known = installed.manifest.written if installed.manifest else ()
    return [x for x in installed.compiled.get(source.path, {}) if x in known]


def _books(installed: Installed, wanted: Iterable[Source], manifest: Manifest) -> Iterable[Write]:
    """RECORD, the wheel's own RECORD, and the manifest."""
    info, released = installed.info, _released_record(installed, wanted)
    if not manifest.files:
        yield Write(f"{info}/RECORD", released)
        yield Write(f"{info}/{RECORD}", None)
        yield Write(f"{info}/{MANIFEST}", None)
        return
    text = manifest.model_dump_json(indent=1).encode() + b"\n"
    patched = {x.path: x.content for x in wanted if x.patch is not None}
    for source in wanted:
        kept = installed.kept[source.path].content
        if source.patch is not None and kept != source.original:
            time = manifest.files[source.path].original.mtime_ns
            yield Write(installed.kept_at(source.path), source.original, time)
    added: dict[str, bytes | None] = {f"{info}/{MANIFEST}": text, f"{info}/{RECORD}": released}
    gone: list[str] = []
    for source in wanted:
        if source.patch is None:
            continue
        before = manifest.files[source.path]
        added[installed.kept_at(source.path)] = source.original
        added |= {installed.kept_at(x): _byte_code(installed, x) for x in before.compiled}
        gone += before.compiled
    added |= dict.fromkeys(manifest.written)
    yield Write(f"{info}/RECORD", rewritten(released, patched, added, gone))
    yield Write(f"{info}/{RECORD}", released)
    yield Write(f"{info}/{MANIFEST}", text)


def _released_record(installed: Installed, wanted: Iterable[Source]) -> bytes:
    """Return the wheel's own RECORD; where it was not kept, without all that is opsctl's."""
    if installed.own_record is not None:
        return installed.own_record
    if installed.manifest is None:
        return installed.record
    originals = {x.path: x.original for x in wanted}
    ours = [x for x in paths(installed.record) if x.startswith(f"{installed.info}/{KEPT}/")]
    return rewritten(installed.record, originals, {}, [*ours, *installed.manifest.written])
