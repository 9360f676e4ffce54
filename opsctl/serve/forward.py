"""One try to have one engine answer one request."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

from aiohttp import (
    ClientConnectorError,
    ClientError,
    ClientPayloadError,
    ClientResponse,
    ClientResponseError,
    ClientSession,
    ClientTimeout,
    ConnectionTimeoutError,
    DummyCookieJar,
    TCPConnector,
)
from aiohttp.web import BaseRequest
from multidict import CIMultiDict
from yarl import URL

from opsctl.serve.body import Body
from opsctl.serve.gate import Refusal
from opsctl.serve.headers import end_to_end, forwarded, is_event_stream
from opsctl.serve.reply import Reply, error_body

READ_BUFFER = 2**18
_CONNECT_TIMEOUT = 5.0
_IDLE_CONNECTION = 4.0
_ERROR_LIMIT = 2**16
_HANDLED = frozenset({b"expect"})
_AUTOMATIC = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")


class NoAnswerError(Exception):
    """No response byte reached the client, so the request may be tried again.

    `sent` says whether the engine had accepted the connection and may have seen the request.
    """

    def __init__(self, why: str, *, sent: bool) -> None:
        super().__init__(why)
        self.why = why
        self.sent = sent


class BadAnswerError(Exception):
    """What the engine answered is not HTTP; trying again would not make it so."""


class TruncatedError(Exception):
    """The engine's response ended early, after some of it had reached the client."""


def session(*, reuse: bool) -> ClientSession:
    """Return a client without limits of its own; `reuse` keeps connections open for the next."""
    # uvicorn, in SGLang, closes idle connections after 5 s: let go of them before it does.
    connector = (
        TCPConnector(limit=0, keepalive_timeout=_IDLE_CONNECTION)
        if reuse
        else TCPConnector(limit=0, force_close=True)
    )
    return ClientSession(
        connector=connector,
        timeout=ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT),
        cookie_jar=DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=_AUTOMATIC,
        read_bufsize=READ_BUFFER,
        max_line_size=2**16,
        max_field_size=2**16,
        trust_env=False,
    )


def target(engine_url: str, request: BaseRequest) -> URL:
    """Return the engine's URL for the request, with path and query exactly as the client sent."""
    path = request.raw_path
    if not path.startswith("/") and "://" in path:  # absolute form, as sent to a proxy
        path = "/" + path.partition("://")[2].partition("/")[2]
    if path.startswith("/"):
        url = URL(engine_url + path, encoded=True)
        if url.raw_path_qs == path:
            return url
    # yarl drops an empty query and a fragment, and knows no `OPTIONS *`: give this one URL object
    # the request line it is to produce.
    base = URL(engine_url)
    url = URL.build(scheme=base.scheme, host=base.host or "", port=base.port, path="/")
    url._cache["raw_path_qs"] = path
    return url


def upstream_headers(request: BaseRequest, *, drop: frozenset[bytes]) -> CIMultiDict[str]:
    """Return the headers the engine gets. The client's Host stays, so that redirects fit."""
    headers = end_to_end(request.raw_headers, drop=drop | _HANDLED)
    headers = forwarded(headers, peer=request.remote, scheme=request.scheme)
    return CIMultiDict((name.decode("latin-1"), _text(value)) for name, value in headers)


def _text(value: bytes) -> str:
    # The HTTP client writes UTF-8 and nothing else; it would drop bytes that are none.
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


async def forward(
    client: ClientSession,
    engine_url: str,
    request: BaseRequest,
    body: Body,
    reply: Reply,
    *,
    headers: CIMultiDict[str],
    progress: Callable[[], None],
) -> None:
    """Send the request to the engine and its answer to the client, up to the end.

    Raises:
        NoAnswerError: nothing of an answer reached the client.
        BadAnswerError: the answer is not HTTP.
        TruncatedError: the answer broke off.
    """
    try:
        response = await client.request(
            request.method,
            target(engine_url, request),
            data=body.content(),
            headers=headers,
            allow_redirects=False,
        )
    except (ClientConnectorError, ConnectionTimeoutError) as error:
        raise NoAnswerError("the engine does not accept connections", sent=False) from error
    except (ClientResponseError, ClientPayloadError) as error:
        raise BadAnswerError from error
    except (ClientError, OSError, TimeoutError) as error:
        raise NoAnswerError(_why(error), sent=True) from error
    try:
        await _relay(response, reply, progress)
    finally:
        if not response.closed:
            response.close()


async def _relay(response: ClientResponse, reply: Reply, progress: Callable[[], None]) -> None:
    # After heartbeats the client has a 200 and an event stream: only that can follow.
    late = reply.started
    if late and not (response.status == 200 and is_event_stream(response.content_type)):
        await _report(response, reply)
        return
    read, write = response.content.readany, reply.write
    try:
        chunk = await read()
        progress()
    except (ClientError, OSError) as error:
        raise NoAnswerError(_why(error), sent=True) from error
    head = b""
    if not late:
        headers = end_to_end(response.raw_headers)
        head = reply.start(response.status, response.reason, headers)
    reply.answered()
    if not chunk:
        reply.finish(head)
        return
    write(chunk, head)
    try:
        while True:
            if reply.slow:
                await reply.drain()
            chunk = await read()
            if not chunk:
                break
            progress()
            write(chunk)
    except (ClientError, OSError) as error:
        if not reply.complete:
            raise TruncatedError(_why(error)) from error
    reply.finish()


def _why(error: Exception) -> str:
    # Not its text: that may quote what was sent.
    return type(error).__name__


async def _report(response: ClientResponse, reply: Reply) -> None:
    """Pass an engine's error on as an SSE event, because the client already has a 200."""
    try:
        text = await response.content.read(_ERROR_LIMIT)
    except (ClientError, OSError) as error:
        raise NoAnswerError(_why(error), sent=True) from error
    with suppress(ValueError):
        text = _as_error(text)
    message = f"The engine answered {response.status}."
    reply.fail(text or error_body(Refusal(response.status, "engine_error", message)))


def _as_error(text: bytes) -> bytes:
    document = json.loads(text)
    return text if isinstance(document, dict) and "error" in document else b""
