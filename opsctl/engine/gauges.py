"""The count of generated tokens, out of an engine's Prometheus exposition, cheaply.

`loads.from_metrics` reads all of it and takes its time; this is done every other second.
"""

from __future__ import annotations

import math
import re

_GENERATED = re.compile(r"^sglang[:_]generation_tokens_total(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


def generated_tokens(text: str | None) -> int | None:
    """Tokens generated since the engine began, over all series; None is unknown."""
    found = _GENERATED.findall(text or "")
    try:
        total = sum(map(float, found))
    except ValueError:
        return None
    return int(total) if found and math.isfinite(total) and total >= 0 else None
