"""Looks at the engine and at ourselves while a window is open."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self

from opsctl.bench.gpus import Reading
from opsctl.engine.loads import Loads

_LOADS_EVERY = 0.25
_TICK = 0.02
_ALLOWED = 0.005
"""Seconds a tick may come late: timers are not exact, and a turn of the loop takes its time."""
_LEAST_SAMPLES = 3
LEFT_OUT = 0.05
"""Share of the requests that the engine may have left out where its word is taken."""


@dataclass(frozen=True)
class Seen:
    """What was seen."""

    loads: tuple[Loads, ...]
    """What the engine said of itself; empty when it did not say so often enough."""
    accept_length: float | None
    cpu: float
    """Share of one core that this process used."""
    late: float
    """Share of the time in which our event loop was behind: blocked, stopped or starved."""

    @property
    def queued(self) -> float | None:
        """Mean of the requests in the engine's queue; None when it did not say."""
        return _mean([one.queued for one in self.loads]) if self.loads else None

    def ran(self, under_way: float) -> tuple[float, float] | None:
        """Mean of the requests that ran and its standard error; None when the engine did not say.

        SGLang's count lacks what it has just prefilled, for up to 15 decode steps, and who came to
        the queue since. `under_way` are the requests that it had. So what counts is when it spoke
        of (nearly) all of them. Where it never does (answers of a few steps, or a prefill every few
        steps), those it left out ran; but where others wait, each that was let in makes room for
        one to wait, so half of them did.
        """
        nearly = (1 - LEFT_OUT) * under_way
        whole = [one for one in self.loads if one.running + one.queued >= nearly]
        told = whole if len(whole) >= _LEAST_SAMPLES else self.loads
        if not told:
            return None
        running = [_ran(one, under_way) for one in told]
        return _mean(running), statistics.stdev(running) / math.sqrt(len(running))


async def _no_readings() -> tuple[Reading, ...]:
    return ()


class Watch:
    """To be entered when the window opens and left when it closes; `seen` tells afterwards."""

    def __init__(
        self,
        loads: Callable[[], Awaitable[Loads | None]],
        *,
        readings: Callable[[], Awaitable[tuple[Reading, ...]]] = _no_readings,
        every: float = _LOADS_EVERY,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        self.gpus: tuple[Reading, ...] = ()
        """What the GPUs said at the end, while the load was still there."""
        self._loads = loads
        self._readings = readings
        self._every = every
        self._clock = clock
        self._cpu = cpu
        self._samples: list[Loads] = []
        self._late = 0.0
        self._begun = self._cpu_begun = 0.0
        self._seconds = self._cpu_seconds = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._begun, self._cpu_begun = self._clock(), self._cpu()
        self._tasks = [asyncio.create_task(self._ask()), asyncio.create_task(self._tick())]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._seconds = self._clock() - self._begun
        self._cpu_seconds = self._cpu() - self._cpu_begun
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.gpus = await self._readings()

    @property
    def seen(self) -> Seen:
        """Means over the window."""
        seconds = max(self._seconds, 1e-9)
        enough = len(self._samples) >= _LEAST_SAMPLES
        lengths = [sample.accept_length for sample in self._samples if sample.accept_length]
        return Seen(
            loads=tuple(self._samples) if enough else (),
            accept_length=_mean(lengths) if lengths else None,
            cpu=self._cpu_seconds / seconds,
            late=min(1.0, self._late / seconds),
        )

    async def _ask(self) -> None:
        while True:
            loads = await self._loads()
            if loads is not None and not loads.stale:
                self._samples.append(loads)
            await asyncio.sleep(self._every)

    async def _tick(self) -> None:
        while True:
            begun = self._clock()
            await asyncio.sleep(_TICK)
            self._late += max(0.0, self._clock() - begun - _TICK - _ALLOWED)


def _ran(told: Loads, under_way: float) -> float:
    left_out = max(0.0, under_way - told.running - told.queued)
    return told.running + (left_out / 2 if told.queued else left_out)


def _mean(values: list[int] | list[float]) -> float:
    return sum(values) / len(values)
