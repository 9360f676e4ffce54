"""The client against a small HTTP server that misbehaves on request."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from opsctl.engine.client import EngineClient, EngineUnhealthy, Readiness
from opsctl.system.ports import free_port

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Engine:
    """Answers by path; unknown paths are 404, as in an older engine."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        self.bodies: list[object] = []
        self.headers: list[str | None] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path_qs)
        self.headers.append(request.headers.get("Authorization"))
        if request.can_read_body:
            self.bodies.append(await request.json())
        answer = self.answers.get(request.path, 404)
        if callable(answer):
            return await answer(request)
        if isinstance(answer, int):
            return web.Response(status=answer)
        if isinstance(answer, str):
            return web.Response(text=answer)
        return web.json_response(answer)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    served = Engine()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", served.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    served.url = f"http://127.0.0.1:{port}"
    yield served
    await runner.cleanup()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def client(engine: Engine, clock: Clock) -> AsyncIterator[EngineClient]:
    asking = EngineClient(engine.url, timeout=0.5, clock=clock)
    yield asking
    await asking.close()


async def never(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(30)
    return web.Response()


async def cut(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "100"})
    await response.prepare(request)
    await response.write(b"{")
    assert request.transport is not None
    request.transport.abort()
    return response


async def flood(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(20):
        await response.write(b"[" * (1 << 20))
    return response


async def test_a_closed_port_is_refused() -> None:
    client = EngineClient(f"http://127.0.0.1:{free_port()}")
    try:
        assert await client.readiness() is Readiness.REFUSED
        assert await client.loads() is None
        assert await client.models() == ()
        assert await client.metrics_text() is None
        assert await client.server_info() is None
        with pytest.raises(EngineUnhealthy, match="no generation"):
            await client.generate_one(1)
        with pytest.raises(EngineUnhealthy, match="abort_request"):
            await client.abort_all()
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(200, Readiness.READY), (503, Readiness.STARTING), (500, Readiness.STARTING)],
)
async def test_ready_decides_where_it_exists(
    engine: Engine, client: EngineClient, answer: int, expected: Readiness
) -> None:
    engine.answers["/ready"] = answer
    assert await client.readiness() is expected
    assert engine.asked == ["/ready"]


@pytest.mark.parametrize("trouble", [never, cut])
async def test_a_port_that_does_not_answer_is_starting(
    engine: Engine, client: EngineClient, trouble: Handler
) -> None:
    engine.answers["/ready"] = trouble
    assert await client.readiness() is Readiness.STARTING


async def test_an_older_engine_is_ready_only_after_its_warm_up(
    engine: Engine, client: EngineClient, clock: Clock
) -> None:
    engine.answers |= {"/model_info": {"model_path": "m"}, "/health": 503}
    assert await client.readiness() is Readiness.STARTING
    engine.answers["/health"] = 200
    clock.now += 2.1
    assert await client.readiness() is Readiness.READY
    assert engine.asked.count("/ready") == 1  # asked once, known to be missing


async def test_health_is_never_polled_fast(
    engine: Engine, client: EngineClient, clock: Clock
) -> None:
    engine.answers |= {"/model_info": {"model_path": "m"}, "/health": 503}
    for _ in range(50):
        await client.readiness()
        clock.now += 0.1
    assert engine.asked.count("/health") == 3
    engine.answers["/health"] = 200
    clock.now += 2.1
    for _ in range(5):
        assert await client.readiness() is Readiness.READY
        clock.now += 10
    assert engine.asked.count("/health") == 4


async def test_models_are_names_only(engine: Engine, client: EngineClient) -> None:
    engine.answers["/v1/models"] = {"data": [{"id": "a"}, {"id": 3}, "x", {"id": "b"}]}
    assert await client.models() == ("a", "b")
    engine.answers["/v1/models"] = ["not", "an", "object"]
    assert await client.models() == ()


def completion(**changes: object) -> dict[str, object]:
    choice = {"index": 0, "text": " 4 5", "finish_reason": "length"}
    return {"choices": [choice | changes], "usage": {"completion_tokens": 4}}


async def test_one_short_generation_proves_an_engine(engine: Engine, client: EngineClient) -> None:
    engine.answers |= {"/v1/models": {"data": [{"id": "m"}]}, "/v1/completions": completion()}
    generated = await client.generate_one(1)
    assert (generated.tokens, generated.text, generated.finish_reason) == (4, " 4 5", "length")
    assert engine.bodies[-1] == {
        "model": "m",
        "prompt": "1 2 3",
        "max_tokens": 4,
        "temperature": 0,
    }


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (completion(finish_reason="abort"), "abort"),
        (completion(finish_reason=None), "None"),
        (completion() | {"usage": {"completion_tokens": 0}}, "no completion"),
        ({"choices": []}, "no completion"),
        ([1], "no completion"),
        ("not json", "JSONDecodeError"),
        pytest.param("[" * 100_000, "ValueError", id="nested"),
        (500, "status 500"),
        (503, "status 503"),
        (never, "no answer in time"),
        (cut, "no generation"),
        (flood, "ValueError"),
    ],
)
async def test_anything_else_is_unhealthy(
    engine: Engine, client: EngineClient, answer: object, why: str
) -> None:
    engine.answers["/v1/completions"] = answer
    with pytest.raises(EngineUnhealthy, match=why):
        await client.generate_one(1.0)


LOADS = {"loads": [{"num_running_reqs": 2, "num_waiting_reqs": 1}]}
METRICS = "sglang:num_running_reqs 5.0\nsglang:num_queue_reqs 6.0\n"


async def test_loads_come_from_the_cheap_endpoint(engine: Engine, client: EngineClient) -> None:
    engine.answers |= {"/v1/loads": LOADS, "/metrics": METRICS}
    loads = await client.loads()
    assert loads is not None
    assert (loads.running, loads.queued) == (2, 1)
    assert engine.asked == ["/v1/loads?include=core,spec"]


@pytest.mark.parametrize("status", [404, 500])
async def test_loads_fall_back_to_metrics(
    engine: Engine, client: EngineClient, status: int
) -> None:
    engine.answers |= {"/v1/loads": status, "/metrics": METRICS}
    loads = await client.loads()
    assert loads is not None
    assert (loads.running, loads.queued) == (5, 6)


@pytest.mark.parametrize(
    "trouble",
    [never, cut, flood, "not json", pytest.param("[" * 100_000, id="nested"), 401, {"loads": []}],
)
async def test_a_load_that_cannot_be_told_is_unknown(
    engine: Engine, client: EngineClient, trouble: object
) -> None:
    """Not the metrics either: their gauges keep the values of before the hang."""
    engine.answers |= {"/v1/loads": trouble, "/metrics": METRICS}
    assert await client.loads() is None


async def test_server_info_comes_without_secrets(engine: Engine, client: EngineClient) -> None:
    engine.answers["/server_info"] = {"api_key": "s3cret", "version": "0.5.23"}
    assert await client.server_info() == {"api_key": "***", "version": "0.5.23"}


async def test_an_older_name_of_server_info_works_too(engine: Engine, client: EngineClient) -> None:
    engine.answers["/get_server_info"] = {"version": "0.5.9"}
    assert await client.server_info() == {"version": "0.5.9"}


async def test_abort_ends_all_requests(engine: Engine, client: EngineClient) -> None:
    engine.answers["/abort_request"] = 200
    await client.abort_all()
    assert engine.bodies == [{"rid": "", "abort_all": True}]
    engine.answers["/abort_request"] = 401
    with pytest.raises(EngineUnhealthy, match="401"):
        await client.abort_all()


async def test_a_gate_is_opened_at_its_own_port(engine: Engine) -> None:
    engine.answers["/gate/activate"] = "OK"
    client = EngineClient("http://127.0.0.1:9")
    try:
        await client.activate_gate(int(engine.url.rpartition(":")[2]))
    finally:
        await client.close()
    assert engine.asked == ["/gate/activate"]


async def test_a_redirect_is_not_followed(engine: Engine, client: EngineClient) -> None:
    async def elsewhere(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/v1/models")

    engine.answers |= {"/ready": elsewhere, "/v1/models": {"data": []}}
    assert await client.readiness() is Readiness.STARTING
    assert engine.asked == ["/ready"]


async def test_an_api_key_is_sent_and_never_shown(engine: Engine) -> None:
    engine.answers["/v1/completions"] = 401
    client = EngineClient(engine.url, api_key="s3cret")
    try:
        with pytest.raises(EngineUnhealthy) as caught:
            await client.generate_one(1)
    finally:
        await client.close()
    assert engine.headers[-1] == "Bearer s3cret"
    assert "s3cret" not in str(caught.value)


async def test_a_socket_that_accepts_and_says_nothing_is_not_waited_for() -> None:
    """So looks an engine whose event loop is blocked after a child was killed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = EngineClient(f"http://127.0.0.1:{server.getsockname()[1]}", timeout=0.2)
        try:
            assert await client.readiness() is Readiness.STARTING
            assert await client.loads() is None
        finally:
            await client.close()
