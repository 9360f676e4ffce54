"""Surfaces that a command line names: files of `tune`, of `surface import`, and tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsctl.errors import UsageError

if TYPE_CHECKING:
    from opsctl.autospec.surface_sets import Case, Chosen, Roles

CaseOption = Annotated[
    str | None,
    typer.Option("--case", metavar="NAME", help="Of a file with several cases, use this one."),
]
SpeculativeOption = Annotated[
    str | None,
    typer.Option(
        "--speculative", metavar="NAME", help="The profile that speculates; else by its surface."
    ),
]
BaselineOption = Annotated[
    str | None,
    typer.Option("--baseline", metavar="NAME", help="The profile it is compared with."),
]


def text_of(path: str) -> str:
    """Return a file's text; raises UsageError naming it."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not text (byte {error.start} is not UTF-8)") from error


def journal_text(path: str) -> str:
    """Return a file's text, and before it that of the files it was rotated into, oldest first.

    Raises UsageError.
    """
    from opsctl.observe.rotating import rotated

    newest = text_of(path)
    older: list[str] = []
    while (before := rotated(Path(path), len(older) + 1)).is_file():
        older.append(text_of(str(before)))
    return "".join([*reversed(older), newest])


def cases_of(path: str, roles: Roles) -> tuple[Case, ...]:
    """Return every case of a file; raises UsageError."""
    from opsctl.autospec.surface_import import read

    return read(text_of(path), path, roles)


def case_of(paths: Sequence[str], name: str | None, roles: Roles) -> Case:
    """Return one case of all the files together; raises UsageError."""
    from opsctl.autospec.surface_sets import Case, one_case

    several = len(paths) > 1
    found = []
    for path in paths:
        cases = cases_of(path, roles)
        # A file of `tune` names no case: beside a table it belongs to whichever is chosen.
        lone = several and len(cases) == 1 and not cases[0].case
        found.append(one_case(cases, None if lone else name, path))
    if len(found) == 1:
        return found[0]
    return Case(
        case=next((case.case for case in found if case.case), ""),
        source="; ".join(case.source for case in found if case.source),
        surfaces=tuple(surface for case in found for surface in case.surfaces),
    )


def pair_in(case: Case, roles: Roles, where: str) -> Chosen:
    """Return the pair of a case; raises UsageError naming `where`."""
    from opsctl.autospec.surface_sets import choose

    try:
        return choose(case.surfaces, roles)
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}", hint=error.hint) from error
