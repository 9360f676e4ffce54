"""What the readers of other tools' files share. Pure."""

from __future__ import annotations

import math
from typing import Any

from opsctl.bench.results import Quantiles

REACHED = 0.95
"""Share of the concurrency asked for that has to have run on average."""


def number(value: Any) -> float | None:
    """Return a finite number, or None: `inf` and texts such as "trace" are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def required(row: dict[str, Any], key: str) -> float:
    """Return a number that must be there; raises ValueError naming it."""
    found = number(row.get(key))
    if found is None:
        raise ValueError(f"`{key}` is missing or not a number")
    return found


def rounded(tokens: float) -> int:
    """Return a prompt length to two digits, so that runs with like prompts meet in one cell."""
    if tokens < 100:
        return round(tokens)
    scale = 10 ** (int(math.log10(tokens)) - 1)
    return int(round(tokens / scale) * scale)


def quantiles(p50: float | None, p90: float | None, p99: float | None) -> Quantiles | None:
    """Return latencies in seconds from milliseconds.

    None unless all three are told (bench_serving of 0.5.9 tells no p90).
    """
    if p50 is None or p90 is None or p99 is None:
        return None
    return Quantiles(p50=p50 / 1000, p90=p90 / 1000, p99=p99 / 1000)


def shortfall(effective: float | None, wanted: int) -> str:
    """Say that the concurrency was not reached; empty when it was, or is unknown."""
    if effective is None or effective >= REACHED * wanted:
        return ""
    return f"N/A ({effective:.3g}/{wanted}): send more requests for each stream"
