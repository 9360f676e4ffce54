"""Open loop: requests are sent when a timetable says so, whether or not earlier ones have ended.

A closed loop waits for the slow server and so hides its queue. Here latency counts from the moment
a request was *due* (https://github.com/vllm-project/vllm/issues/54101), and what the client itself
was late is told beside it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import aiohttp

from opsctl.bench.cells import Taken
from opsctl.bench.traffic import Job, Outcome, stream_once
from opsctl.bench.window import Window
from opsctl.errors import UsageError


@dataclass(frozen=True)
class Arrival:
    """One request: seconds after the begin, and the most tokens it asks for (None: as others)."""

    at: float
    max_tokens: int | None = None


@dataclass(frozen=True)
class Timetable:
    """Arrivals in order of time."""

    name: str
    arrivals: tuple[Arrival, ...]

    @property
    def digest(self) -> str:
        """Of its content: runs by different timetables are not to be mixed."""
        return hashlib.sha256(repr(self.arrivals).encode()).hexdigest()[:16]


class MakeJob(Protocol):
    """Makes the request of this number."""

    def __call__(self, number: int, max_tokens: int | None = None) -> Job:
        """Make it; `max_tokens` None asks for as many as usual."""


def load(name: str) -> Timetable:
    """Read JSONL of `{"at": SECONDS, "max_tokens": N}`; raises UsageError."""
    try:
        lines = Path(name).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--arrivals {name}: {error}", hint="name a JSONL file") from error
    arrivals = [
        _arrival(name, number, line) for number, line in enumerate(lines, 1) if line.strip()
    ]
    if not arrivals:
        raise UsageError(f"--arrivals {name}: no arrivals in it")
    return Timetable(name, tuple(sorted(arrivals, key=lambda arrival: arrival.at)))


def _arrival(name: str, number: int, line: str) -> Arrival:
    try:
        data = json.loads(line)
    except ValueError:
        data = None
    match data:
        case {"at": int() | float() as at, **rest} if (
            at >= 0 and not isinstance(at, bool) and set(rest) <= {"max_tokens"}
        ):
            most = rest.get("max_tokens")
            if most is None or (isinstance(most, int) and most > 0):
                return Arrival(float(at), most)
    raise UsageError(
        f"--arrivals {name}:{number}: not an arrival",
        hint='a line is {"at": SECONDS} or {"at": SECONDS, "max_tokens": N}',
    )


class OpenLoop:
    """Sends each request at its time; the window lasts from the first arrival to the last."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        make_job: MakeJob,
        timetable: Timetable,
        drain_limit: float,
    ) -> None:
        self._session = session
        self._make_job = make_job
        self._timetable = timetable
        self._drain_limit = drain_limit
        self._outcomes: list[Outcome] = []
        self._delays: list[float] = []

    async def run(self, watching: Callable[[], AbstractAsyncContextManager[object]]) -> Taken:
        """Send them all; a failed request fails the cell, but the others are sent all the same."""
        opened = time.monotonic()
        tasks: list[asyncio.Task[None]] = []
        try:
            async with watching():
                for number, arrival in enumerate(self._timetable.arrivals):
                    due = opened + arrival.at
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                    tasks.append(asyncio.create_task(self._send(number, arrival, due)))
                closed = time.monotonic()
            _, late = await asyncio.wait(tasks, timeout=self._drain_limit)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return Taken(
            self._outcomes,
            Window(opened, closed),
            drained=not late,
            stopped=f"{len(late)} requests did not end in time" if late else "",
            delays=self._delays,
        )

    async def _send(self, number: int, arrival: Arrival, due: float) -> None:
        outcome = await stream_once(self._session, self._make_job(number, arrival.max_tokens))
        self._delays.append(max(0.0, outcome.begun - due))
        seconds = outcome.seconds + outcome.begun - due
        self._outcomes.append(replace(outcome, begun=due, seconds=seconds))
