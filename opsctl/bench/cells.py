"""Makes a cell out of what was measured: figures, checks, and whose word each number is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from opsctl.bench import checks
from opsctl.bench.checks import Facts
from opsctl.bench.counters import Counters
from opsctl.bench.gpus import Reading
from opsctl.bench.grid import Spot
from opsctl.bench.prefix_cache import Hits, hits
from opsctl.bench.results import Cell
from opsctl.bench.traffic import Outcome
from opsctl.bench.watch import Seen
from opsctl.bench.window import Figures, Window, figures, quantiles

Mode = Literal["throughput", "latency"]


@dataclass
class Taken:
    """What came of one cell's traffic; `window` is None when none was opened."""

    outcomes: list[Outcome]
    window: Window | None = None
    drained: bool = False
    stopped: str = ""
    delays: Sequence[float] | None = None
    """Open loop: how long after its time each request was sent, in seconds."""


@dataclass(frozen=True)
class Measured:
    """Everything a cell is made of."""

    spot: Spot
    mode: Mode
    output_tokens: int
    salted: bool
    taken: Taken
    seen: Seen
    counted: Counters
    uncached: int | None
    """Prompt tokens the engine computed, by `/v1/loads`."""
    gpus: tuple[Reading, ...]
    common_tokens: int = 0
    """Tokens that every prompt may have in common with the others."""

    @property
    def open_loop(self) -> bool:
        """Whether requests were sent by a timetable."""
        return self.taken.delays is not None


def refused(spot: Spot, mode: Mode, reason: str, **extra: object) -> Cell:
    """A cell that could not be measured."""
    return Cell(
        profile=spot.profile, concurrency=spot.concurrency, context=spot.context,
        repeat=spot.repeat, valid=False, reason=reason, tokens=0, seconds=0.0,
        throughput_tok_s=0.0, per_user_tok_s=0.0, ttft_s=None, tpot_s=None, mode=mode,
        extra=extra,
    )  # fmt: skip


def made(measured: Measured) -> Cell:
    """The cell, valid or with every reason why not."""
    spot, taken, seen = measured.spot, measured.taken, measured.seen
    found = figures(taken.outcomes, taken.window or Window(0.0, 0.0))
    ran = seen.ran(found.under_way)
    if ran is not None and measured.open_loop:  # its load is not steady
        ran = (found.under_way - (seen.queued or 0.0), 0.0)
    effective, error = (found.streams or None, 0.0) if ran is None else ran
    cached = hits(taken.outcomes, measured.counted, measured.uncached, measured.common_tokens)
    accept, accept_by = accept_length(measured.counted, seen)
    wrong = checks.reasons(_facts(measured, found, effective, error, cached))
    extra = _extra(measured, found) | {
        "accept_length_by": accept_by,
        "prefix_cache_hit_rate_by": cached.by,
        "prefix_cache_own_hit_rate": cached.own,
        "common_prompt_tokens": measured.common_tokens,
        "effective_concurrency_by": "client" if ran is None else "engine",
    }
    full = [o.tokens for o in taken.outcomes if o.ok and o.asked == measured.output_tokens]
    return Cell(
        profile=spot.profile, concurrency=spot.concurrency, context=spot.context,
        repeat=spot.repeat, valid=not wrong, reason="; ".join(wrong), tokens=round(found.tokens),
        seconds=found.seconds, throughput_tok_s=found.throughput, per_user_tok_s=found.per_user,
        ttft_s=found.ttft, tpot_s=found.tpot, accept_length=accept,
        effective_concurrency=effective, requests=found.requests, output_tokens_mean=_mean(full),
        prefix_cache_hit_rate=cached.share, client_cpu=seen.cpu,
        gpus=measured.gpus, mode=measured.mode, extra=extra,
    )  # fmt: skip


def _facts(
    measured: Measured, found: Figures, effective: float | None, error: float, cached: Hits
) -> Facts:
    taken, seen = measured.taken, measured.seen
    return Facts(
        concurrency=None if measured.open_loop else measured.spot.concurrency,
        effective=effective,
        effective_error=error,
        outcomes=taken.outcomes,
        tokens=found.tokens,
        client_cpu=seen.cpu,
        client_late=seen.late,
        delays=taken.delays or (),
        counted=measured.counted,
        cache_hits=cached.own,
        salted=measured.salted,
        fixed_length=measured.mode == "throughput",
        drained=taken.drained,
        stopped=taken.stopped,
    )


def _extra(measured: Measured, found: Figures) -> dict[str, Any]:
    taken, seen = measured.taken, measured.seen
    prompts = [outcome.prompt_tokens for outcome in taken.outcomes if outcome.prompt_tokens]
    delay = quantiles(taken.delays or ())
    return {
        "loop": "open" if measured.open_loop else "closed",
        "event_gap_s": None if found.event_gap is None else found.event_gap.model_dump(),
        "events": found.events,
        "streams_mean": found.streams,
        "queued_mean": seen.queued,
        "client_late": seen.late,
        "dispatch_delay_s": None if delay is None else delay.model_dump(),
        "requests_sent": len(taken.outcomes),
        "prompt_tokens_mean": _mean(prompts),
        "tokens_sent": sum(outcome.tokens for outcome in taken.outcomes),
        "tokens_counted": measured.counted.generation_tokens,
        "drained": taken.drained,
    }


def accept_length(counted: Counters, seen: Seen) -> tuple[float | None, str | None]:
    """Tokens per verify step, the bonus token included, and whose word that is.

    An answer's first token comes out of the prefill, without a verify step.
    """
    calls, tokens = counted.spec_verify_calls, counted.generation_tokens
    requests = counted.num_requests
    if calls and tokens is not None and requests is not None and tokens > requests:
        return (tokens - requests) / calls, "counters"
    if seen.accept_length is not None:
        return seen.accept_length, "loads"
    return None, None


def _mean(values: Sequence[int]) -> float | None:
    return sum(values) / len(values) if values else None
