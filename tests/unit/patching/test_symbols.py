"""Which names differ between two texts of a module."""

from __future__ import annotations

import pytest

from opsctl.patching.symbols import changed
from opsctl.patching.verify import wrong_symbols

BEFORE = b"""
import os
LIMIT = 1
first, second = 1, 2

def top(x):
    return x

class Engine(Base, metaclass=Meta):
    size = 1

    @property
    def width(self):
        return 1

    class Inner:
        def deep(self):
            return 1

if LIMIT:
    def hidden():
        return 1
"""


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        (b"import os", b"import os, sys", {"(imports)"}),
        (b"LIMIT = 1", b"LIMIT = 2", {"LIMIT"}),
        (b"LIMIT = 1", b"LIMIT: int = 1", {"LIMIT"}),
        (b"= 1, 2", b"= 2, 1", {"first, second"}),
        (b"return x", b"return x + 1", {"top"}),
        (b"def top(x)", b"def top(x, y=1)", {"top"}),
        (b"def top", b"async def top", {"top"}),
        (b"(Base,", b"(Other,", {"Engine"}),
        (b"size = 1", b"size = 2", {"Engine.size"}),
        (b"@property", b"@cached", {"Engine.width"}),
        (b"def deep(self)", b"def deep(self, x)", {"Engine.Inner.deep"}),
        (b"def hidden()", b"def hidden(x)", {"(module)"}),
        (b"def top(x):", b"def more(): ...\n\ndef top(x):", {"more"}),
        (b"return x", b"return x  # why", set()),
        (b"    return x", b"    return (\n        x\n    )", set()),
    ],
)
def test_exactly_what_differs_is_named(old: bytes, new: bytes, names: set[str]) -> None:
    assert old in BEFORE
    assert changed(BEFORE, BEFORE.replace(old, new, 1)) == names


def test_a_second_definition_of_a_name_counts() -> None:
    assert changed(BEFORE, BEFORE + b"\ndef top(x):\n    return 2\n") == {"top"}


def test_what_does_not_parse_is_an_error() -> None:
    with pytest.raises(SyntaxError):
        changed(BEFORE, b"def (")


def test_more_and_less_than_intended_are_both_wrong() -> None:
    after = BEFORE.replace(b"LIMIT = 1", b"LIMIT = 2")
    assert list(wrong_symbols(BEFORE, after, frozenset({"LIMIT"}))) == []
    assert list(wrong_symbols(BEFORE, after, frozenset())) == [
        "changed although the patch is not for it: LIMIT"
    ]
    assert list(wrong_symbols(BEFORE, after, frozenset({"LIMIT", "top"}))) == [
        "unchanged although the patch is for it: top"
    ]
    assert "cannot be parsed" in next(wrong_symbols(BEFORE, b"def (", frozenset()))
