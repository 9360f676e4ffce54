"""A pasted text as words and operators, each with its place: POSIX shell syntax, nothing run.

What a shell would take otherwise than it was meant is read as meant, with a note: a blank or a
comment after `\\`, a comment between continued lines, a line that starts with a flag.
"""

from __future__ import annotations

import re
from bisect import bisect_right

from opsctl.profiles.importer_text import (
    At,
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

MAX_CHARACTERS = 64 * 1024
MAX_DEPTH = 20
"""Commands quoted inside commands, and expansions inside expansions."""

_OPERATORS = re.compile(r"&&|\|\||;;|\|&|[;&|()]")
_REDIRECTION = re.compile(r"(&>>|&>|[0-9]*(?:<<<|<<-?|<>|>>|>\||>&|<&|>|<))")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ARRAY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_BROKEN_CONTINUATION = re.compile(r"\\[ \t]+(#[^\n]*)?(?:\n|\Z)")
_BEFORE_A_FLAG = re.compile(r"\n(?:[ \t]*(?:#[^\n]*)?\n)*[ \t]*(?=--?[A-Za-z])")
_EXPANSION = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(\}|:?[-=?]|\[[@*]\]\})")
_DOUBLE = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_ANSI_QUOTED = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_WORD_ENDS = set(" \t\n;&|()<>")
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


def tokens(text: str, notes: Notes, *, origin: At | None = None, depth: int = 0) -> list[Token]:
    """The words, operators and redirections of the text, ended by a newline operator.

    `origin` is the place that all of it gets when it stood quoted in another command.
    """
    if depth > MAX_DEPTH:
        raise CommandTextError(origin or At(1, 1), "commands inside commands, too deep")
    return _Lexer(text.replace("\r\n", "\n"), notes, origin, depth).run()


class _Lexer:
    def __init__(self, text: str, notes: Notes, origin: At | None, depth: int) -> None:
        self.text = text
        self.notes = notes
        self.origin = origin
        self.depth = depth
        self.position = 0
        self.continued = False
        self.lines = [0, *(match.end() for match in re.finditer("\n", text))]
        self.found: list[Token] = []

    def at(self, position: int) -> At:
        if self.origin is not None:
            return self.origin
        line = bisect_right(self.lines, position)
        return At(line, position - self.lines[line - 1] + 1)

    def error(self, position: int, what: str, hint: str | None = None) -> CommandTextError:
        return CommandTextError(self.at(position), what, hint=hint)

    def peek(self) -> str:
        return self.text[self.position : self.position + 1]

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
        joined = _joined(parts)
        word = Word(joined, self.at(start), braces=_brace_expands(joined))
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

    def part(self) -> list[Part]:
        character = self.peek()
        if character == "'":
            return [Literal(self.single(), True)]
        if character == '"':
            return self.double()
        if character == "$":
            return [self.dollar(quoted=False)]
        if character == "`":
            return [self.backticks(quoted=False)]
        if character == "\\":
            self.position += 2
            return [Literal(self.text[self.position - 1 : self.position] or "\\", True)]
        if character in _ODD:
            name = f"U+{ord(character):04X}"
            raise self.error(self.position, f"character {name} is {_ODD[character]}")
        self.position += 1
        return [Literal(character, False)]

    def single(self) -> str:
        end = self.text.find("'", self.position + 1)
        if end < 0:
            raise self.error(self.position, "this ' is never closed")
        text = self.text[self.position + 1 : end]
        self.position = end + 1
        return text

    def double(self) -> list[Part]:
        start = self.position
        self.position += 1
        parts: list[Part] = [Literal("", True)]
        while self.peek() != '"':
            character = self.peek()
            if not character:
                raise self.error(start, 'this " is never closed')
            if character == "\\":
                parts.append(Literal(self.escaped('$`"\\'), True))
            elif character == "$":
                parts.append(self.dollar(quoted=True))
            elif character == "`":
                parts.append(self.backticks(quoted=True))
            else:
                parts.append(Literal(character, True))
                self.position += 1
        self.position += 1
        return parts

    def escaped(self, special: str) -> str:
        """After a backslash in double quotes: only some characters lose it."""
        following = self.text[self.position + 1 : self.position + 2]
        self.position += 2
        if following == "\n":
            return ""
        return following if following and following in special else "\\" + following

    def ansi(self) -> str:
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

    def dollar(self, *, quoted: bool) -> Part:
        start = self.position
        following = self.text[start + 1 : start + 2]
        if following == "(":
            return self.substitution(quoted=quoted)
        if following == "{":
            return self.braced(quoted=quoted)
        if following and following in "'\"" and not quoted:
            self.position += following == '"'  # $"..." is text to translate: as without the $
            return Literal(self.ansi() if following == "'" else "", True)
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

    def braced(self, *, quoted: bool) -> Part:
        start = self.position
        match = _EXPANSION.match(self.text, start)
        if match is None:
            return self.not_understood(quoted=quoted)
        self.position = match.end()
        name, operator = match.groups()
        if operator.endswith("}"):
            return Parameter(name, operator[:-1], None, quoted, self.at(start))
        return Parameter(name, operator, self.default(start), quoted, self.at(start))

    def default(self, start: int) -> Word:
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
        return Word(_joined(parts), self.at(begin))

    def not_understood(self, *, quoted: bool) -> Unknown:
        start = self.position
        end = self.text.find("}", start)
        if end < 0:
            raise self.error(start, "this `${` is never closed")
        self.position = end + 1
        what = "this kind of expansion is not understood"
        return Unknown(what, "write its result", self.at(start), quoted)

    def substitution(self, *, quoted: bool) -> Unknown:
        """`$(...)` up to its own end, with quotes and further ones in it skipped."""
        start = self.position
        self.position += 2
        depth = 1
        while depth:
            character = self.peek()
            if not character:
                raise self.error(start, "this `$(` is never closed")
            if character == "'":
                self.single()
            elif character == '"':
                self.skip_double(start)
            else:
                depth += (character == "(") - (character == ")")
                self.position += 2 if character == "\\" else 1
        return self.command(start, self.text[start + 2 : self.position - 1], quoted=quoted)

    def skip_double(self, start: int) -> None:
        match = _DOUBLE.match(self.text, self.position)
        if match is None:
            raise self.error(start, "this `$(` is never closed")
        self.position = match.end()

    def backticks(self, *, quoted: bool) -> Unknown:
        start = self.position
        end = self.text.find("`", start + 1)
        if end < 0:
            raise self.error(start, "this ` is never closed")
        self.position = end + 1
        return self.command(start, self.text[start + 1 : end], quoted=quoted)

    def command(self, start: int, text: str, *, quoted: bool) -> Unknown:
        what = "a command substitution: nothing of a pasted command is run"
        return Unknown(what, "write its result", self.at(start), quoted, text)


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


def _joined(parts: list[Part]) -> tuple[Part, ...]:
    """The same with neighbouring literals of one kind made one."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, Literal) and isinstance(last, Literal) and part.quoted == last.quoted:
            joined[-1] = Literal(last.text + part.text, last.quoted)
        else:
            joined.append(part)
    return tuple(joined)
