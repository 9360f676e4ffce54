"""Throughput tables as people publish them, read into surfaces. Pure.

A table is YAML or JSON: a mapping of cases, each with the tok/s of two or more profiles. How a
profile's numbers are laid out may differ:

    baseline: {1: 92.6, 30: 711}                    tok/s by concurrency, context 0
    baseline: {0: [92.6, 711], 16384: [80.1, null]} by context; the case has `concurrency: [1, 30]`
    baseline: {0: {1: 92.6, 30: 711}}               by context, then by concurrency

Such numbers have no fingerprint and no intervals: good for a replay, never for serving.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from opsctl.autospec.surface import SCHEMA, Point, Provenance, Surface
from opsctl.autospec.surface_sets import FAULTS, Case, Roles, parse, speculates
from opsctl.config import tree
from opsctl.config.tree import Items, Node, Scalar, Table
from opsctl.errors import Problem, UsageError

TEXTS = ("source", "note", "model", "host")
"""Keys of a case that hold words."""
LAYOUT = "{concurrency: tok/s}, {context: {concurrency: tok/s}}, or {context: [tok/s, ...]}"


def read(text: str, where: str, roles: Roles | None = None) -> tuple[Case, ...]:
    """Return the cases of a surface file or of a table; raises UsageError with every fault.

    `roles` names what the profiles' names do not tell.
    """
    content = _json(text)
    if isinstance(content, dict) and "schema" in content:
        return parse(content, where)
    root, problems = tree.parse(text, where, {})
    table = _Table(where, roles or Roles(), _without_number_keys(root, problems))
    cases = tuple(table.cases(root))
    if table.problems or not cases:
        raise UsageError(table.faults(), hint=f"a case has profiles, each {LAYOUT}")
    return cases


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


@dataclass
class _Table:
    """Reads one file; `problems` collects what is wrong."""

    where: str
    roles: Roles
    problems: list[Problem] = field(default_factory=list)

    def faults(self) -> str:
        """All that is wrong, a line each."""
        if not self.problems:
            return f"{self.where}: no case in it"
        first = {(problem.line, problem.column): problem for problem in reversed(self.problems)}
        faults = sorted(first.values(), key=lambda problem: (problem.line, problem.column))
        told = [str(problem) for problem in faults[:FAULTS]]
        more = len(faults) - len(told)
        return "\n".join([*told, f"... and {more} more"] if more else told)

    def cases(self, root: Table) -> Iterator[Case]:
        """Each case of the file; a file that is one case itself has no name for it."""
        if _is_case(root):
            yield from self._case("", root)
            return
        for name, entry in root.entries.items():
            if isinstance(entry.node, Table):
                yield from self._case(name, entry.node)
            else:
                self._bad(entry.node, name, "not a case: expected a mapping with profiles")

    def _case(self, name: str, node: Table) -> Iterator[Case]:
        before = len(self.problems)
        columns = self._columns(name, node)
        texts = {key: self._text(name, key, node) for key in TEXTS if key in node.entries}
        grids = {
            key: self._profile(f"{name}.{key}".lstrip("."), entry.node, columns)
            for key, entry in node.entries.items()
            if key not in (*TEXTS, "concurrency")
        }
        if not grids:
            self._bad(node, name, "a case without profiles")
        if len(self.problems) > before:
            return
        drafting = self._drafting(name, node, list(grids))
        if len(self.problems) > before:
            return
        note = ": ".join(filter(None, (name, texts.get("source", ""))))
        yield Case(
            case=name,
            source=texts.get("source", ""),
            surfaces=tuple(
                Surface(
                    schema=SCHEMA,
                    profile=profile,
                    fingerprint="",
                    speculative=drafting[profile],
                    points=points,
                    provenance=Provenance(note=f"imported from a table; {note}".rstrip("; ")),
                )
                for profile, points in grids.items()
            ),
        )

    def _columns(self, name: str, node: Table) -> tuple[int | None, ...] | None:
        found = node.get("concurrency")
        if found is None:
            return None
        key = f"{name}.concurrency".lstrip(".")
        if not isinstance(found, Items):
            self._bad(found, key, "expected a list of concurrencies")
            return None
        columns = tuple(self._whole(item, key, least=1) for item in found.items)
        known = [column for column in columns if column is not None]
        if len(set(known)) < len(known):
            self._bad(found, key, "a concurrency stands there twice")
        return columns

    def _text(self, name: str, key: str, node: Table) -> str:
        found = node.get(key)
        if isinstance(found, Scalar):
            return "" if found.value is None else str(found.value)
        self._bad(node if found is None else found, f"{name}.{key}".lstrip("."), "expected words")
        return ""

    def _profile(
        self, key: str, node: Node, columns: Sequence[int | None] | None
    ) -> tuple[Point, ...]:
        before = len(self.problems)
        points = tuple(self._points(key, node, columns))
        if not points and len(self.problems) == before:
            self._bad(node, key, "nothing was measured of this profile")
        if len({(point.concurrency, point.context) for point in points}) < len(points):
            self._bad(node, key, "a place stands there twice (1k is 1024)")
        return points

    def _points(
        self, key: str, node: Node, columns: Sequence[int | None] | None
    ) -> Iterator[Point]:
        if isinstance(node, Items):
            yield from self._row(key, 0, node, columns)
            return
        if not isinstance(node, Table):
            self._bad(node, key, f"not a profile: expected {LAYOUT}")
            return
        flat = [entry for entry in node.entries.values() if isinstance(entry.node, Scalar)]
        if flat and len(flat) == len(node.entries):
            yield from self._by_concurrency(key, 0, node)
            return
        for word, entry in node.entries.items():
            context = self._whole(Scalar(word, entry.key), f"{key}.{word}", least=0)
            if context is None:
                continue
            if isinstance(entry.node, Table):
                yield from self._by_concurrency(f"{key}.{word}", context, entry.node)
            elif isinstance(entry.node, Items):
                yield from self._row(f"{key}.{word}", context, entry.node, columns)
            elif entry.node.value is not None:
                self._bad(entry.node, f"{key}.{word}", "a single number among rows of contexts")

    def _by_concurrency(self, key: str, context: int, node: Table) -> Iterator[Point]:
        for word, entry in node.entries.items():
            place = f"{key}.{word}"
            concurrency = self._whole(Scalar(word, entry.key), place, least=1)
            yield from self._point(place, concurrency, context, entry.node)

    def _row(
        self, key: str, context: int, node: Items, columns: Sequence[int | None] | None
    ) -> Iterator[Point]:
        if columns is None:
            self._bad(node, key, "a row needs `concurrency: [...]` in its case")
        elif len(columns) != len(node.items):
            self._bad(node, key, f"{len(node.items)} numbers for {len(columns)} concurrencies")
        else:
            for number, (concurrency, item) in enumerate(zip(columns, node.items, strict=True)):
                yield from self._point(f"{key}[{number}]", concurrency, context, item)

    def _point(
        self, key: str, concurrency: int | None, context: int, node: Node
    ) -> Iterator[Point]:
        value = node.value if isinstance(node, Scalar) else ""
        if value is None or concurrency is None:
            return  # null: not measured; no concurrency: told already
        if isinstance(value, bool | str) or value <= 0:
            what = "expected tok/s, more than 0 (null where it was not measured)"
            self._bad(node, key, what)
            return
        yield Point(concurrency=concurrency, context=context, tok_s=value)

    def _whole(self, node: Node, key: str, *, least: int) -> int | None:
        value = node.value if isinstance(node, Scalar) else None
        found = None if isinstance(value, bool | float) else _WHOLE.fullmatch(str(value))
        number = -1 if found is None else int(found[1]) * (1024 if found[2] else 1)
        if number >= least:
            return number
        what = "a concurrency" if least else "a context"
        self._bad(node, key, f"not {what}: expected a whole number, {least} or more")
        return None

    def _drafting(self, name: str, node: Table, profiles: Sequence[str]) -> Mapping[str, bool]:
        """Which profiles speculate: by what a person said, by name, or as the other of two."""
        found = {profile: speculates(profile) for profile in profiles}
        for profile, role in ((self.roles.speculative, True), (self.roles.baseline, False)):
            if profile in found:
                found[profile] = role
        if len(found) == 2 and list(found.values()).count(None) == 1:
            [known] = [value for value in found.values() if value is not None]
            found = {key: not known if value is None else value for key, value in found.items()}
        for profile, value in found.items():
            if value is None:
                key = f"{name}.{profile}".lstrip(".")
                what = "its name does not tell whether it speculates: --speculative or --baseline"
                self._bad(node.entries[profile].node, key, what)
        return {profile: bool(value) for profile, value in found.items()}

    def _bad(self, node: Node, key: str, what: str) -> None:
        self.problems.append(node.origin.problem(key, what))


_WHOLE = re.compile(r"(0|[1-9]\d{0,8})(k?)")


def _without_number_keys(root: Table, problems: Sequence[Problem]) -> list[Problem]:
    """Leave out complaints about numbers as keys: a configuration has none, a table lives on them.

    Of a key that stands there twice only the second complaint, which says so, is left.
    """
    allowed = set(_number_keys(root))
    last = {(problem.line, problem.column): problem for problem in problems}
    return [problem for place, problem in last.items() if place not in allowed]


def _number_keys(table: Table) -> Iterator[tuple[int, int]]:
    for key, entry in table.entries.items():
        if _WHOLE.fullmatch(key):
            yield entry.key.line, entry.key.column
        if isinstance(entry.node, Table):
            yield from _number_keys(entry.node)


def _is_case(root: Table) -> bool:
    """Whether a file is one case itself: profiles on top, instead of names of cases."""
    nodes = [entry.node for entry in root.entries.values()]
    return "concurrency" in root.entries or any(
        isinstance(node, Table) and node.entries and all(map(_WHOLE.fullmatch, node.entries))
        for node in nodes
    )
