"""Options of the programs that stand around a launch command."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from opsctl.profiles.importer_values import Value


@dataclass(frozen=True)
class Option:
    """One option as it was given; `value` is None for a switch."""

    name: str
    value: Value | None


def options(
    words: Sequence[Value], valued: Container[str], *, last: Container[str] = ()
) -> tuple[list[Option], tuple[Value, ...]]:
    """Options up to the first other word, and what follows; `valued` names those with a value.

    Short ones may be joined (`-it`) and have their value glued on (`-eA=b`, `-p30000:30000`).
    What follows one of `last` is not read: `-m MODULE` ends the interpreter's own options.
    """
    found: list[Option] = []
    index = 0
    while index < len(words) and not (found and found[-1].name in last):
        word = words[index]
        start = word.leading
        if not start.startswith("-") or start == "-":
            break
        index += 1
        if word.literal == "--":
            break
        if start.startswith("--"):
            name, equals, _ = start.partition("=")
            if equals:
                found.append(Option(name, word.after(len(name) + 1)))
                continue
            taken = name in valued and index < len(words)
            found.append(Option(name, words[index] if taken else None))
        else:
            taken = _short(word, valued, found, words[index : index + 1])
        index += taken
    return found, tuple(words[index:])


def _short(
    word: Value, valued: Container[str], found: list[Option], following: Sequence[Value]
) -> bool:
    """Read `-abVALUE`; whether the following word was taken as the value."""
    letters = word.leading[1:]
    for index, letter in enumerate(letters):
        name = f"-{letter}"
        if name not in valued:
            found.append(Option(name, None))
            continue
        glued = word.after(index + 2)
        if glued.pieces:
            equals = glued.leading.startswith("=")
            found.append(Option(name, glued.after(1) if equals else glued))
            return False
        found.append(Option(name, following[0] if following else None))
        return bool(following)
    return False
