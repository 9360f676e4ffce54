"""YAML text as a tree in which every key and value knows its file, line and column.

Built from PyYAML's events, so that depth, size and aliases are bounded while reading, and so that
plain words get YAML 1.2's meaning: what YAML 1.1 would silently turn into something else (`off`,
`012`, `12:30`, a bare date) is a problem, not a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.reader import Reader

from opsctl.config.scalars import Unclear, resolve_plain
from opsctl.config.variables import VariableError, expand
from opsctl.errors import Problem

MAX_BYTES = 2**20
MAX_DEPTH = 32
MAX_NODES = 20_000
QUOTED = ("'", '"', "|", ">")

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
LINES = re.compile(r"\r\n|\r|\n")
# YAML 1.1 ends lines at these, editors do not: positions would be off.
_ODD_BREAKS = re.compile("[\x85\u2028\u2029]")


@dataclass(frozen=True)
class Origin:
    """Where something was written; `line` and `column` count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def problem(self, key: str, what: str) -> Problem:
        """A complaint about what stands here."""
        return Problem(self.file, self.line, self.column, key, what)


@dataclass(frozen=True)
class Scalar:
    """A single value."""

    value: str | int | float | bool | None
    origin: Origin


@dataclass(frozen=True)
class Items:
    """A list."""

    items: tuple[Node, ...]
    origin: Origin


@dataclass(frozen=True)
class Entry:
    """A key's position and its value."""

    key: Origin
    node: Node


@dataclass(frozen=True)
class Table:
    """A mapping."""

    entries: Mapping[str, Entry]
    origin: Origin

    def get(self, key: str) -> Node | None:
        """The value of a key, None when it is not there."""
        entry = self.entries.get(key)
        return None if entry is None else entry.node


Node = Scalar | Items | Table


class _StopReadingError(Exception):
    """Nothing sensible can be read after this; the problem is already recorded."""


def parse(text: str, name: str, environment: Mapping[str, str]) -> tuple[Table, list[Problem]]:
    """The tree of one file and everything wrong with it as YAML."""
    reader = _Reader(name, text, environment)
    try:
        node = reader.document()
    except _StopReadingError:
        node = None
    if node is None or (isinstance(node, Scalar) and node.value is None):
        node = Table({}, Origin(name, 1, 1))
    if not isinstance(node, Table):
        reader.report(node.origin, "", "must be a mapping (lines of `key: value`)")
        node = Table({}, node.origin)
    return node, reader.problems


@dataclass
class _Reader:
    name: str
    text: str
    environment: Mapping[str, str]
    problems: list[Problem] = field(default_factory=list)
    anchors: dict[str, Node | None] = field(default_factory=dict)
    count: int = 0

    def __post_init__(self) -> None:
        self.lines = LINES.split(self.text)
        self.events: Iterator[Any] = iter(())

    def report(self, origin: Origin, key: str, what: str) -> None:
        self.problems.append(origin.problem(key, what))

    def stop(self, origin: Origin, key: str, what: str) -> _StopReadingError:
        self.report(origin, key, what)
        return _StopReadingError()

    def at(self, line: int, column: int) -> Origin:
        """Positions count from 0 in PyYAML and may lie behind the end of the text."""
        line = min(line, len(self.lines) - 1)
        return Origin(self.name, line + 1, min(column, len(self.lines[line])) + 1)

    def at_index(self, index: int) -> Origin:
        before = LINES.split(self.text[:index])
        return self.at(len(before) - 1, len(before[-1]))

    def document(self) -> Node | None:
        bad = Reader.NON_PRINTABLE.search(self.text) or _ODD_BREAKS.search(self.text)
        if bad is not None:
            what = f"character U+{ord(bad.group()):04X} is not allowed here"
            raise self.stop(self.at_index(bad.start()), "", what)
        if len(self.text.encode(errors="replace")) > MAX_BYTES:
            raise self.stop(self.at(0, 0), "", f"larger than {MAX_BYTES // 2**20} MiB")
        self.events = self._safely(yaml.parse(self.text, Loader=_Loader))
        return self._one_document()

    def _one_document(self) -> Node | None:
        node = None
        documents = 0
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    what = "a second document starts here; opsctl reads one per file"
                    raise self.stop(self._origin(event), "", what)
                node = self.node(next(self.events), (), 0)
        return node

    def _safely(self, events: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from events
        except yaml.MarkedYAMLError as error:
            raise self._syntax(error) from None
        except (yaml.YAMLError, ValueError) as error:
            raise self.stop(self.at(0, 0), "", f"not YAML: {type(error).__name__}") from None

    def _syntax(self, error: yaml.MarkedYAMLError) -> _StopReadingError:
        mark = error.problem_mark or error.context_mark
        origin = self.at(mark.line, mark.column) if mark else self.at(0, 0)
        line = self.lines[origin.line - 1]
        if "\t" in line[: len(line) - len(line.lstrip())]:
            what = "a tab indents this line; YAML wants spaces"
        else:
            what = f"not YAML: {error.problem or error.context or 'unreadable'}"
            if error.context and error.problem:
                what += f" ({error.context})"
        return self.stop(origin, "", what)

    def _origin(self, event: Any) -> Origin:
        return self.at(event.start_mark.line, event.start_mark.column)

    def node(self, event: Any, path: tuple[str, ...], depth: int) -> Node:
        origin = self._origin(event)
        key = ".".join(path)
        self._count(1, origin, key)
        if depth > MAX_DEPTH:
            raise self.stop(origin, key, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, origin, key)
        if event.anchor:
            self.anchors[event.anchor] = None
        if event.tag is not None and event.tag != "!":
            self.report(origin, key, "tags (`!`, `!!`) are not used here; remove it")
        result = self._content(event, origin, path, depth)
        if event.anchor:
            self.anchors[event.anchor] = result
        return result

    def _content(self, event: Any, origin: Origin, path: tuple[str, ...], depth: int) -> Node:
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, origin, ".".join(path))
        if isinstance(event, yaml.SequenceStartEvent):
            return self._items(origin, path, depth)
        return self._table(origin, path, depth)

    def _count(self, nodes: int, origin: Origin, key: str) -> None:
        self.count += nodes
        if self.count > MAX_NODES:
            raise self.stop(origin, key, f"more than {MAX_NODES} values")

    def _alias(self, event: Any, origin: Origin, key: str) -> Node:
        target = self.anchors.get(event.anchor)
        if target is None:
            raise self.stop(origin, key, f"alias *{event.anchor} has no finished anchor before it")
        self._count(size(target), origin, key)
        return target

    def _scalar(self, event: Any, origin: Origin, key: str) -> Scalar:
        plain = event.implicit[0] and event.style not in QUOTED
        text = event.value
        hidden = re.search("[\ud800-\udfff\0]", text)
        if hidden:
            self.report(origin, key, "NUL and surrogate characters are not allowed")
            return Scalar("", origin)
        try:
            text = expand(text, self.environment)
            if plain and not (event.value and not text):
                return Scalar(resolve_plain(text), origin)
        except (VariableError, Unclear) as error:
            self.report(origin, key, str(error))
            return Scalar(event.value, origin)
        return Scalar(text, origin)

    def _items(self, origin: Origin, path: tuple[str, ...], depth: int) -> Items:
        items: list[Node] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self.node(event, (*path, str(len(items))), depth + 1))
        return Items(tuple(items), origin)

    def _table(self, origin: Origin, path: tuple[str, ...], depth: int) -> Table:
        entries: dict[str, Entry] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key, at = self._key(event, path)
            node = self.node(next(self.events), (*path, key), depth + 1)
            if key in entries:
                first = entries[key].key
                what = f"written twice; the first is in line {first.line}"
                self.report(at, ".".join((*path, key)), what)
            else:
                entries[key] = Entry(at, node)
        return Table(entries, origin)

    def _key(self, event: Any, path: tuple[str, ...]) -> tuple[str, Origin]:
        origin = self._origin(event)
        if not isinstance(event, yaml.ScalarEvent):
            raise self.stop(origin, ".".join(path), "a key must be a word, not a list or mapping")
        key: str = event.value
        where = ".".join((*path, key))
        if event.implicit[0] and event.style not in QUOTED:
            if key == "<<":
                what = "merge keys are not supported; use `extends` in profiles"
                self.report(origin, where, what)
            elif not _is_word(key):
                self.report(origin, where, "this key is not text to YAML; put it in quotes")
        if re.search("[\ud800-\udfff\0]", key):
            raise self.stop(origin, ".".join(path), "NUL and surrogate characters are not allowed")
        return key, origin


def _is_word(text: str) -> bool:
    try:
        return isinstance(resolve_plain(text), str)
    except Unclear:
        return False


def size(node: Node) -> int:
    """How many nodes a tree holds, itself included."""
    if isinstance(node, Items):
        return 1 + sum(map(size, node.items))
    if isinstance(node, Table):
        return 1 + sum(size(entry.node) for entry in node.entries.values())
    return 1
