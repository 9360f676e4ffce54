"""What the gateway answers itself: /healthz, /readyz, /metrics, and whether a key fits."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from aiohttp.web import BaseRequest

from opsctl.serve import exposition
from opsctl.serve.gate import Gate
from opsctl.serve.traffic import GatewayCounters, Traffic

_METRICS_TIMEOUT = 5.0
_JSON = b"application/json"
Page = tuple[int, bytes, bytes]


class Key:
    """The key clients must send; opens to everybody when none is set. Never shows itself."""

    def __init__(self, key: str | None) -> None:
        self._key = key.encode() if key else None

    @property
    def dropped_headers(self) -> frozenset[bytes]:
        """Headers that stay here: the key is the gateway's, not the engine's."""
        return frozenset({b"authorization"}) if self._key else frozenset()

    def opens(self, request: BaseRequest) -> bool:
        """Whether the request may pass; takes the same time for every wrong key."""
        if self._key is None:
            return True
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        given = token.strip().encode("utf-8", "surrogateescape")
        return hmac.compare_digest(given, self._key) and scheme.lower() == "bearer"


class Shown(Protocol):
    """The parts of a gateway that its own pages show."""

    metrics_source: Callable[[], Awaitable[str | None]] | None
    status_source: Callable[[], Mapping[str, object]] | None

    @property
    def gate(self) -> Gate: ...  # noqa: D102
    @property
    def traffic(self) -> Traffic: ...  # noqa: D102
    @property
    def counters(self) -> GatewayCounters: ...  # noqa: D102


async def healthz(gateway: Shown) -> Page:
    """Answer 200: the gateway lives."""
    return 200, _JSON, b'{"status": "ok"}\n'


async def readyz(gateway: Shown) -> Page:
    """Answer 200 when a request would be served now, else 503 with the reason."""
    ready = gateway.gate.engine is not None
    facts: dict[str, object] = {"ready": ready}
    if not ready:
        facts |= {"reason": gateway.gate.reason, "held": gateway.gate.held}
    status = gateway.status_source() if gateway.status_source else {}
    facts |= {key: status[key] for key in ("state", "profile") if key in status}
    return 200 if ready else 503, _JSON, json.dumps(facts).encode() + b"\n"


async def metrics(gateway: Shown) -> Page:
    """Answer with opsctl's metrics and the engine's, without them when it does not answer."""
    engine = await _engine_text(gateway)
    status = gateway.status_source() if gateway.status_source else {}
    text = exposition.own_text(
        gateway.counters, gateway.traffic, status, engine_up=engine is not None
    )
    merged = exposition.merge(text, engine or "")
    return 200, exposition.CONTENT_TYPE.encode(), merged.encode()


async def _engine_text(gateway: Shown) -> str | None:
    if gateway.metrics_source is None:
        return None
    try:
        return await asyncio.wait_for(gateway.metrics_source(), _METRICS_TIMEOUT)
    except Exception:  # whatever the engine does, opsctl's own metrics are served
        return None


PAGES: Mapping[str, Callable[[Shown], Awaitable[Page]]] = {
    "/healthz": healthz,
    "/readyz": readyz,
    "/metrics": metrics,
}
