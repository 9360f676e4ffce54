"""What an unquoted YAML value means, and which ones nobody should have to guess about."""

from __future__ import annotations

import re


class Unclear(ValueError):  # noqa: N818 - reads as what it says where it is raised
    """An unquoted value that YAML versions and people read differently."""


_WORDS = {"y", "n", "yes", "no", "on", "off"}
_INT = re.compile(r"-?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_TRAPS = (
    (re.compile(r"[-+]?0[0-9_]+"), "an octal number to YAML 1.1"),
    (re.compile(r"[-+]?0[xXbBoO][0-9a-fA-F_]+"), "a number in another base to YAML"),
    (re.compile(r"[-+]?[0-9][0-9_]*:[0-5]?[0-9](:[0-5]?[0-9])*(\.[0-9_]*)?"),
     "a number in base 60 to YAML 1.1"),
    (re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?"), "a date to YAML 1.1"),
    (re.compile(r"[-+]?[0-9][0-9]*_[0-9_]*(\.[0-9_]*)?"), "a number to YAML 1.1"),
    (re.compile(r"\+[0-9].*|[-+]?\.[0-9]+|[-+]?[0-9]+\."), "a number to some YAML readers"),
    (re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"), "not a finite number"),
    (re.compile(r"=|<<"), "special to YAML 1.1"),
)  # fmt: skip


def resolve_plain(text: str) -> str | int | float | bool | None:
    """The value of an unquoted scalar: null, true, false, a decimal number or text.

    Raises Unclear for anything that YAML 1.1 or 1.2 would read as something else than it looks.
    """
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text.lower() in ("true", "false") and text in (text.lower(), text.title(), text.upper()):
        return text.lower() == "true"
    if text.lower() in _WORDS:
        raise Unclear(f"`{text}` is true or false to YAML 1.1; write true or false, or quote it")
    if _INT.fullmatch(text) and text != "-0":
        return _int(text)
    for pattern, why in _TRAPS:
        if pattern.fullmatch(text):
            raise Unclear(f"`{text[:40]}` is {why}; quote it or write it plainly")
    if _FLOAT.fullmatch(text):
        return _float(text)
    return text


def _int(text: str) -> int:
    if len(text) > 19:
        raise Unclear("a number this long is not used anywhere here; quote it if it is text")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise Unclear("this number is too large; quote it if it is text")
    return value
