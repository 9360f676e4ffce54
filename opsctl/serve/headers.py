"""Headers of a request and a response on their way through the gateway (RFC 9110, 7.6)."""

from __future__ import annotations

import re
from collections.abc import Iterable

RawHeaders = Iterable[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
# These frame or route the message; a client that lists one as hop-by-hop cannot make it vanish.
_ESSENTIAL = frozenset({b"content-length", b"content-type", b"host", b"authorization"})
_TOKENS = re.compile(rb"[^,\s]+")


def end_to_end(
    headers: RawHeaders, *, drop: frozenset[bytes] = frozenset()
) -> list[tuple[bytes, bytes]]:
    """Return the headers that travel on, in order and byte for byte.

    Left out are the hop-by-hop ones, `Proxy-*`, whatever `Connection` lists, and `drop`.
    """
    pairs = [(name.lower(), name, value) for name, value in headers]
    listed = {
        token.lower()
        for lower, _, value in pairs
        if lower == b"connection"
        for token in _TOKENS.findall(value)
    }
    gone = _HOP_BY_HOP | (listed - _ESSENTIAL) | drop
    return [
        (name, value)
        for lower, name, value in pairs
        if lower not in gone and not lower.startswith(b"proxy-")
    ]


def forwarded(
    headers: list[tuple[bytes, bytes]], *, peer: str | None, scheme: str
) -> list[tuple[bytes, bytes]]:
    """Append the client to `X-Forwarded-For`; set `X-Forwarded-Proto` where no proxy has."""
    before = [value for name, value in headers if name.lower() == b"x-forwarded-for"]
    rest = [pair for pair in headers if pair[0].lower() != b"x-forwarded-for"]
    chain = b", ".join([*before, (peer or "unknown").encode()])
    rest.append((b"X-Forwarded-For", chain))
    if not any(name.lower() == b"x-forwarded-proto" for name, _ in rest):
        rest.append((b"X-Forwarded-Proto", scheme.encode()))
    return rest


def is_event_stream(content_type: bytes | str) -> bool:
    """Whether a Content-Type names server-sent events."""
    text = content_type.decode("latin-1") if isinstance(content_type, bytes) else content_type
    return text.split(";", 1)[0].strip().lower() == "text/event-stream"
