"""A server between a benchmark and a simulated engine that lies, jitters and caches as told."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

PREFIX = 20
"""Characters at the begin of the first message by which the cache knows a prompt."""


@dataclass
class Lies:
    """What is changed on the way. Each is one fault of an engine, a host or a client."""

    jitter: float = 0.0
    """Every event comes up to so many seconds late."""
    max_running: int | None = None
    """What `/v1/loads` says may run."""
    counted: float = 1.0
    """Factor on the counter of generated tokens."""
    shorten: int | None = None
    """Answers end after so many tokens, whatever was asked."""
    prefix_cache: bool = False
    """A prompt whose begin was seen before is answered at once, and said to be cached."""
    template: int = 0
    """So many tokens more stand before each prompt, and are in that cache from the second on."""
    no_usage: bool = False
    no_loads: bool = False
    fail_after: int | None = None
    """From this request on, status 500."""
    requests: int = 0
    seen: dict[str, int] = field(default_factory=dict)
    """Begins of prompts, and how many tokens each prompt has."""
    most_at_once: int = 0


@asynccontextmanager
async def lying(upstream: str, lies: Lies) -> AsyncIterator[str]:
    """Run it before `upstream`; yields its URL."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        app = web.Application(client_max_size=2**26)
        proxy = _Proxy(upstream, lies, session)
        app.router.add_post("/v1/chat/completions", proxy.chat)
        app.router.add_route("*", "/{path:.*}", proxy.other)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            host, port = runner.addresses[0][:2]
            yield f"http://{host}:{port}"
        finally:
            await runner.cleanup()


class _Proxy:
    def __init__(self, upstream: str, lies: Lies, session: aiohttp.ClientSession) -> None:
        self._upstream = upstream
        self._lies = lies
        self._session = session
        self._now = 0

    async def other(self, http: web.Request) -> web.Response:
        if self._lies.no_loads and http.path == "/v1/loads":
            return web.Response(status=503)
        async with self._session.request(
            http.method, self._upstream + str(http.rel_url), data=await http.read()
        ) as answer:
            body = await answer.read()
            if http.path == "/v1/loads":
                body = self._loads(body)
            elif http.path == "/metrics":
                body = self._metrics(body.decode()).encode()
            kind = answer.content_type
            return web.Response(status=answer.status, body=body, content_type=kind)

    async def chat(self, http: web.Request) -> web.StreamResponse:
        lies = self._lies
        lies.requests += 1
        if lies.fail_after is not None and lies.requests > lies.fail_after:
            return web.Response(status=500, text="out of luck")
        body = json.loads(await http.read())
        begin = str(body["messages"][0]["content"])[:PREFIX]
        cached = lies.prefix_cache and begin in lies.seen
        if lies.shorten is not None:
            body["max_tokens"] = min(body["max_tokens"], lies.shorten)
        if cached:
            body["messages"] = [{"role": "user", "content": "cached"}]
        self._now += 1
        lies.most_at_once = max(lies.most_at_once, self._now)
        try:
            return await self._stream(http, body, begin, cached)
        finally:
            self._now -= 1

    async def _stream(
        self, http: web.Request, body: Any, begin: str, cached: bool
    ) -> web.StreamResponse:
        url = f"{self._upstream}/v1/chat/completions"
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        async with self._session.post(url, json=body) as answer:
            await response.prepare(http)
            async for line in _late(answer.content, self._lies.jitter):
                await response.write(self._event(line, begin, cached))
        await response.write_eof()
        return response

    def _event(self, line: bytes, begin: str, cached: bool) -> bytes:
        if b'"usage"' not in line:
            return line
        if self._lies.no_usage:
            return b""
        if not self._lies.prefix_cache:
            return line
        event = json.loads(line[6:])
        usage, template = event["usage"], self._lies.template
        tokens = self._lies.seen.setdefault(begin, usage["prompt_tokens"] + template)
        usage["prompt_tokens"] = tokens
        usage["prompt_tokens_details"] = {"cached_tokens": tokens - 1 if cached else template}
        return b"data: " + json.dumps(event).encode() + b"\n"

    def _loads(self, body: bytes) -> bytes:
        data = json.loads(body)
        for rank in data.get("loads", []):
            if self._lies.max_running is not None:
                rank["max_running_requests"] = self._lies.max_running
        return json.dumps(data).encode()

    def _metrics(self, text: str) -> str:
        def changed(line: str) -> str:
            if not line.startswith("sglang:generation_tokens_total{"):
                return line
            name, _, value = line.rpartition(" ")
            return f"{name} {float(value) * self._lies.counted}"

        return "\n".join(map(changed, text.splitlines())) + "\n"


async def _late(
    lines: aiohttp.StreamReader,
    jitter: float,
    uniform: Callable[[float, float], float] = random.uniform,
) -> AsyncIterator[bytes]:
    """The lines, each up to `jitter` seconds late and never before the one before it.

    The delays do not add up: a line that comes meanwhile is already on its way.
    """
    if not jitter:
        async for line in lines:
            yield line
        return
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue()

    async def read() -> None:
        async for line in lines:
            queue.put_nowait((loop.time() + uniform(0.0, jitter), line))
        queue.put_nowait((0.0, None))

    reading = asyncio.create_task(read())
    try:
        while True:
            due, line = await queue.get()
            if line is None:
                return
            await asyncio.sleep(max(0.0, due - loop.time()))
            yield line
    finally:
        reading.cancel()
