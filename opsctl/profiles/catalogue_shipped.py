"""Catalogues of released versions, as one JSON text of facts with the versions they hold for.

A line of a table is `[first, last, fact ...]`, where first and last are places in `versions`; what
went away and came back has two lines. A flag's line numbers are listed for each of its versions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType
from typing import Any

from opsctl.profiles.catalogue_model import Catalogue, CatalogueError, Flag

SCHEMA = "opsctl.catalogue.v1"
NOTICE = (
    "Facts about SGLang (https://github.com/sgl-project/sglang, Apache-2.0), read from the wheels "
    "of its releases by `make catalogue`; not written by hand"
)
_Row = list[Any]


def encode(catalogues: Sequence[Catalogue]) -> str:
    """Write catalogues, oldest first, as text that a change of one fact changes in one line."""
    everything = [flag for catalogue in catalogues for flag in catalogue.flags.values()]
    choices = sorted({flag.choices for flag in everything if flag.choices is not None})
    files = sorted({_file(flag) for flag in everything})

    def flags(catalogue: Catalogue) -> dict[str, _Row]:
        rows = {}
        for flag in catalogue.flags.values():
            listed = None if flag.choices is None else choices.index(flag.choices)
            rows[flag.name] = [
                flag.aliases,
                flag.kind,
                listed,
                flag.type,
                flag.default,
                flag.deprecated,
                [name for name in _MARKS if getattr(flag, name)],
                files.index(_file(flag)),
            ]
        return rows

    tables: dict[str, list[_Row]] = {
        "flags": [
            [*row, [_line(catalogues[place].flags[row[2]]) for place in range(row[0], row[1] + 1)]]
            for row in _table(catalogues, flags)
        ],
        "environment": list(
            _table(catalogues, lambda c: {k: [v] for k, v in c.environment.items()})
        ),
        "deprecated_environment": list(
            _table(catalogues, lambda c: {k: [v] for k, v in c.deprecated_environment.items()})
        ),
        "pins": list(_table(catalogues, lambda c: {k: [v] for k, v in c.pins.items()})),
        "models": list(_table(catalogues, lambda c: {name: [] for name in c.models})),
        "unread": list(_table(catalogues, lambda c: {what: [] for what in c.unread})),
        "choices": [list(choice) for choice in choices],
    }
    head: dict[str, Any] = {
        "schema": SCHEMA,
        "notice": NOTICE,
        "versions": [catalogue.version for catalogue in catalogues],
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
            f"no catalogue of SGLang {version} is shipped with opsctl; "
            f"known: {versions[0]} to {versions[-1]}",
            hint="name an installation with --sglang instead",
        )
    place = versions.index(version)

    def rows(table: str) -> Iterator[_Row]:
        for first, last, *row in data[table]:
            if first <= place <= last:
                yield [place - first, *row]

    flags: dict[str, Flag] = {}
    for nth, name, aliases, kind, listed, kind_of, default, deprecated, marks, file, at in rows(
        "flags"
    ):
        flag = Flag(
            name=name,
            aliases=tuple(aliases),
            kind=kind,
            choices=None if listed is None else tuple(data["choices"][listed]),
            type=kind_of,
            default=default,
            deprecated=deprecated,
            where=f"{data['files'][file]}:{at[nth]}" if at[nth] else data["files"][file],
            **{mark: mark in marks for mark in _MARKS},
        )
        flags |= dict.fromkeys(spellings(flag), flag)
    return Catalogue(
        version=version,
        flags=MappingProxyType(dict(sorted(flags.items()))),
        environment=MappingProxyType({name: default for _, name, default in rows("environment")}),
        pins=MappingProxyType({name: pin for _, name, pin in rows("pins")}),
        models=frozenset(name for _, name in rows("models")),
        deprecated_environment=MappingProxyType(
            {name: said for _, name, said in rows("deprecated_environment")}
        ),
        unread=tuple(what for _, what in rows("unread")),
    )


_MARKS = ("many", "bare", "required", "refused")


def spellings(flag: Flag) -> Iterator[str]:
    """Every spelling that argparse knows of a flag."""
    for option in flag.options:
        yield option
        if flag.kind == "optional-switch":
            yield f"no-{option}"


def _table(
    catalogues: Sequence[Catalogue], facts: Callable[[Catalogue], dict[str, _Row]]
) -> Iterator[_Row]:
    each = [facts(catalogue) for catalogue in catalogues]
    for name in sorted({name for one in each for name in one}):
        start = 0
        for place, one in enumerate([*each, {}]):
            before = each[place - 1].get(name) if place else None
            if one.get(name) != before:
                if before is not None:
                    yield [start, place - 1, name, *before]
                start = place


def _file(flag: Flag) -> str:
    return flag.where.partition(":")[0]


def _line(flag: Flag) -> int:
    return int(flag.where.partition(":")[2] or 0)


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
