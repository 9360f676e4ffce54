"""Durations and sizes as people write them: `90s`, `5m`, `512MiB`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationInfo, WithJsonSchema

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_LONGEST = 366 * 86400.0
_LARGEST = 2**50

_PART = r"[0-9]+(?:\.[0-9]+)?"
_DURATION = rf"(?:{_PART}(?:ms|s|m|h|d))+"
_SIZE = rf"({_PART})({'|'.join(_BYTES)})"


@dataclass(frozen=True)
class Written:
    """How a value is written in YAML: its type in words, and its form when it is shown."""

    name: str
    format: Callable[[Any], object] = lambda value: value


def parse_duration(value: object) -> float:
    """Seconds from text such as `500ms`, `30s`, `5m`, `1h30m`; `0` needs no unit.

    A bare number is refused, because nobody can tell whether it meant seconds or minutes.
    """
    if value == 0 and not isinstance(value, bool):
        return 0.0
    if not isinstance(value, str) or not re.fullmatch(_DURATION, value):
        raise ValueError(
            f"{_shown(value)} is not a duration; write a number with a unit, such as 30s or 5m"
        )
    parts = re.findall(rf"({_PART})(ms|s|m|h|d)", value)
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if seconds > _LONGEST:
        raise ValueError(f"{_shown(value)} is longer than a year")
    return seconds


def parse_size(value: object) -> int:
    """Bytes from text such as `8MiB`; `0` needs no unit."""
    if value == 0 and not isinstance(value, bool):
        return 0
    match = re.fullmatch(_SIZE, value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(
            f"{_shown(value)} is not a size; write a number with a unit, such as 8MiB or 1GB"
        )
    count = float(match[1]) * _BYTES[match[2]]
    if count > _LARGEST:
        raise ValueError(f"{_shown(value)} is more than 1 PiB")
    return int(count)


def _shown(value: object) -> str:
    if isinstance(value, str):
        return repr(value) if len(value) <= 40 else repr(value[:40] + "...")
    return str(value) if isinstance(value, int | float) else f"a {type(value).__name__}"


def format_duration(seconds: float) -> str:
    """Seconds as text that `parse_duration` reads back: `30s`, `1h30m`, `500ms`."""
    whole, rest = divmod(round(seconds * 1000), 1000)
    text = ""
    for unit in ("d", "h", "m", "s"):
        count, whole = divmod(whole, int(_SECONDS[unit]))
        text += f"{count}{unit}" if count else ""
    return text + (f"{rest}ms" if rest else "") or "0s"


def format_size(count: int) -> str:
    """Bytes as text that `parse_size` reads back, in the largest unit without a fraction."""
    for unit in ("GiB", "MiB", "KiB"):
        if count and count % _BYTES[unit] == 0:
            return f"{count // _BYTES[unit]}{unit}"
    return f"{count}B"


def _written(info: ValidationInfo) -> bool:
    """Whether the value comes from YAML, where a bare number is refused; in code it is plain."""
    return bool(info.context and info.context.get("written"))


def readable_size(size: int) -> str:
    """Bytes in the largest binary unit that leaves a whole part: `64.0 GiB`."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


def _duration(value: object, info: ValidationInfo) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and not _written(info):
        return float(value)
    return parse_duration(value)


def _size(value: object, info: ValidationInfo) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and not _written(info):
        return value
    return parse_size(value)


def _text_or_zero(pattern: str) -> dict[str, Any]:
    return {"anyOf": [{"type": "string", "pattern": f"^{pattern}$"}, {"const": 0}]}


Duration = Annotated[
    float,
    BeforeValidator(_duration),
    WithJsonSchema(_text_or_zero(_DURATION)),
    Written("duration", format_duration),
]
"""Seconds; written with a unit in YAML."""

Size = Annotated[
    int,
    BeforeValidator(_size),
    WithJsonSchema(_text_or_zero(_SIZE)),
    Written("size", format_size),
]
"""Bytes; written with a unit in YAML."""
