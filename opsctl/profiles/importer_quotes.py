"""The parts of a word: quotes, escapes, and what a shell would expand."""

from __future__ import annotations

import re
from bisect import bisect_right

from opsctl.profiles.importer_text import (
    At,
    CommandTextError,
    Literal,
    Parameter,
    Part,
    Unknown,
    Word,
)

MAX_DEPTH = 20
"""Commands quoted inside commands, and expansions inside expansions."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EXPANSION = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(\}|:?[-=?]|\[[@*]\]\})")
_DOUBLE = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_ANSI_QUOTED = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_ODD = {
    character: what
    for characters, what in (
        ("\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u00ab\u00bb", "typographic; write ' or \""),
        ("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "not a hyphen; write - or --"),
        ("\u00a0\u2007\u202f\u3000", "a space that no shell takes for one; write a plain one"),
        ("\u200b\u200c\u200d\u2060\ufeff", "invisible; remove it"),
    )
    for character in characters
}  # fmt: skip
"""What wikis and chat programs make of plain characters."""
_ESCAPES = {
    "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
    "v": "\v", "\\": "\\", "'": "'", '"': '"', "?": "?",
}  # fmt: skip
_ANSI = re.compile(
    r"\\(?:x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|([0-7]{1,3})|(.))", re.DOTALL
)


class Reader:
    """Reads a text from its start; `origin` is the place of all of it when it stood quoted."""

    def __init__(self, text: str, origin: At | None, depth: int) -> None:
        self.text = text
        self.origin = origin
        self.depth = depth
        self.position = 0
        self.lines = [0, *(match.end() for match in re.finditer("\n", text))]

    def at(self, position: int) -> At:
        """Line and column of a position."""
        if self.origin is not None:
            return self.origin
        line = bisect_right(self.lines, position)
        return At(line, position - self.lines[line - 1] + 1)

    def error(self, position: int, what: str, hint: str | None = None) -> CommandTextError:
        """A complaint about what stands at a position."""
        return CommandTextError(self.at(position), what, hint=hint)

    def peek(self) -> str:
        """The next character; empty at the end."""
        return self.text[self.position : self.position + 1]

    def part(self) -> list[Part]:
        """Take the next part of a word: one character, or what is quoted or expanded."""
        character = self.peek()
        if character == "'":
            return [Literal(self._single(), True)]
        if character == '"':
            return self._double()
        if character == "$":
            return [self._dollar(quoted=False)]
        if character == "`":
            return [self._backticks(quoted=False)]
        if character == "\\":
            self.position += 2
            return [Literal(self.text[self.position - 1 : self.position] or "\\", True)]
        if character in _ODD:
            name = f"U+{ord(character):04X}"
            raise self.error(self.position, f"character {name} is {_ODD[character]}")
        self.position += 1
        return [Literal(character, False)]

    def _single(self) -> str:
        end = self.text.find("'", self.position + 1)
        if end < 0:
            raise self.error(self.position, "this ' is never closed")
        text = self.text[self.position + 1 : end]
        self.position = end + 1
        return text

    def _double(self) -> list[Part]:
        start = self.position
        self.position += 1
        parts: list[Part] = [Literal("", True)]
        while self.peek() != '"':
            character = self.peek()
            if not character:
                raise self.error(start, 'this " is never closed')
            if character == "\\":
                parts.append(Literal(self._escaped('$`"\\'), True))
            elif character == "$":
                parts.append(self._dollar(quoted=True))
            elif character == "`":
                parts.append(self._backticks(quoted=True))
            else:
                parts.append(Literal(character, True))
                self.position += 1
        self.position += 1
        return parts

    def _escaped(self, special: str) -> str:
        """After a backslash in double quotes: only some characters lose it."""
        following = self.text[self.position + 1 : self.position + 2]
        self.position += 2
        if following == "\n":
            return ""
        return following if following and following in special else "\\" + following

    def _ansi(self) -> str:
        """`$'...'`."""
        match = _ANSI_QUOTED.match(self.text, self.position)
        if match is None:
            raise self.error(self.position, "this $' is never closed")
        text = self._ansi_text(match[1])
        self.position = match.end()
        return text

    def _ansi_text(self, raw: str) -> str:
        def replace(found: re.Match[str]) -> str:
            hexadecimal, short, long, octal, letter = found.groups()
            number = hexadecimal or short or long
            if number or octal:
                code = int(number, 16) if number else int(octal, 8)
                if not 0 < code < 0x110000 or (code > 0x7F and not (short or long)):
                    raise self.error(self.position, "an escape that is no character")
                return chr(code)
            if letter == "c":
                raise self.error(self.position, r"the escape \c is not understood")
            return _ESCAPES.get(letter, "\\" + letter)

        return _ANSI.sub(replace, raw)

    def _dollar(self, *, quoted: bool) -> Part:
        start = self.position
        following = self.text[start + 1 : start + 2]
        if following == "(":
            return self._substitution(quoted=quoted)
        if following == "{":
            return self._braced(quoted=quoted)
        if following and following in "'\"" and not quoted:
            self.position += following == '"'  # $"..." is text to translate: as without the $
            return Literal(self._ansi() if following == "'" else "", True)
        match = _NAME.match(self.text, start + 1)
        if match is not None:
            self.position = match.end()
            return Parameter(match.group(), "", None, quoted, self.at(start))
        if following and following in "@*#?$!-0123456789":
            self.position += 2
            what = f"`${following}` is only known inside a running script"
            return Unknown(what, "write the value it stands for", self.at(start), quoted)
        self.position += 1
        return Literal("$", quoted)

    def _braced(self, *, quoted: bool) -> Part:
        start = self.position
        match = _EXPANSION.match(self.text, start)
        if match is None:
            return self._not_understood(quoted=quoted)
        self.position = match.end()
        name, operator = match.groups()
        if operator.endswith("}"):
            return Parameter(name, operator[:-1], None, quoted, self.at(start))
        return Parameter(name, operator, self._default(start), quoted, self.at(start))

    def _default(self, start: int) -> Word:
        """The word after `:-`, up to the brace that closes the expansion."""
        begin = self.position
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(start, "expansions inside expansions, too deep")
        parts: list[Part] = []
        while self.peek() != "}":
            if not self.peek():
                raise self.error(start, "this `${` is never closed")
            parts += self.part()
        self.position += 1
        self.depth -= 1
        return Word(joined(parts), self.at(begin))

    def _not_understood(self, *, quoted: bool) -> Unknown:
        start = self.position
        end = self.text.find("}", start)
        if end < 0:
            raise self.error(start, "this `${` is never closed")
        self.position = end + 1
        what = "this kind of expansion is not understood"
        return Unknown(what, "write its result", self.at(start), quoted)

    def _substitution(self, *, quoted: bool) -> Unknown:
        """`$(...)` up to its own end, with quotes and further ones in it skipped."""
        start = self.position
        self.position += 2
        depth = 1
        while depth:
            character = self.peek()
            if not character:
                raise self.error(start, "this `$(` is never closed")
            if character == "'":
                self._single()
            elif character == '"':
                self._skip_double(start)
            else:
                depth += (character == "(") - (character == ")")
                self.position += 2 if character == "\\" else 1
        return self._command(start, self.text[start + 2 : self.position - 1], quoted=quoted)

    def _skip_double(self, start: int) -> None:
        match = _DOUBLE.match(self.text, self.position)
        if match is None:
            raise self.error(start, "this `$(` is never closed")
        self.position = match.end()

    def _backticks(self, *, quoted: bool) -> Unknown:
        start = self.position
        end = self.text.find("`", start + 1)
        if end < 0:
            raise self.error(start, "this ` is never closed")
        self.position = end + 1
        return self._command(start, self.text[start + 1 : end], quoted=quoted)

    def _command(self, start: int, text: str, *, quoted: bool) -> Unknown:
        what = "a command substitution: nothing of a pasted command is run"
        return Unknown(what, "write its result", self.at(start), quoted, text)


def joined(parts: list[Part]) -> tuple[Part, ...]:
    """The same with neighbouring literals of one kind made one."""
    kept: list[Part] = []
    for part in parts:
        last = kept[-1] if kept else None
        if isinstance(part, Literal) and isinstance(last, Literal) and part.quoted == last.quoted:
            kept[-1] = Literal(last.text + part.text, last.quoted)
        else:
            kept.append(part)
    return tuple(kept)
