"""What a shell makes of words: variables, splitting, tildes; and lines as simple commands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from opsctl.config.names import looks_secret
from opsctl.profiles.importer_text import (
    At,
    Command,
    CommandTextError,
    Literal,
    Notes,
    Operator,
    Parameter,
    Part,
    Redirection,
    Token,
    Unknown,
    Word,
)
from opsctl.profiles.importer_values import Piece, Reference, Value, merged

_COMPOUND = {
    "if", "then", "elif", "else", "fi", "for", "while", "until", "do", "done", "case", "esac",
    "select", "function", "coproc", "{", "}", "[[", "!",
}  # fmt: skip
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?=)")
MAX_EXPANDED = 2**20
"""Characters that variables may expand to in all: a few lines can double without end."""
_MANY = re.compile(r"(^|_)(ARGS?|ARGUMENTS|OPTS?|OPTIONS|FLAGS|EXTRAS?)($|_)", re.IGNORECASE)


def commands(tokens: Iterable[Token]) -> Iterator[Command]:
    """The simple commands of a text; raises CommandTextError for anything more."""
    words: list[Word] = []
    redirections: list[Redirection] = []
    before = "\n"
    for token in tokens:
        if isinstance(token, Word):
            words.append(token)
        elif isinstance(token, Redirection):
            redirections.append(token)
        else:
            _refuse_compound(token, words)
            if words:
                yield Command(tuple(words), tuple(redirections), before, token.text)
            if words or token.text != "\n":
                before = token.text
            words, redirections = [], []


def _refuse_compound(end: Operator, words: list[Word]) -> None:
    first = words[0] if words else None
    word = first.bare if first is not None else None
    if end.text in {"(", ")", ";;"} or word in _COMPOUND:
        at = first.at if first is not None and word in _COMPOUND else end.at
        raise CommandTextError(
            at,
            f"`{word if word in _COMPOUND else end.text}`: conditions, loops, functions and "
            "groups are not evaluated",
            hint="paste the commands that are left when it runs",
        )


def assignment(word: Word) -> tuple[str, bool, Word] | None:
    """Name, whether it appends, and value of a word `NAME=value`; None for other words."""
    match = _ASSIGNMENT.match(word.leading)
    if match is None:
        return None
    rest = word.leading[match.end() :]
    parts = ((Literal(rest, False),) if rest else ()) + word.parts[1:]
    return match[1], match[2] == "+=", Word(parts, word.at, word.items)


@dataclass
class Shell:
    """The shell that the text would run in: what it has set so far, and where it is."""

    notes: Notes
    variables: dict[str, Value] = field(default_factory=dict)
    arrays: dict[str, tuple[Value, ...]] = field(default_factory=dict)
    exported: dict[str, None] = field(default_factory=dict)
    removed: dict[str, None] = field(default_factory=dict)
    export_all: bool = False
    directory: Value | None = None
    python: Value | None = None
    """Interpreter of the environment that was activated."""
    expanded: int = 0

    def environment(self) -> dict[str, Value | None]:
        """What the text exports to a command it starts; None for what it removes."""
        given: dict[str, Value | None] = dict.fromkeys(self.removed)
        return given | {n: self.variables[n] for n in self.exported if n in self.variables}

    def set(self, name: str, value: Value) -> None:
        """Assign a variable."""
        self.variables[name] = value
        self.removed.pop(name, None)
        self.arrays.pop(name, None)
        if self.export_all:
            self.exported[name] = None

    def unset(self, name: str) -> None:
        """Remove a variable."""
        self.variables.pop(name, None)
        self.arrays.pop(name, None)
        self.exported.pop(name, None)
        self.removed[name] = None

    def assign(self, name: str, appends: bool, word: Word) -> None:
        """Carry out `NAME=value`, `NAME+=value` or `NAME=(...)`."""
        if word.items is not None:
            old = self.arrays.get(name, ()) if appends else ()
            self.variables.pop(name, None)
            self.arrays[name] = (*old, *self.fields(word.items))
            return
        value = self.single(word)
        if appends:
            value = self.value(name, word.at).plus(value)
        self.set(name, value)

    def single(self, word: Word) -> Value:
        """The word as one value: what stands after `=` is neither split nor globbed."""
        pieces: list[Piece] = []
        for index, part in enumerate(word.parts):
            pieces += self._pieces(part, tilde=index == 0, colons=True)
        return Value(merged(tuple(pieces)), word.at)

    def fields(self, words: Iterable[Word]) -> tuple[Value, ...]:
        """The words as arguments; one word may give none or several."""
        return tuple(value for word in words for value in self._fields(word))

    def _fields(self, word: Word) -> Iterator[Value]:
        if word.braces:
            raise CommandTextError(
                word.at,
                "a shell splits braces with a comma outside quotes",
                hint="put JSON in single quotes",
            )
        if (items := self._items(word)) is not None:
            yield from items
            return
        done: list[list[Piece]] = []
        open_field: list[Piece] | None = None
        for index, part in enumerate(word.parts):
            pieces = self._pieces(part, tilde=index == 0, colons=False)
            if part.quoted or isinstance(part, Literal):
                open_field = [*(open_field or ()), *pieces]
                continue
            for piece, starts in _split(pieces):
                if starts and open_field is not None:
                    done.append(open_field)
                    open_field = None
                if piece is not None:
                    open_field = [*(open_field or ()), piece]
        if open_field is not None:
            done.append(open_field)
        yield from (Value(merged(tuple(pieces)), word.at) for pieces in done)

    def _items(self, word: Word) -> tuple[Value, ...] | None:
        """The elements of `"${NAME[@]}"`; None for any other word."""
        arrays = [p for p in word.parts if isinstance(p, Parameter) and p.operator[:1] == "["]
        if not arrays:
            return None
        others = [p for p in word.parts if p not in arrays and p != Literal("", True)]
        if others or len(arrays) > 1 or arrays[0].name not in self.arrays:
            raise CommandTextError(
                arrays[0].at, "what this array holds is not in the text", hint="write its items"
            )
        items = self.arrays[arrays[0].name]
        self._spend(sum(len(item.plain()) + 1 for item in items), word.at)
        return items

    def _spend(self, characters: int, at: At) -> None:
        self.expanded += characters
        if self.expanded > MAX_EXPANDED:
            raise CommandTextError(at, f"variables expand to more than {MAX_EXPANDED} characters")

    def _pieces(self, part: Part, *, tilde: bool, colons: bool) -> tuple[Piece, ...]:
        if isinstance(part, Unknown):
            here = self.directory if (part.text or "").strip() == "pwd" else None
            return (part,) if here is None else here.pieces
        if isinstance(part, Parameter):
            return self._parameter(part)
        if part.quoted or "~" not in part.text:
            return (part.text,)
        return _tildes(part.text, first=tilde, colons=colons)

    def _parameter(self, part: Parameter) -> tuple[Piece, ...]:
        value = self.value(part.name, part.at)
        self._spend(len(value.plain()), part.at)
        if part.operator[:1] == "[":
            what = "what this array holds is not in the text"
            return (Unknown(what, "write its items", part.at, part.quoted),)
        if "?" in part.operator or part.default is None:
            return value.pieces
        default = self.single(part.default)
        if part.name in self.removed or (value.literal == "" and ":" in part.operator):
            chosen = default
        elif value.reference is None or value.reference.name != part.name:
            return value.pieces
        else:
            chosen = self._with_default(part.name, default)
        if "=" in part.operator:
            self.set(part.name, chosen)
        return chosen.pieces

    def _with_default(self, name: str, default: Value) -> Value:
        """`${NAME:-default}` for opsctl, which takes plain text as a default."""
        literal = default.known().literal
        if literal is None or "}" in literal:
            raise CommandTextError(
                default.at, "a default that is not plain text", hint="write the value itself"
            )
        return Value((Reference(name, literal),), default.at)

    def value(self, name: str, at: At) -> Value:
        """What the text has set, or a reference to opsctl's environment.

        A secret's own text is never carried along. A search path that is not set is empty in a
        shell, and mostly meant so.
        """
        known = self.variables.get(name)
        if known is not None and not (looks_secret(name) and known.literal):
            return known
        if name in self.removed:
            return Value((), at)
        if name == "PWD" and self.directory is not None:
            return self.directory
        return Value((Reference(name, "" if name.endswith("PATH") else None),), at)


def _tildes(text: str, *, first: bool, colons: bool) -> tuple[Piece, ...]:
    """`~/` as the home directory, at the start and in assignments after each colon."""
    pieces: list[Piece] = []
    for index, segment in enumerate(text.split(":") if colons else [text]):
        if index:
            pieces.append(":")
        if (first or index) and (segment == "~" or segment.startswith("~/")):
            pieces += [Reference("HOME", None), segment[1:]]
        else:
            pieces.append(segment)
    return tuple(pieces)


def _split(pieces: tuple[Piece, ...]) -> Iterator[tuple[Piece | None, bool]]:
    """Pieces of an unquoted expansion, each with whether a new argument starts before it."""
    for piece in pieces:
        if not isinstance(piece, str):
            yield piece, False
            continue
        for index, blank_or_text in enumerate(re.split(r"[ \t\n]+", piece)):
            yield blank_or_text or None, index > 0


def may_be_many(value: Value) -> bool:
    """Whether it is a reference whose name says that it holds several arguments."""
    reference = value.reference
    return reference is not None and _MANY.search(reference.name) is not None
