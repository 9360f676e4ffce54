"""Sends requests: closed loop, where each stream sends its next when the last has ended.

Phases: *ramp*, until every stream has its first token and a second has passed; *window*, which is
what counts; *drain*, until the answers in flight have ended and their `usage` is known. Streams
that start together with answers of one length would also end together, in waves, so the first
answer of each is cut to another part of the length: from the first moment on the streams stand
everywhere between begin and end, as they do later.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace

import aiohttp

from opsctl.bench.cells import Taken
from opsctl.bench.traffic import Job, Outcome, stream_once
from opsctl.bench.window import Window

SETTLE = 1.0
"""Seconds between the last stream's first token and the window."""
RAMP_LIMIT = 900.0
"""Seconds until a window opens with whatever runs by then; the concurrency check tells the rest."""
DRAIN_LIMIT = 900.0

MakeJob = Callable[[int], Job]
"""Makes the request of this number."""


@dataclass(frozen=True)
class Extent:
    """How long the window is: `duration` seconds, or until `requests` have ended in it."""

    duration: float | None = 30.0
    requests: int | None = None
    settle: float = SETTLE
    ramp_limit: float = RAMP_LIMIT
    drain_limit: float = DRAIN_LIMIT

    def __str__(self) -> str:
        return f"{self.requests} requests" if self.requests else f"{self.duration:g} s"


class ClosedLoop:
    """Keeps `streams` requests in flight; the first one that fails ends it."""

    def __init__(
        self, session: aiohttp.ClientSession, make_job: MakeJob, streams: int, extent: Extent
    ) -> None:
        self._session = session
        self._make_job = make_job
        self._streams = streams
        self._extent = extent
        self._taken = Taken([])
        self._started: set[int] = set()
        self._all_started = asyncio.Event()
        self._over = asyncio.Event()
        self._enough = asyncio.Event()
        self._ended_inside: int | None = None
        self._number = 0

    async def run(
        self,
        watching: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
    ) -> Taken:
        """Ramp, window, drain. `watching` is entered for the window."""
        workers = [asyncio.create_task(self._work(stream)) for stream in range(self._streams)]
        try:
            await self._ramp()
            if not self._failed:
                await self._window(watching)
            self._over.set()
            await self._drain(workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return self._taken

    @property
    def _failed(self) -> bool:
        return any(not outcome.ok for outcome in self._taken.outcomes)

    async def _ramp(self) -> None:
        await _within(self._extent.ramp_limit, self._all_started.wait())
        if not self._failed:
            await _within(self._extent.settle, self._enough.wait())

    async def _window(self, watching: Callable[[], AbstractAsyncContextManager[object]]) -> None:
        opened = time.monotonic()
        self._ended_inside = 0
        async with watching():
            limit = self._extent.duration if self._extent.requests is None else RAMP_LIMIT
            await _within(limit, self._enough.wait())
            closed = time.monotonic()
        self._taken.window = Window(opened, closed)

    async def _drain(self, workers: Sequence[asyncio.Task[None]]) -> None:
        """Let answers end; not after a failure, nor when some were never even begun."""
        for worker in workers:
            if worker.done():
                worker.result()  # raises what it raised: a fault of ours
        if self._failed:
            return
        if len(self._started) < self._streams:
            begun = f"{len(self._started)} of {self._streams} streams"
            self._taken.stopped = f"{begun} had begun after {self._extent.ramp_limit:g} s"
            return
        _, late = await asyncio.wait(workers, timeout=self._extent.drain_limit)
        self._taken.drained = not (late or self._failed)
        if late:
            limit = self._extent.drain_limit
            self._taken.stopped = f"requests in flight did not end within {limit:g} s"

    async def _work(self, stream: int) -> None:
        try:
            await self._send_until_over(stream)
        except Exception:
            self._end()
            raise

    async def _send_until_over(self, stream: int) -> None:
        first = True
        while not self._over.is_set():
            job = self._make_job(self._number)
            self._number += 1
            if first:
                first = False
                part = -(-job.max_tokens * (stream + 1) // self._streams)
                job = replace(job, max_tokens=part)
            self._note(await stream_once(self._session, job, on_first=lambda: self._begin(stream)))

    def _begin(self, stream: int) -> None:
        self._started.add(stream)
        if len(self._started) == self._streams:
            self._all_started.set()

    def _end(self) -> None:
        for event in (self._over, self._all_started, self._enough):
            event.set()

    def _note(self, outcome: Outcome) -> None:
        self._taken.outcomes.append(outcome)
        if not outcome.ok:
            self._end()
        if self._ended_inside is not None:
            self._ended_inside += 1
            if self._extent.requests is not None and self._ended_inside >= self._extent.requests:
                self._enough.set()


async def _within(seconds: float | None, work: Awaitable[object]) -> bool:
    """Wait at most so long; whether it came to its end."""
    try:
        await asyncio.wait_for(work, seconds)
    except TimeoutError:
        return False
    return True
