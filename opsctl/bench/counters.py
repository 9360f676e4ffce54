"""The engine's own counters, before and after a cell."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields

_SAMPLE = re.compile(r"^sglang[:_](\w+?)(?:_total)?(?:\{[^}]*\})? (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Counters:
    """Sums over all labels since the engine's start; None where it does not count that.

    SGLang counts the tokens of a request when it ends, so they are compared while none runs.
    """

    generation_tokens: float | None = None
    prompt_tokens: float | None = None
    cached_tokens: float | None = None
    num_requests: float | None = None
    num_aborted_requests: float | None = None
    spec_verify_calls: float | None = None

    def since(self, before: Counters) -> Counters:
        """What was counted since `before`; None where either is unknown, or it was reset."""

        def difference(name: str) -> float | None:
            now, then = getattr(self, name), getattr(before, name)
            if now is None:
                return None
            # A counter of prometheus_client with labels appears with its first use.
            grown: float = now - (then or 0.0)
            return grown if grown >= 0 else None

        return Counters(**{field.name: difference(field.name) for field in fields(self)})


def read(text: str) -> Counters:
    """Read a Prometheus exposition; its names begin with `sglang:` or `sglang_`."""
    wanted = {field.name for field in fields(Counters)}
    found: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        if name in wanted and (number := _number(value)) is not None:
            found[name] = found.get(name, 0.0) + number
    return Counters(**found)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
