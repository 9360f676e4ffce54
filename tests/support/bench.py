"""Made-up pieces of measurements: cells, outcomes, and what a cell's checks look at."""

from __future__ import annotations

from typing import Any

from opsctl.bench.checks import Facts
from opsctl.bench.counters import Counters
from opsctl.bench.results import Cell
from opsctl.bench.traffic import Outcome


def cell(**changes: Any) -> Cell:
    """A valid cell."""
    facts: dict[str, Any] = {
        "profile": "baseline", "concurrency": 8, "context": 0, "repeat": 0, "valid": True,
        "tokens": 3000, "seconds": 30.0, "throughput_tok_s": 100.0, "per_user_tok_s": 12.5,
        "ttft_s": None, "tpot_s": None, "output_tokens_mean": 256.0,
    }  # fmt: skip
    return Cell(**(facts | changes))


def outcome(
    *,
    begun: float = 0.0,
    first: float = 0.1,
    gap: float = 0.02,
    events: int = 10,
    each: int = 1,
    **changes: Any,
) -> Outcome:
    """An answer whose events come `gap` seconds apart with `each` tokens in them."""
    times = [begun + first + number * gap for number in range(events)]
    facts: dict[str, Any] = {
        "ok": True, "status": 200, "tokens": events * each, "events": events + 3,
        "first_byte": first, "seconds": times[-1] - begun if times else first, "begun": begun,
        "times": times, "asked": events * each, "prompt_tokens": 100,
    }  # fmt: skip
    return Outcome(**(facts | changes))


def facts(**changes: Any) -> Facts:
    """Of a cell with nothing wrong: two requests of 10 tokens each, at concurrency 2."""
    known: dict[str, Any] = {
        "concurrency": 2, "effective": 2.0, "effective_error": 0.0,
        "outcomes": [outcome(), outcome()], "tokens": 20.0, "client_cpu": 0.2,
        "client_late": 0.0,
        "counted": Counters(
            generation_tokens=20.0, num_requests=2.0, num_aborted_requests=0.0
        ),
        "cache_hits": 0.0,
    }  # fmt: skip
    return Facts(**(known | changes))
