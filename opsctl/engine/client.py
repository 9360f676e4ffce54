"""HTTP of one engine: each call has its own deadline, and trouble on the wire is an answer.

Capabilities are found by asking, not by version numbers: `/ready` exists since SGLang 0.5.20,
`/v1/loads` without a scheduler round trip since 0.5.13.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import aiohttp

from opsctl.engine import loads as parse
from opsctl.engine.loads import Loads
from opsctl.engine.redact import without_secrets
from opsctl.errors import OpsctlError

__all__ = ["EngineClient", "EngineUnhealthy", "Generated", "Loads", "Readiness"]

_LIMIT = 8 << 20  # bytes of an answer that are read at most
_HEALTH_EVERY = 2.0
_TROUBLE = (aiohttp.ClientError, TimeoutError, OSError, ValueError)


class Readiness(enum.Enum):
    """What an engine's port says about serving."""

    REFUSED = "refused"
    """Nothing listens: still loading, or dead."""
    STARTING = "starting"
    """Listens but does not serve (warming up, draining, paused, or does not answer in time)."""
    READY = "ready"


class EngineUnhealthy(OpsctlError):  # noqa: N818 - a state of the engine, not a mistake
    """The engine answered wrongly or not at all where an answer proves that it works."""


@dataclass(frozen=True)
class Generated:
    """One short generation that worked; `seconds` from sending to the last byte."""

    text: str
    tokens: int
    finish_reason: str
    seconds: float


class EngineClient:
    """Asks the engine at `base_url`. `timeout` is the deadline of each call without its own."""

    def __init__(
        self,
        base_url: str,
        *,
        session: aiohttp.ClientSession | None = None,
        api_key: str | None = None,
        timeout: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = base_url.rstrip("/")
        self._session = session
        self._own_session = session is None
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = timeout
        self._clock = clock
        self._has_ready = True
        self._warm = False
        self._next_health = 0.0

    async def close(self) -> None:
        """Close the connections this client opened."""
        if self._own_session and self._session is not None:
            await self._session.close()
            self._session = None

    async def readiness(self) -> Readiness:
        """Whether the engine serves now.

        Engines without `/ready` (before 0.5.20) answer `/model_info` before their warm-up is
        over; until it is, `/health` is asked too, but seldom: when up it takes a second and
        generates a token.
        """
        try:
            if self._has_ready:
                status, _ = await self._request("GET", "/ready")
                if status != 404:
                    return Readiness.READY if status == 200 else Readiness.STARTING
                self._has_ready = False
            return await self._readiness_before_ready()
        except (aiohttp.ClientConnectorError, ConnectionRefusedError):
            return Readiness.REFUSED
        except _TROUBLE:
            return Readiness.STARTING

    async def models(self) -> tuple[str, ...]:
        """Names in `/v1/models`; empty when it does not answer."""
        data = await self._get_json("/v1/models")
        entries = data.get("data") if data else None
        if not isinstance(entries, list):
            return ()
        return tuple(
            entry["id"]
            for entry in entries
            if isinstance(entry, dict) and isinstance(entry.get("id"), str)
        )

    async def model_path(self) -> str | None:
        """The model an engine says it serves; None when nothing that answers like one is there."""
        data = await self._get_json("/model_info") or await self._get_json("/get_model_info")
        path = data.get("model_path") if data else None
        return path[:200] if isinstance(path, str) else None

    async def generate_one(self, timeout: float) -> Generated:  # noqa: ASYNC109
        """One short generation, to its end; raises EngineUnhealthy unless all of it is right."""
        models = await self.models()
        body = {
            "model": models[0] if models else "default",
            "prompt": "1 2 3",
            "max_tokens": 4,
            "temperature": 0,
        }
        begun = self._clock()
        try:
            status, content = await self._request("POST", "/v1/completions", body, timeout=timeout)
            answer = _parsed(content) if status == 200 else None
        except _TROUBLE as error:
            raise EngineUnhealthy(f"no generation: {_name(error)}") from error
        if status != 200:
            raise EngineUnhealthy(f"no generation: status {status}")
        return _generated(answer, self._clock() - begun)

    async def loads(self) -> Loads | None:
        """Load over all data-parallel ranks; None when it is unknown, which is not idle."""
        data: object = None
        with contextlib.suppress(*_TROUBLE):
            status, content = await self._request("GET", "/v1/loads?include=core,spec")
            if status == 200:
                data = _parsed(content)
            elif status not in (404, 500):  # 500: 0.5.9 beside a newer FastAPI
                return None
            else:
                text = await self.metrics_text()
                return parse.from_metrics(text) if text is not None else None
        return parse.from_json(data, now=time.time())

    async def metrics_text(self) -> str | None:
        """The engine's Prometheus exposition; None when there is none."""
        with contextlib.suppress(*_TROUBLE):
            status, content = await self._request("GET", "/metrics")
            return content.decode(errors="replace") if status == 200 else None
        return None

    async def server_info(self) -> Mapping[str, object] | None:
        """What the engine says about itself, without secrets; None when it does not answer."""
        data = await self._get_json("/server_info") or await self._get_json("/get_server_info")
        return None if data is None else without_secrets(data)

    async def abort_all(self) -> None:
        """End every request in the engine; raises EngineUnhealthy when it does not answer 200."""
        await self._post("/abort_request", {"rid": "", "abort_all": True})

    async def gate_waits(self, port: int) -> bool:
        """Whether an engine has come up to its `--gated-launch-port`."""
        host = self._url.rpartition(":")[0]
        try:
            status, _ = await self._request("GET", f"{host}:{port}/health")
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return False
        return status == 200

    async def activate_gate(self, port: int) -> None:
        """Let an engine that waits at `--gated-launch-port` go on; raises EngineUnhealthy."""
        host = self._url.rpartition(":")[0]
        await self._post(f"{host}:{port}/gate/activate", None)

    async def _readiness_before_ready(self) -> Readiness:
        status, _ = await self._request("GET", "/model_info")
        if status != 200 or self._warm:
            return Readiness.READY if status == 200 else Readiness.STARTING
        if self._clock() < self._next_health:
            return Readiness.STARTING
        self._next_health = self._clock() + _HEALTH_EVERY
        status, _ = await self._request("GET", "/health", timeout=25.0)
        self._warm = status == 200
        return Readiness.READY if self._warm else Readiness.STARTING

    async def _get_json(self, path: str) -> dict[str, object] | None:
        with contextlib.suppress(*_TROUBLE):
            status, content = await self._request("GET", path)
            data = _parsed(content) if status == 200 else None
            return data if isinstance(data, dict) else None
        return None

    async def _post(self, path: str, body: Mapping[str, object] | None) -> None:
        try:
            status, _ = await self._request("POST", path, body)
        except _TROUBLE as error:
            raise EngineUnhealthy(f"{path}: {_name(error)}") from error
        if status != 200:
            raise EngineUnhealthy(f"{path}: status {status}")

    async def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> tuple[int, bytes]:
        if self._session is None:
            self._session = aiohttp.ClientSession(trust_env=False)
        url = path if path.startswith("http") else self._url + path
        async with (
            asyncio.timeout(timeout or self._timeout),
            self._session.request(
                method, url, json=body, headers=self._headers, allow_redirects=False
            ) as response,
        ):
            content = await response.content.read(_LIMIT)
            while chunk := await response.content.read(_LIMIT):
                content += chunk
                if len(content) > _LIMIT:
                    raise ValueError("answer too large")
            return response.status, content


def _parsed(content: bytes) -> object:
    """JSON of an engine; raises ValueError, also for what is nested without end."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _generated(answer: object, seconds: float) -> Generated:
    """Check an OpenAI completion: a generation that was aborted also comes with status 200."""
    match answer:
        case {
            "choices": [{"text": str(text), "finish_reason": str(reason)}, *_],
            "usage": {"completion_tokens": int(tokens)},
        } if reason in ("stop", "length") and tokens > 0:
            return Generated(text, tokens, reason, seconds)
        case {"choices": [{"finish_reason": reason}, *_]} if reason not in ("stop", "length"):
            raise EngineUnhealthy(f"the generation ended with finish_reason {str(reason)[:40]!r}")
    raise EngineUnhealthy("the answer is no completion with tokens in it")


def _name(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return type(error).__name__
