"""What a change of several files was about to do: read after a kill, and not trusted then."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from opsctl.errors import PreconditionError
from opsctl.system.transaction_files import STRAY, discard, sync, write_new

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Entry(BaseModel):
    """One file: where it is, the names beside it, and its SHA-256 before and after.

    `before` and `old` are None for a file that was not there, `after` and `new` for one that
    goes. `new` lies in the nearest directory that was there already.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    path: Path
    new: Path | None
    old: Path | None
    before: Digest | None
    after: Digest | None


class Record(BaseModel):
    """All files of one change, and the directories made for them, outermost first."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal["opsctl/transaction/v1"] = "opsctl/transaction/v1"
    entries: tuple[Entry, ...]
    made: tuple[Path, ...]

    def folders(self) -> set[Path]:
        """Return the directories whose content is changed."""
        names = [p for e in self.entries for p in (e.path, e.new, e.old) if p is not None]
        return {path.parent for path in (*names, *self.made)}


def write(journal: Path, record: Record) -> None:
    """Write the journal so that it is there whole or not at all; raises OSError."""
    journal.parent.mkdir(parents=True, exist_ok=True)
    unfinished = draft(journal)
    discard(unfinished)
    owner = journal.parent.stat()
    text = record.model_dump_json(indent=1) + "\n"
    write_new(unfinished, text.encode(), mode=0o600, owner=owner, mtime_ns=None)
    unfinished.replace(journal)
    sync([journal.parent])


def draft(journal: Path) -> Path:
    """Return the name that the journal has until it is complete."""
    return journal.with_name(f"{journal.name}.new")


def read(journal: Path, root: Path) -> Record:
    """Read a journal; raises PreconditionError where it is damaged or reaches out of `root`."""
    try:
        record = Record.model_validate_json(journal.read_bytes())
    except ValidationError as error:
        raise _damaged(journal, f"{error.errors()[0]['msg']}") from error
    for problem in _problems(record, root):
        raise _damaged(journal, problem)
    return record


def _problems(record: Record, root: Path) -> Iterator[str]:
    for entry in record.entries:
        if (entry.new is None, entry.old is None) != (entry.after is None, entry.before is None):
            yield f"it contradicts itself about {entry.path}"
        if STRAY.fullmatch(entry.path.name) or not fenced(entry.path, root):
            yield f"it names {entry.path}, which is not a file below {root}"
        for beside in (entry.new, entry.old):
            if beside and not (STRAY.fullmatch(beside.name) and fenced(beside, root)):
                yield f"it names {beside}, which is no file of opsctl's below {root}"
        if entry.old and entry.old.parent != entry.path.parent:
            yield f"it names {entry.old}, which does not lie beside {entry.path}"
    yield from (
        f"it names {folder}, which is not below {root}"
        for folder in record.made
        if not fenced(folder, root)
    )


def fenced(path: Path, root: Path) -> bool:
    """Tell whether a path is absolute, plain, and below `root` wherever its directories lead."""
    plain = path.is_absolute() and os.path.normpath(path) == str(path)
    return plain and path.parent.resolve().is_relative_to(root.resolve())


def _damaged(journal: Path, what: str) -> PreconditionError:
    return PreconditionError(
        f"{journal}: this journal of an unfinished change cannot be used: {what}; nothing was "
        "touched",
        hint="the files as they were lie beside their places as .opsctl-*.old; put them back or "
        f"reinstall the package, then delete {journal}",
    )
