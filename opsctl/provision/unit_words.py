"""Values as systemd reads them in a unit file (systemd.syntax(7), "Quoting")."""

from __future__ import annotations

from collections.abc import Iterable

from opsctl.errors import UsageError

_QUOTED = frozenset(" \t'\"\\;#")


def word(text: str) -> str:
    """One value: percent signs doubled (they begin a specifier), quoted where it needs it.

    Raises UsageError for control characters and for no text at all, which no path has.
    """
    if not text or not text.isprintable():
        raise UsageError(f"{text!r} cannot stand in a systemd unit", hint="use another name for it")
    escaped = text.replace("%", "%%")
    if not _QUOTED & set(text):
        return escaped
    inner = escaped.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{inner}"'


def words(values: Iterable[str]) -> str:
    """Several values of one setting, on its line."""
    return " ".join(map(word, values))


def command(program: str, *arguments: str) -> str:
    """A command line for ExecStart=. A dollar sign begins a variable there, but in the program."""
    return " ".join((word(program), *(word(each).replace("$", "$$") for each in arguments)))
