"""Measures one cell: room for it, traffic, figures, checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from opsctl.bench import checks
from opsctl.bench.checks import Facts
from opsctl.bench.counters import Counters
from opsctl.bench.gpus import Reading, gpu_readings
from opsctl.bench.grid import Spot
from opsctl.bench.loops import ClosedLoop, Extent, Taken
from opsctl.bench.results import Cell
from opsctl.bench.target import Target
from opsctl.bench.traffic import Job, Outcome
from opsctl.bench.watch import Seen, Watch
from opsctl.bench.window import Figures, Window, figures
from opsctl.bench.workload import Prompts
from opsctl.engine.loads import Loads

Mode = Literal["throughput", "latency"]


@dataclass(frozen=True)
class Way:
    """How every cell of a run is measured."""

    extent: Extent
    output_tokens: int = 256
    """Length of every answer; with `latency` the most an answer may have."""
    mode: Mode = "throughput"

    @property
    def options(self) -> Mapping[str, object]:
        """Throughput wants answers of one length; latency wants them to end by themselves."""
        return {"ignore_eos": True} if self.mode == "throughput" else {}


async def measure(target: Target, prompts: Prompts, way: Way, spot: Spot) -> Cell:
    """Measure `spot`; never raises for what the server does."""
    room = await _room(target, spot, way)
    if room is not None:
        why = f"the engine has room for {room} such requests at once"
        return _empty(spot, way, checks.not_reached(room, spot.concurrency), why=why)
    if not await target.settle():
        return _empty(spot, way, "the server was busy with other requests")
    before = await target.counters()
    loads_before = await target.loads()
    loop = ClosedLoop(
        target.session,
        lambda number: _job(target, prompts, way, spot, number),
        spot.concurrency,
        way.extent,
    )
    watch = Watch(target.loads)
    readings: list[Reading] = []

    async def at_close() -> None:
        readings.extend(await gpu_readings())

    taken = await loop.run(lambda: watch, at_close)
    tokens = sum(outcome.tokens for outcome in taken.outcomes)
    counted, uncached = Counters(), None
    if taken.drained:
        counted = await target.settled_counters(before, tokens)
        uncached = _uncached(loads_before, await target.loads())
    return _cell(_Measured(spot, way, taken, watch.seen, counted, uncached, tuple(readings)),
                 salted=prompts.nonce is not None)  # fmt: skip


@dataclass(frozen=True)
class _Measured:
    """Everything a cell is made of."""

    spot: Spot
    way: Way
    taken: Taken
    seen: Seen
    counted: Counters
    uncached: int | None
    gpus: tuple[Reading, ...]


def _uncached(before: Loads | None, after: Loads | None) -> int | None:
    """Prompt tokens the engine had to compute; only `/v1/loads` tells them apart."""
    if before is None or after is None or after.generation_tokens_total is not None:
        return None
    then, now = before.prefill_tokens_total, after.prefill_tokens_total
    return now - then if now is not None and then is not None else None


async def _room(target: Target, spot: Spot, way: Way) -> int | None:
    """How many such requests fit at once, where that is too few; None otherwise.

    The engine itself says how many it admits (48 with EAGLE unless told otherwise) and how many
    tokens its KV cache holds, so a cell beyond that need not be waited for.
    """
    loads = await target.loads()
    if loads is None:
        return None
    limits = [loads.max_running] if loads.max_running else []
    if loads.capacity_tokens:
        limits.append(loads.capacity_tokens // (spot.context + way.output_tokens))
    room = min(limits, default=spot.concurrency)
    return room if room < (1 - checks.CONCURRENCY_WITHIN) * spot.concurrency else None


def _job(target: Target, prompts: Prompts, way: Way, spot: Spot, number: int) -> Job:
    cell = (spot.concurrency, spot.context, spot.repeat)
    return Job(
        target.url,
        target.model,
        max_tokens=way.output_tokens,
        api_key=target.api_key,
        messages=prompts.messages(cell, number),
        options=way.options,
    )


def _empty(spot: Spot, way: Way, reason: str, **extra: object) -> Cell:
    return Cell(
        profile=spot.profile, concurrency=spot.concurrency, context=spot.context,
        repeat=spot.repeat, valid=False, reason=reason, tokens=0, seconds=0.0,
        throughput_tok_s=0.0, per_user_tok_s=0.0, ttft_s=None, tpot_s=None, mode=way.mode,
        extra=extra,
    )  # fmt: skip


def _cell(measured: _Measured, *, salted: bool) -> Cell:
    spot, way, taken, seen = measured.spot, measured.way, measured.taken, measured.seen
    found = figures(taken.outcomes, taken.window or Window(0.0, 0.0))
    effective = seen.running if seen.running is not None else found.streams or None
    hits, hits_by = cache_hits(taken.outcomes, measured.counted, measured.uncached)
    wrong = checks.reasons(
        Facts(
            concurrency=spot.concurrency, effective=effective, outcomes=taken.outcomes,
            tokens=found.tokens, client_cpu=seen.cpu, client_late=seen.late,
            counted=measured.counted, cache_hits=hits, salted=salted,
            fixed_length=way.mode == "throughput", drained=taken.drained, stopped=taken.stopped,
        )
    )  # fmt: skip
    accept, accept_by = accept_length(measured.counted, seen)
    return Cell(
        profile=spot.profile, concurrency=spot.concurrency, context=spot.context,
        repeat=spot.repeat, valid=not wrong, reason="; ".join(wrong), tokens=round(found.tokens),
        seconds=found.seconds, throughput_tok_s=found.throughput, per_user_tok_s=found.per_user,
        ttft_s=found.ttft, tpot_s=found.tpot, accept_length=accept,
        effective_concurrency=effective, requests=found.requests,
        output_tokens_mean=_mean(
            [o.tokens for o in taken.outcomes if o.ok and o.asked == way.output_tokens]
        ),
        prefix_cache_hit_rate=hits, client_cpu=seen.cpu, gpus=measured.gpus, mode=way.mode,
        extra=_extra(measured, found) | {
            "accept_length_by": accept_by,
            "prefix_cache_hit_rate_by": hits_by,
            "effective_concurrency_by": "client" if seen.running is None else "engine",
        },
    )  # fmt: skip


def _extra(measured: _Measured, found: Figures) -> dict[str, Any]:
    taken, seen = measured.taken, measured.seen
    prompts = [outcome.prompt_tokens for outcome in taken.outcomes if outcome.prompt_tokens]
    gap = found.event_gap
    return {
        "loop": "closed",
        "event_gap_s": gap.model_dump() if gap is not None else None,
        "events": found.events,
        "streams_mean": found.streams,
        "queued_mean": seen.queued,
        "client_late": seen.late,
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
    calls, tokens, requests = (
        counted.spec_verify_calls, counted.generation_tokens, counted.num_requests,
    )  # fmt: skip
    if calls and tokens is not None and requests is not None and tokens > requests:
        return (tokens - requests) / calls, "counters"
    if seen.accept_length is not None:
        return seen.accept_length, "loads"
    return None, None


def cache_hits(
    outcomes: list[Outcome], counted: Counters, uncached: int | None
) -> tuple[float | None, str | None]:
    """Share of the prompts' tokens that came from the prefix cache, and whose word that is."""
    asked = sum(outcome.prompt_tokens for outcome in outcomes)
    said = [outcome.cached_tokens for outcome in outcomes if outcome.cached_tokens is not None]
    if not asked:
        return None, None
    if said:
        return sum(said) / asked, "usage"
    if counted.cached_tokens is not None and counted.prompt_tokens:
        return counted.cached_tokens / counted.prompt_tokens, "counters"
    if uncached is not None:
        return max(0.0, 1.0 - uncached / asked), "loads"
    return None, None


def _mean(values: list[int]) -> float | None:
    return sum(values) / len(values) if values else None
