"""Requests in flight, between the HTTP handlers and the child processes."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from opsctl.engine.simulated.core import Job
from opsctl.engine.simulated.faults import Faults
from opsctl.engine.simulated.flags import Options
from opsctl.engine.simulated.metrics import Metrics


@dataclass(frozen=True)
class Piece:
    """Some tokens of an answer, as they come from the detokenizer."""

    text: str
    count: int
    finish: str | None
    steps: int


@dataclass
class Request:
    """One request in flight."""

    job: Job
    stream: bool
    began: float = field(default_factory=time.monotonic)
    pieces: asyncio.Queue[Piece] = field(default_factory=asyncio.Queue)
    tokens: int = 0
    last: float | None = None


class Manager:
    """What SGLang calls the tokenizer manager: it knows every request that is not finished."""

    def __init__(self, options: Options, metrics: Metrics, faults: Faults) -> None:
        self.options = options
        self.metrics = metrics
        self.faults = faults
        self.requests: dict[str, Request] = {}
        self.status = "starting"
        self.draining = False
        self.last_output = 0.0
        self.stage = asyncio.Event()
        self.ready = asyncio.Event()
        self.loaded: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.going = asyncio.Event()
        self.going.set()
        self.answered = 0
        self.on_answered: Callable[[int], None] = lambda _: None
        self._numbers = itertools.count(1)
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._control: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def paused(self) -> bool:
        """Whether generation is paused."""
        return not self.going.is_set()

    async def connect(self, control: socket.socket, tokens: socket.socket) -> None:
        """Start listening to the children."""
        reader, self._control = await asyncio.open_connection(sock=control, limit=2**24)
        self._tasks.append(asyncio.create_task(self._listen(reader)))
        reader, writer = await asyncio.open_connection(sock=tokens, limit=2**24)
        self._tasks.append(asyncio.create_task(self._collect(reader, writer)))

    async def close(self) -> None:
        """Stop listening."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._control is not None:
            self._control.close()

    def tell(self, *message: Any) -> None:
        """Send a message to the scheduler. It is kept in memory while the scheduler is stopped."""
        if self._control is not None and not self._control.is_closing():
            self._control.write(json.dumps(message).encode() + b"\n")

    def load_ended(self, code: int) -> None:
        """Note that loading is over: 0, or the exit code it failed with."""
        if not self.loaded.done():
            self.loaded.set_result(code)

    async def ask(self) -> dict[str, Any]:
        """Return the scheduler's state; waits for ever when the scheduler hangs, as SGLang does."""
        number = next(self._numbers)
        self._replies[number] = asyncio.get_running_loop().create_future()
        self.tell("ask", number)
        try:
            return await self._replies[number]
        finally:
            self._replies.pop(number, None)

    async def submit(self, job: Job, *, stream: bool) -> Request:
        """Hand a request to the scheduler; waits while generation is paused."""
        await self.going.wait()
        request = Request(job, stream)
        self.requests[job.rid] = request
        self.tell("new", *asdict(job).values())
        return request

    def drop(self, request: Request) -> None:
        """Forget a request, aborting it if it has not finished."""
        if self.requests.pop(request.job.rid, None) is not None:
            self.metrics.aborted()
            self.tell("abort", request.job.rid)

    def abort(self, rid: str | None) -> None:
        """Abort one request, or all; they end with finish reason `abort` once the scheduler says
        so."""
        for known in list(self.requests) if rid is None else [rid]:
            if known in self.requests:
                self.metrics.aborted()
            self.tell("abort", known)

    def end_all(self, finish: str) -> None:
        """End every request here and now with `finish`, as a crashing scheduler makes SGLang do."""
        for request in list(self.requests.values()):
            self.tell("abort", request.job.rid)
            self._deliver(request, Piece("", 0, finish, 0))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            kind, *rest = json.loads(line)
            if kind == "distributed":
                self.stage.set()
            elif kind == "ready":
                self.ready.set()
            elif kind == "failed":
                self.load_ended(rest[0])
            elif kind == "reply" and (waiting := self._replies.get(rest[0])):
                waiting.set_result(rest[1])

    async def _collect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                self.last_output = time.monotonic()
                for rid, text, count, finish, steps in json.loads(line):
                    if (request := self.requests.get(rid)) is not None:
                        self._deliver(request, Piece(text, count, finish, steps))
        finally:
            writer.close()

    def _deliver(self, request: Request, piece: Piece) -> None:
        now = time.monotonic()
        if piece.count:
            if request.last is None:
                self.metrics.first_token(now - request.began, request.stream)
                self.answered += 1
                self.on_answered(self.answered)
            else:
                self.metrics.next_tokens(now - request.last, piece.count)
            request.last = now
            request.tokens += piece.count
        if piece.finish is not None:
            self.requests.pop(request.job.rid, None)
            self.metrics.finished(
                request.job.prompt_tokens, request.tokens, piece.steps, now - request.began,
                stream=request.stream,
            )  # fmt: skip
        request.pieces.put_nowait(piece)
