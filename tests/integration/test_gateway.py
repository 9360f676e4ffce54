"""The gateway on real sockets, in front of small upstreams that behave well or badly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from opsctl.config.schema import GatewayConfig, Hold
from opsctl.serve.gateway import Gateway

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
DEADLINE = 10.0
STREAM = {"model": "m", "stream": True}


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
        await eventually(lambda: self.gateway.counters.in_flight == count, f"{count} in flight")


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
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
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


async def test_passes_a_request_to_the_open_engine_and_its_answer_back() -> None:
    async with desk() as d:
        await d.open(hello)
        assert await d.post(path="/any/path") == (200, b'{"hello": "/any/path"}')
        assert d.gateway.counters.completed_total == 1


async def test_holds_requests_until_an_engine_serves_and_keeps_their_order() -> None:
    order: list[str] = []

    async def note(request: web.BaseRequest) -> web.StreamResponse:
        order.append(request.path)
        return await hello(request)

    async with desk() as d:
        waiting = []
        for number in range(20):
            waiting.append(asyncio.create_task(d.post(path=f"/{number}")))
            await d.held(number + 1)
        await d.open(note)
        assert [status for status, _ in await asyncio.gather(*waiting)] == [200] * 20
        assert order == [f"/{number}" for number in range(20)]


async def test_a_thousand_events_arrive_complete_and_in_order() -> None:
    async with desk() as d:
        await d.open(stream_of(1000))
        status, body = await d.post(STREAM)
        wanted = b"".join(b'data: {"n": %d}\n\n' % n for n in range(1000)) + b"data: [DONE]\n\n"
        assert (status, body) == (200, wanted)


async def test_closing_for_good_turns_held_and_new_requests_away_with_retry_after() -> None:
    async with desk() as d:
        waiting = asyncio.create_task(d.post())
        await d.held()
        d.gateway.close("draining", admit=False, retry_after=7)
        status, body = await waiting
        assert status == 503
        assert json.loads(body)["error"]["code"] == "engine_unavailable"
        async with d.session.post(d.url + "/v1/completions", json={}) as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "7")


async def test_an_engine_that_dies_before_answering_costs_the_client_nothing() -> None:
    async def never(request: web.BaseRequest) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with desk() as d:
        first = await d.open(never)
        waiting = asyncio.create_task(d.post())
        await d.in_flight()
        await first.die()
        d.gateway.close("crashed")
        await d.held()
        await d.open(hello)
        assert await waiting == (200, b'{"hello": "/v1/completions"}')
        assert d.gateway.counters.retried_total == 1


async def test_a_stream_cut_by_a_crash_ends_with_an_error_event_and_no_done() -> None:
    async with desk() as d:
        await d.open(stream_of(10, cut_after=5))
        status, body = await d.post(STREAM)
        events = body.split(b"\n\n")
        assert status == 200
        assert events[4] == b'data: {"n": 4}'
        assert json.loads(events[5].removeprefix(b"data: "))["error"]["code"] == "engine_error"
        assert b"[DONE]" not in body
        assert d.gateway.counters.failed_total == 1


async def test_hold_bounds_give_429_and_the_hold_time_503() -> None:
    async with desk(hold=Hold(requests=1, bytes=1000, time=0.3)) as d:
        waiting = asyncio.create_task(d.post())
        await d.held()
        async with d.session.post(d.url + "/v1/completions", json={}) as response:
            assert response.status == 429
            assert "Retry-After" in response.headers
            assert (await response.json())["error"]["code"] == "too_many_held"
        status, body = await waiting
        assert (status, json.loads(body)["error"]["code"]) == (503, "hold_timeout")


@pytest.mark.parametrize("path", ["/health", "/health_generate", "/ready", "/ping"])
async def test_the_engines_own_health_is_never_held(path: str) -> None:
    async with desk() as d, d.session.get(d.url + path) as response:
        assert response.status == 503
