"""Measures one cell: room for it, an idle engine, traffic, and the engine's own counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from opsctl.bench import checks
from opsctl.bench.arrivals import OpenLoop, Timetable
from opsctl.bench.cells import Measured, Mode, Taken, made, refused
from opsctl.bench.counters import Counters
from opsctl.bench.gpus import gpu_readings
from opsctl.bench.grid import Spot
from opsctl.bench.loops import ClosedLoop, Extent
from opsctl.bench.results import Cell
from opsctl.bench.target import Target
from opsctl.bench.traffic import Job
from opsctl.bench.watch import Watch
from opsctl.bench.workload import Prompts
from opsctl.engine.loads import Loads


@dataclass(frozen=True)
class Way:
    """How every cell of a run is measured."""

    extent: Extent
    output_tokens: int = 256
    """Length of every answer; with `latency` the most an answer may have."""
    mode: Mode = "throughput"
    timetable: Timetable | None = None
    """Open loop: when each request is sent."""

    @property
    def options(self) -> Mapping[str, object]:
        """Throughput wants answers of one length; latency wants them to end by themselves."""
        return {"ignore_eos": True} if self.mode == "throughput" else {}


class Loop(Protocol):
    """Sends the traffic of one cell."""

    async def run(
        self,
        watching: Callable[[], AbstractAsyncContextManager[object]],
    ) -> Taken:
        """Send it; `watching` is entered for the window."""


async def measure(target: Target, prompts: Prompts, way: Way, spot: Spot) -> Cell:
    """Measure `spot`; never raises for what the server does."""
    loads_before = await target.loads()
    room = None if loads_before is None else _room(loads_before, spot, way)
    if room is not None:
        why = f"the engine has room for {room} such requests at once"
        return refused(spot, way.mode, checks.not_reached(room, spot.concurrency), why=why)
    if not await target.settle():
        return refused(spot, way.mode, "the server was busy with other requests")
    before = await target.counters()
    watch = Watch(target.loads, readings=gpu_readings)
    taken = await _loop(target, prompts, way, spot).run(lambda: watch)
    counted, uncached = Counters(), None
    if taken.drained:
        tokens = sum(outcome.tokens for outcome in taken.outcomes)
        counted = await target.settled_counters(before, tokens)
        uncached = _uncached(loads_before, await target.loads())
    return made(
        Measured(
            spot=spot,
            mode=way.mode,
            output_tokens=way.output_tokens,
            salted=prompts.nonce is not None,
            taken=taken,
            seen=watch.seen,
            counted=counted,
            uncached=uncached,
            gpus=watch.gpus,
            common_tokens=prompts.common_tokens,
        )
    )


def _loop(target: Target, prompts: Prompts, way: Way, spot: Spot) -> Loop:
    cell = (spot.concurrency, spot.context, spot.repeat)

    def job(number: int, max_tokens: int | None = None) -> Job:
        return Job(
            target.url,
            target.model,
            max_tokens=max_tokens or way.output_tokens,
            api_key=target.api_key,
            messages=prompts.messages(cell, number),
            options=way.options,
        )

    if way.timetable is not None:
        return OpenLoop(target.session, job, way.timetable, way.extent.drain_limit)
    return ClosedLoop(target.session, job, spot.concurrency, way.extent)


def _room(loads: Loads, spot: Spot, way: Way) -> int | None:
    """How many such requests fit at once, where that is too few; None otherwise.

    The engine itself says how many it admits (48 with EAGLE unless told otherwise) and how many
    tokens its KV cache holds, so a cell beyond that need not be waited for.
    """
    if way.timetable is not None:
        return None
    limits = [loads.max_running] if loads.max_running else []
    if loads.capacity_tokens:
        limits.append(loads.capacity_tokens // (spot.context + way.output_tokens))
    room = min(limits, default=spot.concurrency)
    return room if room < (1 - checks.CONCURRENCY_WITHIN) * spot.concurrency else None


def _uncached(before: Loads | None, after: Loads | None) -> int | None:
    """Prompt tokens the engine had to compute; only `/v1/loads` tells them apart."""
    if before is None or after is None or after.generation_tokens_total is not None:
        return None
    then, now = before.prefill_tokens_total, after.prefill_tokens_total
    return now - then if now is not None and then is not None else None
