"""Catalogues of released versions, as one JSON text of facts with the versions they hold for.

A line of a table is `[first, last, name, fact ...]`, where first and last are places in
`versions`; what changed, or went away and came back, has several lines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby, pairwise
from types import MappingProxyType
from typing import Any

from opsctl.profiles.catalogue_model import Catalogue, CatalogueError, Flag

SCHEMA = "opsctl.catalogue.v1"
NOTICE = (
    "Facts about SGLang (https://github.com/sgl-project/sglang, Apache-2.0), read from the wheels "
    "of its releases by `make catalogue`; not written by hand"
)
_MARKS = ("many", "bare", "required", "refused")
_Row = list[Any]


def encode(catalogues: Sequence[Catalogue], *, wheels: Sequence[str]) -> str:
    """Write catalogues, oldest first, as text in which a new fact is a new line.

    `wheels` are the SHA-256 of the wheels that they were read from.
    """
    flags = [flag for catalogue in catalogues for flag in catalogue.flags.values()]
    choices = sorted({flag.choices for flag in flags if flag.choices is not None})
    files = sorted({_file_and_line(flag)[0] for flag in flags})
    tables = {
        "flags": [
            [first, last, name, *facts, _written_places(files, catalogues[first : last + 1], name)]
            for first, last, name, *facts in _table(catalogues, lambda c: _flag_rows(c, choices))
        ],
        "environment": _table(catalogues, lambda c: _pairs(c.environment)),
        "deprecated_environment": _table(catalogues, lambda c: _pairs(c.deprecated_environment)),
        "pins": _table(catalogues, lambda c: _pairs(c.pins)),
        "models": _table(catalogues, lambda c: {name: [] for name in c.models}),
        "unread": _table(catalogues, lambda c: {what: [] for what in c.unread}),
        "choices": [list(choice) for choice in choices],
    }
    head: dict[str, object] = {
        "schema": SCHEMA,
        "notice": NOTICE,
        "versions": [catalogue.version for catalogue in catalogues],
        "wheels": list(wheels),
        "files": files,
    }
    lines = [f"{json.dumps(key)}: {_compact(value)}" for key, value in head.items()]
    for key, rows in tables.items():
        lines.append(f"{json.dumps(key)}: [\n" + ",\n".join(map(_compact, rows)) + "\n]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def decode(text: str, version: str) -> Catalogue:
    """Return one version's catalogue; raises CatalogueError, naming the known ones."""
    data = json.loads(text)
    versions = data["versions"]
    if version not in versions:
        raise CatalogueError(
            f"no catalogue of SGLang {version} comes with opsctl; known are {', '.join(versions)}",
            hint="name an installation of it with --sglang instead",
        )
    place = versions.index(version)

    def rows(table: str) -> Iterator[_Row]:
        for first, last, *row in data[table]:
            if first <= place <= last:
                yield [place - first, *row]

    flags: dict[str, Flag] = {}
    for row in rows("flags"):
        flag = _flag(row, data["choices"], data["files"])
        flags |= dict.fromkeys(flag.spellings, flag)
    deprecated = {name: said for _, name, said in rows("deprecated_environment")}
    return Catalogue(
        version=version,
        flags=MappingProxyType(dict(sorted(flags.items()))),
        environment=MappingProxyType({name: default for _, name, default in rows("environment")}),
        pins=MappingProxyType({name: pin for _, name, pin in rows("pins")}),
        models=frozenset(name for _, name in rows("models")),
        deprecated_environment=MappingProxyType(deprecated),
        unread=tuple(what for _, what in rows("unread")),
    )


def _flag_rows(catalogue: Catalogue, choices: list[tuple[str, ...]]) -> dict[str, _Row]:
    return {
        flag.name: [
            flag.aliases,
            flag.kind,
            None if flag.choices is None else choices.index(flag.choices),
            flag.type,
            flag.default,
            flag.deprecated,
            " ".join(mark for mark in _MARKS if getattr(flag, mark)),
        ]
        for flag in catalogue.flags.values()
    }


def _flag(row: _Row, choices: list[list[str]], files: list[str]) -> Flag:
    nth, name, aliases, kind, listed, value_type, default, deprecated, marks, places = row
    file, line = [(run[0], at) for run in places for at in accumulate(run[1:])][nth]
    return Flag(
        name=name,
        aliases=tuple(aliases),
        kind=kind,
        choices=None if listed is None else tuple(choices[listed]),
        type=value_type,
        default=default,
        deprecated=deprecated,
        where=f"{files[file]}:{line}",
        **{mark: mark in marks.split() for mark in _MARKS},
    )


def _written_places(
    files: list[str], catalogues: Sequence[Catalogue], name: str
) -> list[list[int]]:
    """`[[file, line, lines down from there ...], ...]`, in runs of versions with the same file."""
    places = (_file_and_line(catalogue.flags[name]) for catalogue in catalogues)
    written = []
    for file, run in groupby(places, key=lambda place: place[0]):
        lines = [line for _, line in run]
        steps = (after - before for before, after in pairwise(lines))
        written.append([files.index(file), lines[0], *steps])
    return written


def _file_and_line(flag: Flag) -> tuple[str, int]:
    file, _, line = flag.where.partition(":")
    return file, int(line)


def _table(
    catalogues: Sequence[Catalogue], facts: Callable[[Catalogue], Mapping[str, _Row]]
) -> list[_Row]:
    each = [facts(catalogue) for catalogue in catalogues]
    found = []
    for name in sorted({name for one in each for name in one}):
        place = 0
        for row, run in groupby(one.get(name) for one in each):
            last = place + len(list(run)) - 1
            if row is not None:
                found.append([place, last, name, *row])
            place = last + 1
    return found


def _pairs(facts: Mapping[str, str | None]) -> dict[str, _Row]:
    return {name: [value] for name, value in facts.items()}


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
