"""A gateway on real sockets in front of small upstreams that behave well or badly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from opsctl.config.schema import GatewayConfig
from opsctl.serve.gateway import Gateway

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
DEADLINE = 10.0
STREAM = {"model": "m", "stream": True}
SSE = {"Content-Type": "text/event-stream"}


class Upstream:
    """A stand-in engine: one handler on a loopback port, and what it was asked."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.requests = 0
        self.cancelled = 0
        self.url = ""
        self._server: asyncio.Server | None = None
        self._web: web.Server | None = None

    async def start(self, port: int = 0) -> str:
        self._web = web.Server(self._count, handler_cancellation=True, access_log=None)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._web, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self.url

    async def _count(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests += 1
        try:
            return await self.handler(request)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def die(self) -> None:
        """Stop listening and reset every connection, as a killed process does."""
        assert self._server and self._web
        self._server.close()
        for connection in self._web.connections:
            if connection.transport:
                connection.transport.abort()
        self._web.pre_shutdown()
        await self._web.shutdown(0)


async def eventually(condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():
            await asyncio.sleep(0.005)
    assert condition(), what


class Desk:
    def __init__(self, gateway: Gateway, session: aiohttp.ClientSession) -> None:
        self.gateway = gateway
        self.session = session
        self.events: list[tuple[str, dict[str, object]]] = []
        self.upstreams: list[Upstream] = []

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self.gateway.address)

    async def upstream(self, handler: Handler) -> Upstream:
        upstream = Upstream(handler)
        await upstream.start()
        self.upstreams.append(upstream)
        return upstream

    async def open(self, handler: Handler) -> Upstream:
        upstream = await self.upstream(handler)
        self.gateway.open(upstream.url)
        return upstream

    async def post(self, body: object = None, path: str = "/v1/completions") -> tuple[int, bytes]:
        async with self.session.post(self.url + path, json=body or {}) as response:
            return response.status, await response.read()

    async def held(self, count: int = 1) -> None:
        await eventually(lambda: self.gateway.counters.held == count, f"{count} held")

    async def in_flight(self, count: int = 1) -> None:
        """Wait until requests are at the engine: counted here, and seen there too."""
        await eventually(
            lambda: (
                self.gateway.counters.in_flight == count and self.upstreams[-1].requests >= count
            ),
            f"{count} in flight",
        )


@asynccontextmanager
async def desk(api_key: str | None = None, **config: object) -> AsyncIterator[Desk]:
    events: list[tuple[str, dict[str, object]]] = []
    gateway = Gateway(
        GatewayConfig(**config),
        api_key=api_key,
        record=lambda event, **facts: events.append((event, facts)),
    )
    await gateway.start("127.0.0.1:0")
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(DEADLINE)) as session:
        built = Desk(gateway, session)
        built.events = events
        try:
            yield built
        finally:
            await gateway.stop()
            for upstream in built.upstreams:
                await upstream.die()


async def hello(request: web.BaseRequest) -> web.StreamResponse:
    return web.json_response({"hello": request.path})


def stream_of(count: int, *, cut_after: int | None = None, done: bool = True) -> Handler:
    """Stream `count` events; reset the connection after `cut_after` of them."""

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers=SSE)
        await response.prepare(request)
        for number in range(count):
            if number == cut_after:
                await asyncio.sleep(0.02)
                assert request.transport
                request.transport.abort()
                return response
            await response.write(b'data: {"n": %d}\n\n' % number)
            await asyncio.sleep(0)
        if done:
            await response.write(b"data: [DONE]\n\n")
        return response

    return handler


async def never(request: web.BaseRequest) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def raw(url: str, request: bytes, *, until: bytes = b"") -> bytes:
    """Send bytes as they are; return what comes back until the peer closes or `until` is seen."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    received = b""
    try:
        writer.write(request)
        async with asyncio.timeout(DEADLINE):
            while not (until and until in received):
                data = await reader.read(2**16)
                if not data:
                    break
                received += data
    finally:
        writer.close()
    return received
