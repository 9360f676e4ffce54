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
    File,
    Installed,
    Kept,
    Manifest,
)
from opsctl.patching.record import digest, paths, rewritten
from opsctl.patching.series import Digests, Patch, public


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


def sources(
    installed: Installed,
    patches: Iterable[Patch],
    wanted: Collection[str],
    alone: Collection[str] = (),
) -> list[Source]:
    """Return every file that is patched now or shall be, in its wanted state.

    Files of the patches in `alone` are left as they are. Raises PreconditionError where the
    released content cannot be had or a patch does not give what is recorded for it.
    """
    version = public(installed.package.version or "")
    found = []
    for patch in (x for x in patches if x.name not in alone):
        file = patch.file_for(version)
        for change in file.changes if file is not None else ():
            known = patch.digests[version][change.path]
            if patch.name in wanted or installed.files[change.path].sha256 != known.released:
                found.append(_source(installed, patch, change, known, patch.name in wanted))
    return [*found, *_left_over(installed, {x.path for x in found}, alone)]


def _left_over(
    installed: Installed, known: Collection[str], alone: Collection[str]
) -> Iterable[Source]:
    """Files that another opsctl's edition of a patch has changed, and this one's does not."""
    for path, applied in installed.manifest.files.items() if installed.manifest else ():
        kept = installed.kept[path]
        if path in known or applied.patch in alone:
            continue
        if kept.content is None or kept.sha256 != applied.original.sha256:
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
    alone: Collection[str] = (),
) -> list[Write]:
    """Return all that has to be written so that the package is in the wanted state.

    `compiled` holds new byte code by source and path; `now_ns` is the time patched files get,
    since the epoch; what is kept for the patches in `alone` stays. Nothing, when everything is as
    wanted.
    """
    wanted = list(wanted)
    changing = [x for x in wanted if x.content != installed.files[x.path].content]
    if not changing:
        return []
    manifest = _manifest(installed, wanted, compiled, alone)
    found = [x for source in changing for x in _file(installed, source, compiled, now_ns)]
    return [*found, *_books(installed, wanted, manifest)]


def _file(
    installed: Installed, source: Source, compiled: Mapping[str, Mapping[str, bytes]], now_ns: int
) -> Iterable[Write]:
    path, before = source.path, _before(installed, source.path)
    was = installed.compiled.get(path, {})
    if source.patch is not None:
        yield Write(path, source.content, now_ns)
        new = compiled.get(path, {})
        yield from (Write(name, None) for name in was if name not in new)
        yield from (Write(name, content) for name, content in new.items())
        return
    yield Write(path, source.content, before.original.mtime_ns if before.patch else None)
    yield from (Write(name, None) for name in was if name not in before.compiled)
    for name, kept in before.compiled.items():
        yield Write(name, _byte_code(installed, name), kept.mtime_ns)


def _before(installed: Installed, path: str) -> Applied:
    """Return how a file was before any patch; what is not known of it is as it is now."""
    applied = installed.manifest.files.get(path) if installed.manifest else None
    if applied is not None:
        there = {
            name: kept
            for name, kept in applied.compiled.items()
            if name in installed.kept and installed.kept[name].sha256 == kept.sha256
        }
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
    alone: Collection[str],
) -> Manifest:
    known = installed.manifest.files if installed.manifest else {}
    files = {path: applied for path, applied in known.items() if applied.patch in alone}
    written = [name for path in files for name in _still_written(installed, path)]
    for source in wanted:
        if source.patch is None:
            continue
        before = _before(installed, source.path)
        files[source.path] = Applied(
            patch=source.patch,
            sha256=digest(source.content),
            original=Kept(sha256=digest(source.original), mtime_ns=before.original.mtime_ns),
            compiled=before.compiled,
        )
        written += compiled.get(source.path, _still_written(installed, source.path))
    version = installed.package.version or ""
    return Manifest(version=version, files=files, written=tuple(sorted(written)))


def _still_written(installed: Installed, path: str) -> Iterable[str]:
    known = installed.manifest.written if installed.manifest else ()
    return [x for x in installed.compiled.get(path, {}) if x in known]


def _books(installed: Installed, wanted: Iterable[Source], manifest: Manifest) -> Iterable[Write]:
    """What is kept, RECORD, the wheel's own RECORD, and the manifest."""
    info, released = installed.info, _released_record(installed, wanted)
    originals = dict(_originals(installed, wanted, manifest))
    for name, kept in originals.items():
        if name not in installed.kept or installed.kept[name].content != kept.content:
            yield Write(installed.kept_at(name), kept.content, kept.mtime_ns)
    for name, file in installed.kept.items():
        if file.content is not None and name not in originals:
            yield Write(installed.kept_at(name), None)
    if not manifest.files:
        yield Write(f"{info}/RECORD", released)
        yield Write(f"{info}/{RECORD}", None)
        yield Write(f"{info}/{MANIFEST}", None)
        return
    text = manifest.model_dump_json(indent=1).encode() + b"\n"
    patched = {x.path: x.content for x in wanted if x.patch is not None}
    added: dict[str, bytes | None] = {f"{info}/{MANIFEST}": text, f"{info}/{RECORD}": released}
    added |= {installed.kept_at(name): kept.content for name, kept in originals.items()}
    added |= dict.fromkeys(manifest.written)
    gone = [name for applied in manifest.files.values() for name in applied.compiled]
    yield Write(f"{info}/RECORD", rewritten(released, patched, added, gone))
    yield Write(f"{info}/{RECORD}", released)
    yield Write(f"{info}/{MANIFEST}", text)


def _originals(
    installed: Installed, wanted: Iterable[Source], manifest: Manifest
) -> Iterable[tuple[str, File]]:
    """Every file that is to be kept, under the name it had."""
    known = {x.path: x.original for x in wanted if x.patch is not None}
    for path, applied in manifest.files.items():
        content = known.get(path, installed.kept[path].content)
        if content is not None:
            yield path, File(content, applied.original.mtime_ns)
        for name, kept in applied.compiled.items():
            yield name, File(_byte_code(installed, name), kept.mtime_ns)


def _released_record(installed: Installed, wanted: Iterable[Source]) -> bytes:
    """Return the wheel's own RECORD; where it was not kept, without all that is opsctl's."""
    if installed.own_record is not None:
        return installed.own_record
    known, files = installed.recorded, installed.manifest.files if installed.manifest else {}
    originals = {x.path: x.original for x in wanted if known.get(x.path) != digest(x.original)}
    ours = [x for x in paths(installed.record) if x.startswith(f"{installed.info}/{KEPT}/")]
    written = installed.manifest.written if installed.manifest else ()
    compiled = dict.fromkeys(name for applied in files.values() for name in applied.compiled)
    return rewritten(installed.record, originals, compiled, [*ours, *written])
