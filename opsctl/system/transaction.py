"""Replace several files all or nothing, whatever moment the program is killed at.

    apply(changes, journal, root=site_packages, check=parse_them)
    recover(journal, root=site_packages)       # first thing of the next run, under the same lock

New contents are written beside their targets, the files as they are get a second name, the
journal is written, names are switched, the caller looks (`check`), the journal goes: from then on
the change is made. While the journal is there, `recover` brings everything back.

No file is ever opened for writing in place: a package manager may have given the same file to
other environments as hard links, and those keep the old content.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from opsctl.errors import PreconditionError
from opsctl.system.transaction_files import (
    NO_FILE,
    STRAY,
    about,
    digest,
    discard,
    in_words,
    keep_old,
    make_folder,
    mark,
    remove_folder,
    strays,
    sync,
    write_new,
)
from opsctl.system.transaction_journal import Entry, Record, draft, fenced, read, write


@dataclass(frozen=True)
class FileChange:
    """What a file is to become; `content` None removes it.

    `path` is absolute and a regular file or nothing yet; missing directories are made. `mtime_ns`
    is now unless given, `mode` that of the file, or 0o644 for a new one.
    """

    path: Path
    content: bytes | None
    mtime_ns: int | None = None
    mode: int | None = None


def nothing() -> None:
    """Check nothing."""


def apply(
    changes: Sequence[FileChange],
    journal: Path,
    *,
    root: Path,
    check: Callable[[], None] = nothing,
) -> None:
    """Make all changes, or none of them.

    `check` runs when the new files are in place; what it raises undoes them. Nothing outside
    `root` is touched but the journal. The caller holds a lock that keeps others out.
    Raises PreconditionError for a file that cannot be changed, and for an OSError on the way.
    Whatever is raised, everything is as before, unless an interrupt came too late (the journal is
    gone: the change is made) or undoing failed or was interrupted too (the journal is there:
    `recover` undoes the rest).
    """
    if os.path.lexists(journal):
        raise PreconditionError(
            f"{journal}: an earlier change was not finished", hint="undo it first (recover)"
        )
    try:
        record = _planned(changes, journal, root)
    except OSError as error:
        raise in_words(error, "nothing was changed") from error
    try:
        _prepare(changes, record, journal)
        write(journal, record)
        _switch(record)
        check()
        journal.unlink()
    except BaseException as error:
        _give_up(record, journal, error)
        if isinstance(error, OSError):
            raise in_words(error, "nothing was changed") from error
        raise
    with contextlib.suppress(OSError):
        sync([journal.parent])  # before the copies go: after a power cut a journal needs them
        _discard(record)


def recover(journal: Path, *, root: Path) -> bool:
    """Bring back what a killed run was changing; tells whether there was anything.

    Without a journal nothing was changed, or all of it. Raises PreconditionError, with nothing
    touched, for a damaged journal and where somebody else changed one of its files since.
    """
    try:
        discard(draft(journal))
        if not os.path.lexists(journal):
            return False
        record = read(journal, root)
        _roll_back(record, journal)
    except OSError as error:
        raise in_words(error, f"the journal {journal} is kept: run it again") from error
    return True


def _planned(changes: Sequence[FileChange], journal: Path, root: Path) -> Record:
    if not root.is_dir():
        raise PreconditionError(f"{root} is no directory; nothing was changed")
    token = secrets.token_hex(4)
    entries: list[Entry] = []
    made: dict[Path, None] = {}
    for number, change in enumerate(changes):
        path, name = change.path, f".opsctl-{mark(journal)}-{token}-{number}"
        before = _look(path, root)
        missing = [p for p in reversed(path.parents) if not p.exists()]
        if change.content is not None:
            made.update(dict.fromkeys(missing))
        standing = missing[0].parent if missing else path.parent
        entry = Entry(
            path=path,
            new=None if change.content is None else standing / f"{name}.new",
            old=None if before is None else path.with_name(f"{name}.old"),
            before=before,
            after=None if change.content is None else hashlib.sha256(change.content).hexdigest(),
        )
        entries.append(entry)
    if len({entry.path for entry in entries}) < len(entries):
        raise ValueError("two changes of one file")
    return Record(entries=tuple(entries), made=tuple(made))


def _look(path: Path, root: Path) -> str | None:
    """Return a target's digest; raises PreconditionError for what may not be replaced."""
    if not fenced(path, root) or STRAY.fullmatch(path.name):
        raise PreconditionError(
            f"{path} is no file below {root}; nothing was changed",
            hint="a symbolic link on the way to it may lead elsewhere",
        )
    if os.fsencode(path).decode(errors="replace") != str(path):
        raise PreconditionError(f"{str(path)!r} holds bytes that are no text; nothing was changed")
    if path.is_symlink():
        raise PreconditionError(
            f"{path} is a symbolic link, which is not followed; nothing was changed",
            hint="change the environment that the link leads to",
        )
    before = digest(path)
    if before == NO_FILE:
        raise PreconditionError(f"{path} is no regular file; nothing was changed")
    return before


def _prepare(changes: Sequence[FileChange], record: Record, journal: Path) -> None:
    for stray in strays(record.folders(), journal):
        stray.unlink()
    for change, entry in zip(changes, record.entries, strict=True):
        with about(entry.path):
            was = entry.path.lstat() if entry.old else None
            if entry.old:
                keep_old(entry.path, entry.old)
            if entry.new and change.content is not None:
                mode = change.mode if change.mode is not None else _mode(was)
                owner = was or entry.new.parent.stat()
                write_new(
                    entry.new, change.content, mode=mode, owner=owner, mtime_ns=change.mtime_ns
                )
    sync(record.folders())


def _mode(was: os.stat_result | None) -> int:
    return 0o644 if was is None else stat.S_IMODE(was.st_mode)


def _switch(record: Record) -> None:
    for folder in record.made:
        with about(folder):
            make_folder(folder)
    for entry in record.entries:
        with about(entry.path):
            if entry.new:
                entry.new.replace(entry.path)
            elif entry.old:
                entry.path.unlink()
    sync(record.folders())


def _give_up(record: Record, journal: Path, error: BaseException) -> None:
    """Undo what was begun; raises PreconditionError where that fails as well.

    Without a journal no name was switched yet, or all are and the change is made: an interrupt
    came just after. Either way only the files beside are left to clear away.
    """
    try:
        if os.path.lexists(journal):
            _roll_back(record, journal)
        else:
            discard(draft(journal))
            _discard(record)
    except (OSError, PreconditionError) as worse:
        raise PreconditionError(
            f"the change failed ({error}), and undoing it failed too ({worse})",
            hint=f"the journal {journal} is kept: see to it, then run it again",
        ) from error


def _roll_back(record: Record, journal: Path) -> None:
    wanted = [(entry, _undone(entry, journal)) for entry in record.entries]
    for entry, undo in wanted:
        with about(entry.path):
            undo()
    for folder in reversed(record.made):
        remove_folder(folder)
    sync(record.folders())
    _discard(record)
    for stray in strays(record.folders(), journal):
        stray.unlink()
    journal.unlink()
    with contextlib.suppress(OSError):
        sync([journal.parent])  # a journal that comes back finds nothing left to undo


def _undone(entry: Entry, journal: Path) -> Callable[[], object]:
    """Return what brings a file back; raises PreconditionError where it is a third party's now."""
    now = digest(entry.path)
    if entry.old and os.path.lexists(entry.old):
        # Two names of one file: it was not replaced yet, even if it was edited since.
        if now is not None and os.path.samestat(entry.path.lstat(), entry.old.lstat()):
            return nothing
        if now == entry.after and digest(entry.old) == entry.before:
            return partial(entry.old.replace, entry.path)
    if now == entry.before:
        return nothing
    if now == entry.after and entry.before is None:
        return entry.path.unlink
    raise PreconditionError(
        f"{entry.path} was changed by somebody else since a change of opsctl was cut short "
        f"(journal {journal}); nothing was touched",
        hint="the files as they were lie beside their places as .opsctl-*.old; put them back or "
        f"reinstall the package, then delete {journal}",
    )


def _discard(record: Record) -> None:
    for entry in record.entries:
        for beside in (entry.new, entry.old):
            if beside:
                with about(entry.path):
                    discard(beside)
