"""A pasted text as words and operators, each with its place: POSIX shell syntax, nothing run.

What a shell would take otherwise than it was meant is read as meant, with a note: a blank or a
comment after `\\`, a comment between continued lines, a line that starts with a flag.
"""

from __future__ import annotations

import re

from opsctl.profiles.importer_quotes import MAX_DEPTH, Reader, joined
from opsctl.profiles.importer_text import (
    At,
    CommandTextError,
    Literal,
    Notes,
    Operator,
    Part,
    Redirection,
    Token,
    Word,
)

MAX_CHARACTERS = 64 * 1024

_OPERATORS = re.compile(r"&&|\|\||;;|\|&|[;&|()]")
_REDIRECTION = re.compile(r"(&>>|&>|[0-9]*(?:<<<|<<-?|<>|>>|>\||>&|<&|>|<))")
_ARRAY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_BROKEN_CONTINUATION = re.compile(r"\\[ \t]+(#[^\n]*)?(?:\n|\Z)")
_BEFORE_A_FLAG = re.compile(r"\n(?:[ \t]*(?:#[^\n]*)?\n)*[ \t]*(?=--?[A-Za-z])")
_WORD_ENDS = set(" \t\n;&|()<>")


def tokens(text: str, notes: Notes, *, origin: At | None = None, depth: int = 0) -> list[Token]:
    """The words, operators and redirections of the text, ended by a newline operator.

    `origin` is the place that all of it gets when it stood quoted in another command.
    """
    if depth > MAX_DEPTH:
        raise CommandTextError(origin or At(1, 1), "commands inside commands, too deep")
    return _Lexer(text.replace("\r\n", "\n"), notes, origin, depth).run()


class _Lexer(Reader):
    def __init__(self, text: str, notes: Notes, origin: At | None, depth: int) -> None:
        super().__init__(text, origin, depth)
        self.notes = notes
        self.continued = False
        self.found: list[Token] = []

    def run(self) -> list[Token]:
        if len(self.text) > MAX_CHARACTERS:
            raise self.error(0, f"longer than {MAX_CHARACTERS} characters")
        odd = re.search(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]", self.text)
        if odd is not None:
            raise self.error(odd.start(), f"character U+{ord(odd.group()):04X} is not allowed here")
        while self.position < len(self.text):
            self.step()
        self.found.append(Operator("\n", self.at(len(self.text))))
        return self.found

    def step(self) -> None:
        character = self.peek()
        if character in " \t":
            self.position += 1
        elif character == "\n":
            self.newline()
        elif character == "#":
            self.comment()
        elif self.continuation() or self.redirection() or self.operator():
            return
        else:
            self.found.append(self.word())

    def newline(self) -> None:
        """A command's end, unless a flag starts the next line: no command does."""
        self.continued = False
        inside = bool(self.found) and isinstance(self.found[-1], Word)
        match = _BEFORE_A_FLAG.match(self.text, self.position) if inside else None
        if match is not None:
            line = self.at(match.end()).line
            self.notes.add(
                f"line {line} starts with a flag and the line above does not end in `\\`: "
                "a shell would end the command there; it is taken as going on"
            )
            self.position = match.end()
            return
        self.found.append(Operator("\n", self.at(self.position)))
        self.position += 1

    def comment(self) -> None:
        end = self.text.find("\n", self.position)
        end = len(self.text) if end < 0 else end
        goes_on = self.continued and self.text[self.position : end].rstrip().endswith("\\")
        if goes_on and end < len(self.text):
            self.notes.add(
                f"line {self.at(self.position).line} is a comment between continued lines: "
                "a shell would end the command there; it is taken as going on"
            )
            end += 1
        self.position = end

    def continuation(self) -> bool:
        """`\\` at a line's end; blanks or a comment after it are a mistake, read as meant."""
        if self.text.startswith("\\\n", self.position):
            self.position += 2
            self.continued = True
            return True
        if self.peek() == "\\" and self.position + 1 == len(self.text):
            self.position += 1
            return True
        match = _BROKEN_CONTINUATION.match(self.text, self.position)
        if match is None:
            return False
        what = "a comment" if match[1] else "a blank"
        self.notes.add(
            f"line {self.at(self.position).line}: {what} after `\\` ends the command in a shell; "
            "it is taken as going on"
        )
        self.position = match.end()
        self.continued = True
        return True

    def redirection(self) -> bool:
        match = _REDIRECTION.match(self.text, self.position)
        if match is None:
            return False
        start = self.position
        sign = match[1].lstrip("0123456789")
        if sign in {"<<", "<<-", "<<<"}:
            raise self.error(start, "a here-document is not understood", "write its text out")
        if self.text.startswith("(", match.end()) and sign in {"<", ">"}:
            raise self.error(start, "a process substitution is not understood")
        self.position = match.end()
        while self.peek() and self.peek() in " \t":
            self.position += 1
        if not self.peek() or self.peek() in _WORD_ENDS:
            raise self.error(start, f"nothing to redirect to after `{match[1]}`")
        self.word()
        self.found.append(Redirection(match[1], self.at(start)))
        return True

    def operator(self) -> bool:
        match = _OPERATORS.match(self.text, self.position)
        if match is None:
            return False
        self.found.append(Operator(match.group(), self.at(self.position)))
        self.position = match.end()
        return True

    def word(self) -> Word:
        start = self.position
        parts: list[Part] = []
        while self.position < len(self.text) and self.peek() not in _WORD_ENDS:
            if self.text.startswith("\\\n", self.position):
                self.position += 2
                self.continued = True
                continue
            if _BROKEN_CONTINUATION.match(self.text, self.position):
                break
            parts += self.part()
        kept = joined(parts)
        word = Word(kept, self.at(start), braces=_brace_expands(kept))
        if self.peek() == "(" and _ARRAY.fullmatch(word.bare or ""):
            return self.array(word)
        return word

    def array(self, name: Word) -> Word:
        self.position += 1
        items: list[Word] = []
        while self.peek() != ")":
            if not self.peek():
                raise CommandTextError(name.at, "this `(` is never closed")
            if self.peek() in " \t\n":
                self.position += 1
            elif self.peek() == "#":
                end = self.text.find("\n", self.position)
                self.position = len(self.text) if end < 0 else end
            elif not self.continuation():
                if self.peek() in _WORD_ENDS:
                    raise self.error(self.position, f"`{self.peek()}` does not belong in an array")
                items.append(self.word())
        self.position += 1
        return Word(name.parts, name.at, tuple(items))


def _brace_expands(parts: tuple[Part, ...]) -> bool:
    """Whether `{a,b}` or `{1..3}` stands outside quotes: several words to a shell."""
    depth = 0
    for part in parts:
        if isinstance(part, Literal) and not part.quoted:
            for sign in re.findall(r"[{},]|\.\.", part.text):
                if depth and sign in {",", ".."}:
                    return True
                depth = max(0, depth + (sign == "{") - (sign == "}"))
    return False
