"""What the client gets: the engine's bytes as they are, or opsctl's own errors and heartbeats.

The head is written by hand from the engine's raw header lines, because a header dictionary would
lose bytes that are not UTF-8 and add lines of its own. Body chunks go straight to the transport,
because this is the path every streamed token takes.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus

from aiohttp.abc import AbstractStreamWriter
from aiohttp.web import BaseRequest, StreamResponse

from opsctl.serve.gate import Refusal
from opsctl.serve.headers import is_event_stream

HEARTBEAT = b": \n\n"
_BOUNDARIES = (b"\n\n", b"\r\r", b"\r\n\r\n")
_DONE_LINES = tuple(b"data: [DONE]" + end for end in _BOUNDARIES)
_TAIL = 32
_ERROR_TYPES = {401: "invalid_request_error", 429: "rate_limit_error"}
_BODILESS = (204, 304)
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def error_body(refusal: Refusal) -> bytes:
    """Return the refusal in the shape OpenAI's clients expect."""
    kind = _ERROR_TYPES.get(refusal.status, "server_error")
    error = {"message": refusal.message, "type": kind, "code": refusal.code}
    return json.dumps({"error": error}).encode()


class TurnedAway(asyncio.Protocol):
    """A connection that gets an error and its end, whatever it asks."""

    def __init__(self, refusal: Refusal) -> None:
        self._refusal = refusal

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Answer at once: nothing of the client is waited for."""
        body = error_body(self._refusal)
        phrase = HTTPStatus(self._refusal.status).phrase.encode()
        head = b"HTTP/1.1 %d %s\r\n" % (self._refusal.status, phrase)
        head += b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
        head += b"Retry-After: %d\r\nConnection: close\r\n\r\n" % (self._refusal.retry_after or 1)
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - of a TCP server
        transport.write(head + body)
        transport.close()


class Sent(StreamResponse):
    """Tells aiohttp's server that the response was written and whether the connection lives on."""

    def __init__(self, *, alive: bool) -> None:
        super().__init__()
        self._alive = alive

    @property
    def keep_alive(self) -> bool:
        """Whether the connection serves another request after this one."""
        return self._alive

    async def prepare(self, request: BaseRequest) -> AbstractStreamWriter | None:
        """Do nothing: `Reply` has written the head."""
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing: `Reply` has written the end."""


class Reply:
    """One response on its way to the client; writes never block, `drain` waits for a slow one."""

    def __init__(self, request: BaseRequest) -> None:
        self._request = request
        self._protocol = request.protocol
        self._transport = request.transport
        self._chunked = False
        self._bodiless = request.method == "HEAD"
        self._alive = request.keep_alive
        self._tail = b""
        self.started = False
        self.answered_at: float | None = None
        self.event_stream = False
        self.finished = False
        self.waiting = False
        """Whether the client has to read before anything more is sent."""

    @property
    def sent(self) -> Sent:
        """What the handler returns to aiohttp's server."""
        return Sent(alive=self._alive and self.finished)

    @property
    def complete(self) -> bool:
        """Whether an event stream has said that it ends (`data: [DONE]`)."""
        return self.event_stream and self._tail.endswith(_DONE_LINES)

    @property
    def can_append(self) -> bool:
        """Whether an event of opsctl's own can follow what was sent."""
        return self.event_stream and (self._chunked or self._request.version < (1, 1))

    def start(self, status: int, reason: str | None, headers: list[tuple[bytes, bytes]]) -> bytes:
        """Decide the framing and return the head, so that it leaves together with the first chunk.

        Without a Content-Length the body is chunked; to an HTTP/1.0 client it ends with the
        connection.
        """
        self.started = True
        names = {name.lower(): value for name, value in headers}
        encoded = b"content-encoding" in names
        self.event_stream = not encoded and is_event_stream(names.get(b"content-type", b""))
        self._bodiless = self._bodiless or status in _BODILESS
        modern = self._request.version >= (1, 1)
        framed = self._bodiless or b"content-length" in names
        self._chunked = modern and not framed
        self._alive = self._alive and (modern or framed)
        lines = [b"HTTP/1.1 %d %s" % (status, (reason or "").encode("utf-8", "surrogateescape"))]
        lines += [name + b": " + value for name, value in headers]
        if self._chunked:
            lines.append(b"Transfer-Encoding: chunked")
        if not self._alive:
            lines.append(b"Connection: close")
        elif not modern:
            lines.append(b"Connection: keep-alive")
        return b"\r\n".join([*lines, b"", b""])

    def answered(self) -> None:
        """Note that the engine's first byte leaves now: from here on nothing is retried."""
        self.answered_at = asyncio.get_running_loop().time()

    def write(self, chunk: bytes, head: bytes = b"") -> None:
        """Send body bytes, after `head` when this is the first chunk."""
        if self._chunked:
            frame = b"%b%x\r\n%b\r\n" % (head, len(chunk), chunk)
        else:
            frame = head + chunk if head else chunk
        if self._transport is not None:
            self._transport.write(frame)
        if len(chunk) >= _TAIL:
            self._tail = chunk
        else:
            self._tail = (self._tail + chunk)[-_TAIL:]

    @property
    def slow(self) -> bool:
        """Whether the client has to read before more should be sent."""
        return self._protocol.writing_paused

    async def drain(self) -> None:
        """Wait until the client has read enough."""
        self.waiting = True
        try:
            # When the client leaves, the cancellation that follows says so; not the engine's fault.
            with suppress(ConnectionError):
                await self._request.writer.drain()
        finally:
            self.waiting = False

    def finish(self, head: bytes = b"") -> None:
        """End the response properly; `head` when there was no body at all."""
        self.finished = True
        end = b"0\r\n\r\n" if self._chunked else b""
        if self._transport is not None and (head or end):
            self._transport.write(head + end)

    def heartbeat(self) -> None:
        """Send an SSE comment, after the head of an event stream when nothing was sent yet."""
        head = b""
        if not self.started:
            headers = [(b"Content-Type", b"text/event-stream; charset=utf-8")]
            head = self.start(200, "OK", [*headers, (b"Cache-Control", b"no-cache")])
        self.write(HEARTBEAT, head)

    def refuse(self, refusal: Refusal) -> None:
        """Answer with an error of opsctl's own, as a response or as the last event of a stream."""
        body = error_body(refusal)
        if self.started:
            self.fail(body)
            return
        extra = []
        if refusal.retry_after is not None:
            extra.append((b"Retry-After", b"%d" % max(1, round(refusal.retry_after))))
        if refusal.status == 401:
            extra.append((b"WWW-Authenticate", b"Bearer"))
        self.answer(refusal.status, b"application/json", body, extra)

    def answer(
        self,
        status: int,
        content_type: bytes,
        body: bytes,
        extra: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """Send a whole response of opsctl's own."""
        headers = [(b"Content-Type", content_type), (b"Content-Length", b"%d" % len(body)), *extra]
        head = self.start(status, HTTPStatus(status).phrase, headers)
        self.finish(head if self._bodiless else head + body)

    def fail(self, body: bytes) -> None:
        """End what has begun so that nobody takes it for complete.

        An event stream gets one last event with the error and no `[DONE]`; anything else, where
        text added at the end would corrupt the content, gets its connection reset.
        """
        if not self.can_append:
            self.abort()
            return
        boundary = b"" if self._tail.endswith(_BOUNDARIES) or not self._tail else b"\n\n"
        line = body.replace(b"\r", b" ").replace(b"\n", b" ")
        self.write(boundary + b"data: " + line + b"\n\n")
        self.finish()

    def abort(self) -> None:
        """Reset the connection, so that the truncation is visible whatever the framing.

        Closing is not enough: to a client of HTTP/1.0 it would look like the end of the body.
        """
        self._alive = False
        if self._transport is None:
            return
        connection = self._transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._transport.abort()
