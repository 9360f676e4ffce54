"""Values of a pasted command: text, and references to variables that it does not set itself."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

from opsctl.profiles.importer_text import At, CommandTextError, Unknown

_CREDENTIALS = re.compile(
    r"://[^/@\s]*:[^/@\s]+@|\b(?:hf_|sk-|nvapi-|glpat-|gh[pousr]_)[A-Za-z0-9_-]{16,}|\bBearer\s+\S"
)


@dataclass(frozen=True)
class Reference:
    """A variable of opsctl's own environment; `default` counts when it is unset or empty."""

    name: str
    default: str | None

    @property
    def text(self) -> str:
        """As it is written in opsctl.yaml."""
        return f"${{{self.name}}}" if self.default is None else f"${{{self.name}:-{self.default}}}"


Piece = str | Reference | Unknown


@dataclass(frozen=True)
class Value:
    """One argument or one variable's content."""

    pieces: tuple[Piece, ...]
    at: At

    @property
    def literal(self) -> str | None:
        """The text, when all of it is known."""
        if all(isinstance(piece, str) for piece in self.pieces):
            return "".join(piece for piece in self.pieces if isinstance(piece, str))
        return None

    @property
    def leading(self) -> str:
        """The known text it starts with."""
        first = self.pieces[0] if self.pieces else ""
        return first if isinstance(first, str) else ""

    @property
    def reference(self) -> Reference | None:
        """The reference that is all of it."""
        only = self.pieces[0] if len(self.pieces) == 1 else None
        return only if isinstance(only, Reference) else None

    @property
    def unknown(self) -> Unknown | None:
        """The command substitution that is all of it."""
        only = self.pieces[0] if len(self.pieces) == 1 else None
        return only if isinstance(only, Unknown) else None

    def references(self) -> tuple[Reference, ...]:
        """Every reference in it."""
        return tuple(piece for piece in self.pieces if isinstance(piece, Reference))

    def known(self) -> Value:
        """Itself; raises CommandTextError when something in it is only known at run time."""
        for piece in self.pieces:
            if isinstance(piece, Unknown):
                raise CommandTextError(piece.at, piece.what, hint=piece.hint)
        return self

    def plain(self) -> str:
        """The text with references as they are written; not to be told from text like them."""
        return "".join(p if isinstance(p, str) else p.text or "" for p in self.pieces)

    def written(self) -> str:
        """The text for opsctl.yaml, where `$$` stands for a `$` that starts no reference."""
        return "".join(escaped(p) if isinstance(p, str) else p.text or "" for p in self.pieces)

    def after(self, count: int) -> Value:
        """The same without its first characters, which must be known text."""
        if count == 0:
            return self
        rest = self.leading[count:]
        return Value(((rest,) if rest else ()) + self.pieces[1:], self.at)

    def plus(self, other: Value) -> Value:
        """Both, one after the other."""
        return Value(merged((*self.pieces, *other.pieces)), self.at)

    def holds_secret(self) -> bool:
        """Whether known text in it looks like credentials."""
        return any(isinstance(p, str) and _CREDENTIALS.search(p) for p in self.pieces)


def escaped(text: str) -> str:
    """Text in which no `$` starts a reference."""
    return text.replace("$", "$$")


def merged(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """The same with neighbouring text joined and empty text left out."""
    joined: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += piece
        elif piece != "":
            joined.append(piece)
    return tuple(joined)


def text(content: str, at: At) -> Value:
    """A value of known text."""
    return Value((content,) if content else (), at)


def is_relative(value: Value) -> bool:
    """Whether it is a path that depends on the working directory, beyond doubt."""
    return value.leading in {".", ".."} or value.leading.startswith(("./", "../"))


def below(directory: Value, relative: Value) -> Value:
    """The path seen from the directory."""
    start = relative.leading
    rest = "" if start == "." else re.sub(r"^(\./+)+", "", start)
    joined = directory.plus(text(f"/{rest}", relative.at)).plus(relative.after(len(start)))
    literal = joined.literal
    return joined if literal is None else text(posixpath.normpath(literal), relative.at)
