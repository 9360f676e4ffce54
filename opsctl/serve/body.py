"""The body of a client's request: kept when small enough to be sent again, else streamed once."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable

from aiohttp.web import BaseRequest, RequestPayloadError

# aiohttp reads twice this from a client that nobody listens to before it stops reading.
CLIENT_BUFFER = 2**16
_SLICE = 2**17
_ONE_WRITE = 2**20
_STREAM = re.compile(rb'"stream"\s*:\s*true')
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class BodyError(Exception):
    """The client's body cannot be read (bad framing, or the client left in the middle)."""


class Body:
    """What the client sends after its headers."""

    def __init__(self, request: BaseRequest, *, keep: int) -> None:
        self._request = request
        self._keep = keep
        self._kept = b""
        self._complete = not request.body_exists
        self._started = False
        self._expected = request.headers.get("Expect", "").lower() == "100-continue"
        self.waiting = False
        """Whether the engine waits for the client to send more of it."""
        self.waiting_since: float | None = None
        """Loop time since which the client has been waited for, by whomever."""

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return len(self._kept)

    @property
    def expected_size(self) -> int:
        """Bytes of memory the body will take while it waits, as far as the headers tell."""
        declared = self._request.content_length or 0
        return declared if declared <= self._keep else 2 * CLIENT_BUFFER

    @property
    def repeatable(self) -> bool:
        """Whether the whole body is here, or none of it was passed on yet."""
        return self._complete or not self._started

    async def receive(self, grown: Callable[[int], None]) -> None:
        """Read the body into memory if it fits; call `grown` with its size as it arrives.

        A body that is declared too large is not read at all, so that the client waits too; one of
        unknown length is read until it turns out to be too large.
        """
        if self._complete or (self._request.content_length or 0) > self._keep:
            return
        self._invite()
        parts: list[bytes] = []
        size = 0
        while size <= self._keep:
            chunk = await self._next()
            if not chunk:
                self._complete = True
                break
            parts.append(chunk)
            size += len(chunk)
            grown(size)
        self._kept = parts[0] if len(parts) == 1 else b"".join(parts)

    def content(self) -> bytes | AsyncIterator[bytes] | None:
        """Return what the HTTP client is given to send: nothing, bytes, or a source of chunks."""
        if self._complete and len(self._kept) <= _ONE_WRITE:
            return self._kept or None
        return self._chunks()

    def wants_stream(self) -> bool:
        """Whether this is a JSON request that asks for a streamed answer."""
        if not self._complete or not _STREAM.search(self._kept):
            return False
        try:
            document = json.loads(self._kept)
        except (ValueError, RecursionError):
            return False
        return isinstance(document, dict) and document.get("stream") is True

    async def _chunks(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._kept), _SLICE):
            yield self._kept[start : start + _SLICE]
        if self._complete:
            return
        self._started = True
        self._invite()
        self._kept = b""
        while chunk := await self._awaited():
            yield chunk

    async def _awaited(self) -> bytes:
        self.waiting = True
        try:
            return await self._next()
        finally:
            self.waiting = False

    async def _next(self) -> bytes:
        self.waiting_since = asyncio.get_running_loop().time()
        try:
            return await self._request.content.readany()
        except (RequestPayloadError, OSError) as error:
            raise BodyError(type(error).__name__) from error
        finally:
            self.waiting_since = None

    def _invite(self) -> None:
        if self._expected and self._request.version >= (1, 1) and self._request.transport:
            self._request.transport.write(_CONTINUE)
        self._expected = False
