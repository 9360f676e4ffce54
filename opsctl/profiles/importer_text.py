"""What a pasted shell command is made of: places in it, words, and what stands between them.

Pure data. `importer_lexer` makes it, `importer_shell` gives it meaning.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from opsctl.errors import UsageError


@dataclass(frozen=True)
class At:
    """A place in the pasted text; both count from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.line}:{self.column}"


class CommandTextError(UsageError):
    """A pasted command that cannot be understood, or not without losing something.

    The message names the place and never repeats a value: it may be a secret.
    """

    def __init__(self, at: At, what: str, *, hint: str | None = None) -> None:
        super().__init__(f"command:{at}: {what}", hint=hint)
        self.at = at


@dataclass(frozen=True)
class Literal:
    """Text that stands for itself."""

    text: str
    quoted: bool


@dataclass(frozen=True)
class Parameter:
    """`$NAME`, `${NAME}`, `${NAME:-default}` and the like; `operator` is what follows the name."""

    name: str
    operator: str
    default: Word | None
    quoted: bool
    at: At


@dataclass(frozen=True)
class Unknown:
    """What is only known when the command runs: `$(...)`, backticks, `$1`, `${NAME%.*}`.

    It is refused where its result would reach the profile, and not before: the name of a log
    file may well have a date in it. `text` is what stands between `$(` and `)`, else None.
    """

    what: str
    hint: str
    at: At
    quoted: bool
    text: str | None = None


Part = Literal | Parameter | Unknown


@dataclass(frozen=True)
class Word:
    """One word of a command; `items` when it is an array assignment, `NAME=(...)`.

    `braces` is set when a shell would make several words of it, `{a,b}`.
    """

    parts: tuple[Part, ...]
    at: At
    items: tuple[Word, ...] | None = None
    braces: bool = False

    @property
    def bare(self) -> str | None:
        """The text when nothing in the word is quoted or has to be expanded."""
        if len(self.parts) == 1 and isinstance(self.parts[0], Literal) and self.items is None:
            return None if self.parts[0].quoted else self.parts[0].text
        return None

    @property
    def leading(self) -> str:
        """The unquoted text the word starts with; assignments and tildes are seen in it."""
        first = self.parts[0] if self.parts else None
        return first.text if isinstance(first, Literal) and not first.quoted else ""


@dataclass(frozen=True)
class Operator:
    """`;`, `&&`, `|`, a line's end and the like."""

    text: str
    at: At


@dataclass(frozen=True)
class Redirection:
    """`> log`, `2>&1`: where input or output goes."""

    text: str
    at: At


Token = Word | Operator | Redirection


@dataclass(frozen=True)
class Command:
    """One simple command and the operators on both its sides."""

    words: tuple[Word, ...]
    redirections: tuple[Redirection, ...]
    before: str
    after: str

    @property
    def at(self) -> At:
        """Where it starts."""
        return self.words[0].at


@dataclass
class Notes:
    """What the import changed, dropped or could not know; each note once, in order."""

    seen: dict[str, None] = field(default_factory=dict)

    def add(self, text: str) -> None:
        """Record one; control characters are made visible, so that it stays one line."""
        shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
        self.seen.setdefault(shown)
