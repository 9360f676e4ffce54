"""One client's request from its arrival to the last byte of its answer.

receive the body -> pass the gate -> try the engine -> done
                         ^                |
                         +-- no answer ---+      (at most `attempts` engines)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import ClientSession
from aiohttp.web import BaseRequest, StreamResponse
from multidict import CIMultiDict

from opsctl.config.schema import GatewayConfig
from opsctl.serve.body import Body, BodyError
from opsctl.serve.forward import (
    BadAnswerError,
    NoAnswerError,
    TruncatedError,
    forward,
    upstream_headers,
)
from opsctl.serve.gate import Engine, Refusal
from opsctl.serve.reply import Reply, error_body
from opsctl.serve.traffic import Traffic
from opsctl.serve.waiting import WaitingRoom

_PAUSES = (0.0, 0.2, 0.4, 0.8, 1.6, 2.0)
_LOOK_AGAIN = 0.2
_SENDS = 3
_NEVER = float("inf")


class RefusedError(Exception):
    """The request ends with an error of opsctl's own."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.code)
        self.refusal = refusal


class _EndedError(Exception):
    """The answer was ended before its end; the client has been told."""


@dataclass
class Floor:
    """What all requests of a gateway share."""

    config: GatewayConfig
    room: WaitingRoom
    record: Callable[..., None]
    reused: ClientSession
    fresh: ClientSession
    drop: frozenset[bytes] = frozenset()
    traffic: Traffic = field(default_factory=Traffic)
    in_flight: dict[int, Exchange] = field(default_factory=dict)
    receiving: set[Exchange] = field(default_factory=set)
    """Those whose bodies are read into memory."""
    backing_off: int = 0
    on_idle: Callable[[], None] = lambda: None


class Exchange:
    """A request, its body, its place at the gate and the reply to it."""

    def __init__(self, floor: Floor, request: BaseRequest, reply: Reply, *, patient: bool) -> None:
        self._floor = floor
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._arrived = self._loop.time()
        self._task = asyncio.current_task()
        self._body = Body(request, keep=floor.config.keep_body)
        self._reply = reply
        self._ticket = floor.room.gate.ticket(size=self._body.expected_size, patient=patient)
        self._works = request.method not in ("GET", "HEAD", "OPTIONS")
        self._cut: str | None = None
        self.sent_at = 0.0

    async def run(self) -> StreamResponse:
        """Serve the request to its end, however it ends."""
        outcome = "abandoned"
        try:
            await self._receive()
            await self._serve()
            outcome = "completed"
        except RefusedError as error:
            outcome = "failed" if error.refusal.status == 502 else "rejected"
            self._reply.refuse(error.refusal)
        except _EndedError:
            outcome = "failed"
        finally:
            self._account(outcome)
        return self._reply.sent

    @property
    def waits_for_client(self) -> bool:
        """Whether it is the client that has to go on, by sending its body or reading its answer."""
        return self._reply.waiting or self._body.waiting

    def sends_nothing(self, now: float, limit: float) -> bool:
        """Whether more of the body has been waited for, for `limit` seconds."""
        since = self._body.waiting_since
        return since is not None and now - since >= limit

    def let_go(self) -> None:
        """End it as when the client leaves."""
        self._reply.abort()
        if self._task is not None:
            self._task.cancel()

    def cut(self, reason: str) -> bool:
        """End the try in progress; True when part of an answer had reached the client."""
        if self._cut is not None or self._task is None:
            return False
        self._cut = reason
        self._task.cancel()
        return self._reply.answered_at is not None

    def _account(self, outcome: str) -> None:
        traffic, ticket = self._floor.traffic, self._ticket
        self._floor.room.gate.leave(ticket, self._loop.time())
        traffic.outcomes[outcome] += 1
        if ticket.waited:
            traffic.hold_seconds.observe(ticket.waited)
        if self._reply.answered_at is not None:
            traffic.first_byte_seconds.observe(self._reply.answered_at - self._arrived)

    async def _receive(self) -> None:
        answer = self._floor.room.gate.ask(self._ticket, self._arrived)
        if isinstance(answer, Refusal):
            raise RefusedError(answer)
        self._floor.receiving.add(self)
        try:
            await self._body.receive(self._grown)
        except BodyError as error:
            raise RefusedError(
                Refusal(400, "invalid_body", "The request's body could not be read.")
            ) from error
        finally:
            self._floor.receiving.discard(self)

    def _grown(self, size: int) -> None:
        if size <= self._ticket.size:
            return
        refusal = self._floor.room.gate.resize(self._ticket, size)
        if refusal:
            raise RefusedError(refusal)

    async def _serve(self) -> None:
        attempts = self._floor.config.attempts
        while True:
            engine = await self._admitted()
            failure = await self._on(engine)
            if failure is None:
                return
            self._floor.room.gate.fail(self._ticket, engine)
            if not self._body.repeatable:
                raise _bad_gateway("The engine died and the body was too large to be kept.")
            if self._ticket.failures >= attempts:
                raise _bad_gateway(f"{attempts} engines in a row gave no answer to this request.")
            self._floor.traffic.retried += 1
            self._floor.record("request_retried", why=failure.why, failures=self._ticket.failures)

    async def _admitted(self) -> Engine:
        config = self._floor.config
        first = config.heartbeat_every if self._reply.started else config.heartbeat_after
        beat = self._loop.time() + first
        while True:
            answer = await self._floor.room.answer(self._ticket, until=beat)
            if isinstance(answer, Engine):
                return answer
            if answer is not None:
                raise RefusedError(answer)
            if self._reply.started or self._body.wants_stream():
                self._reply.heartbeat()
                beat = self._loop.time() + config.heartbeat_every
            else:
                beat = _NEVER

    async def _on(self, engine: Engine) -> NoAnswerError | None:
        """Try one engine; again for a short while, because its end may not be known yet.

        A kept-alive connection may have been closed by the engine just when it was used, so the
        second try follows at once, on a new connection. After that the tries get rarer, until the
        engine answers, the gate moves on, or the pauses are used up. An engine that keeps
        accepting the request and keeps dropping it gets it `_SENDS` times at most.
        """
        sends, client, pauses = 0, self._floor.reused, list(_PAUSES)
        while True:
            failure = await self._try(engine, client)
            if failure is None:
                return None
            if not self._ticket.patient:
                raise RefusedError(
                    Refusal(503, "engine_unavailable", "The engine gave no answer.", 1.0)
                )
            sends, client = sends + failure.sent, self._floor.fresh
            pause, *pauses = [sum(pauses)] if sends >= _SENDS else pauses
            if not await self._stays(engine, pause):
                return failure
            if not pauses:
                if sends > 1:
                    raise _bad_gateway("The engine closes the connection without an answer.")
                return failure

    async def _stays(self, engine: Engine, seconds: float) -> bool:
        """Wait; False as soon as the same engine is not to be tried again."""
        until = self._loop.time() + seconds
        while self._cut is None and self._body.repeatable and self._current(engine):
            left = until - self._loop.time()
            if left <= 0:
                return True
            await self._back_off(min(left, _LOOK_AGAIN))
        return False

    def _current(self, engine: Engine) -> bool:
        return self._floor.room.gate.engine == engine

    async def _back_off(self, seconds: float) -> None:
        self._floor.backing_off += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._floor.backing_off -= 1

    async def _try(self, engine: Engine, client: ClientSession) -> NoAnswerError | None:
        floor = self._floor
        self._cut = None
        self.sent_at = self._loop.time()
        floor.in_flight[self._ticket.number] = self
        try:
            await forward(
                client,
                engine.url,
                self._request,
                self._body,
                self._reply,
                headers=self._headers(),
                progress=self._progress,
            )
        except NoAnswerError as failure:
            return failure
        except BadAnswerError as error:
            raise _bad_gateway("The engine's answer is not HTTP.") from error
        except TruncatedError as error:
            self._end("The engine died before the answer was complete.")
            raise _EndedError from error
        except asyncio.CancelledError as error:
            if not self._was_cut():
                raise
            if self._reply.answered_at is not None:
                self._end(f"The answer was cut: {self._cut}.")
                raise _EndedError from error
            return NoAnswerError(f"cut: {self._cut}", sent=True)
        finally:
            del floor.in_flight[self._ticket.number]
            if not floor.in_flight:
                floor.on_idle()
        return None

    def _was_cut(self) -> bool:
        """Whether the cancellation was `cut`'s alone; the client's departure cancels as well."""
        return self._cut is not None and self._task is not None and self._task.uncancel() == 0

    def _headers(self) -> CIMultiDict[str]:
        drop = self._floor.drop
        if self._reply.started:
            drop |= {b"accept-encoding"}  # the head that went out promised plain text
        return upstream_headers(self._request, drop=drop)

    def _progress(self) -> None:
        if self._works:
            self._floor.traffic.last_progress = self._loop.time()

    def _end(self, message: str) -> None:
        self._reply.fail(error_body(Refusal(502, "engine_error", message)))


def _bad_gateway(message: str) -> RefusedError:
    return RefusedError(Refusal(502, "engine_failed", message))
