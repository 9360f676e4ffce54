"""Durations and sizes as people write them: `90s`, `5m`, `512MiB`."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 10**3, "MB": 10**6, "GB": 10**9}


def parse_duration(value: object) -> float:
    """Seconds from text such as `500ms`, `30s`, `5m`, `1h30m`; `0` needs no unit.

    A bare number is refused, because nobody can tell whether it meant seconds or minutes.
    """
    if value == 0:
        return 0.0
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", value) if isinstance(value, str) else []
    if not isinstance(value, str) or not parts or "".join(map("".join, parts)) != value:
        raise ValueError(f"{value!r} is not a duration; write a number with a unit, such as 30s or 5m")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def parse_size(value: object) -> int:
    """Bytes from text such as `8MiB`; `0` needs no unit."""
    if value == 0:
        return 0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]+)", value) if isinstance(value, str) else None
    if match is None or match[2] not in _BYTES:
        raise ValueError(f"{value!r} is not a size; write a number with a unit, such as 8MiB or 1GB")
    return int(float(match[1]) * _BYTES[match[2]])


def _duration(value: object) -> float:
    return value if isinstance(value, float) else parse_duration(value)


Duration = Annotated[
    float,
    BeforeValidator(_duration),
    WithJsonSchema({"type": ["string", "integer"], "pattern": r"^(\d+(\.\d+)?(ms|s|m|h|d))+$"}),
]
"""Seconds; written with a unit in YAML."""

Size = Annotated[
    int,
    BeforeValidator(parse_size),
    WithJsonSchema({"type": ["string", "integer"], "pattern": r"^\d+(\.\d+)?[A-Za-z]+$"}),
]
"""Bytes; written with a unit in YAML."""
