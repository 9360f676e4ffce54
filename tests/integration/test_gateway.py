"""Nothing gets lost: holding, order, retry, and how an answer that breaks off ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from opsctl.config.schema import Hold
from opsctl.serve import exchange
from opsctl.serve.stalled import Unread
from tests.support.gateway import SSE, STREAM, desk, eventually, hello, never, raw, stream_of


async def test_passes_a_request_to_the_open_engine_and_its_answer_back() -> None:
    async with desk() as d:
        await d.open(hello)
        assert await d.post(path="/any/path") == (200, b'{"hello": "/any/path"}')
        assert d.gateway.counters.completed_total == 1


async def test_holds_requests_until_an_engine_serves_then_sends_every_one() -> None:
    async with desk() as d:
        waiting = [asyncio.create_task(d.post(path=f"/{number}")) for number in range(20)]
        await d.held(20)
        await d.open(hello)
        answers = await asyncio.gather(*waiting)
        assert answers == [(200, b'{"hello": "/%d"}' % number) for number in range(20)]


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


async def test_an_event_broken_off_in_the_middle_is_closed_before_the_error_event() -> None:
    async def half(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers=SSE)
        await response.prepare(request)
        await response.write(b'data: {"n": 0}\n\ndata: {"n"')
        await asyncio.Event().wait()
        return response

    async with desk() as d:
        await d.open(half)
        async with d.session.post(d.url, json=STREAM) as response:
            assert await response.content.readany() == b'data: {"n": 0}\n\ndata: {"n"'
            d.gateway.close("switch")
            assert d.gateway.cut("drain deadline") == 1
            rest = await response.content.read()
        assert rest.startswith(b"\n\ndata: ")
        assert "drain deadline" in json.loads(rest.removeprefix(b"\n\ndata: "))["error"]["message"]
        assert d.gateway.counters.cut_total == 1
        assert d.gateway.counters.in_flight == 0


async def test_a_stream_that_said_done_is_complete_even_if_the_engine_dies_then() -> None:
    async def done_then_death(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers=SSE)
        await response.prepare(request)
        await response.write(b"data: [DONE]\n\n")
        await asyncio.sleep(0.02)
        assert request.transport
        request.transport.abort()
        return response

    async with desk() as d:
        await d.open(done_then_death)
        assert await d.post(STREAM) == (200, b"data: [DONE]\n\n")
        assert d.gateway.counters.completed_total == 1


async def test_a_cut_sends_requests_without_an_answer_to_the_next_engine() -> None:
    async with desk() as d:
        await d.open(never)
        waiting = asyncio.create_task(d.post())
        await d.in_flight()
        assert d.gateway.cut("hang") == 0  # while the gate is still open
        await d.held()
        await d.open(hello)
        assert await waiting == (200, b'{"hello": "/v1/completions"}')
        assert d.gateway.counters.cut_total == 0


@pytest.mark.parametrize("framing", ["chunked", "length"])
async def test_an_answer_that_is_no_event_stream_ends_visibly_when_broken_off(framing: str) -> None:
    async def part(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        if framing == "length":
            response.content_length = 100
        await response.prepare(request)
        await response.write(b"{")
        await asyncio.sleep(0.02)
        assert request.transport
        request.transport.abort()
        return response

    async with desk() as d:
        await d.open(part)
        with pytest.raises(aiohttp.ClientError):
            await d.post()
        assert d.gateway.counters.failed_total == 1


async def test_a_connection_that_dies_before_the_first_body_byte_is_retried() -> None:
    async def headers_only(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers=SSE)
        await response.prepare(request)
        await asyncio.Event().wait()
        return response

    async with desk() as d:
        first = await d.open(headers_only)
        waiting = asyncio.create_task(d.post(STREAM))
        await eventually(lambda: first.requests == 1, "at the engine")
        d.gateway.close("crash")
        await first.die()
        await d.held()
        await d.open(stream_of(1))
        assert await waiting == (200, b'data: {"n": 0}\n\ndata: [DONE]\n\n')


async def test_a_stale_kept_alive_connection_is_replaced_by_a_new_one_at_once() -> None:
    served: set[int] = set()
    together = asyncio.Barrier(3)

    async def once(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport
        peer = request.transport.get_extra_info("peername")[1]
        if peer in served:
            request.transport.abort()
        served.add(peer)
        if len(served) <= 3:
            await together.wait()
        return await hello(request)

    async with desk() as d:
        engine = await d.open(once)
        await asyncio.gather(*(d.post() for _ in range(3)))  # three connections in the pool
        assert (await d.post())[0] == 200
        assert engine.requests == 3 + 2
        assert d.gateway.counters.retried_total == 0  # the same engine: not a retry on the next


async def test_a_request_that_kills_every_engine_ends_with_502_and_says_so() -> None:
    async with desk(attempts=2) as d:
        waiting = asyncio.create_task(d.post())
        for life in (1, 2):
            engine = await d.open(never)
            await eventually(lambda engine=engine: engine.requests == 1, "at the engine")
            d.gateway.close("crash")
            await engine.die()
            if life == 1:
                await d.held()
        status, body = await waiting
        error = json.loads(body)["error"]
        assert (status, error["code"]) == (502, "engine_failed")
        assert "2 engines" in error["message"]


async def test_an_engine_that_hangs_up_on_one_request_gives_502_without_spinning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchange, "_PAUSES", (0.0, 0.1, 0.2, 0.4))

    async def hang_up(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport
        request.transport.abort()
        return web.Response()

    async with desk() as d:
        engine = await d.open(hang_up)
        status, body = await d.post()
        assert (status, json.loads(body)["error"]["code"]) == (502, "engine_failed")
        assert engine.requests <= 4


async def test_a_refused_connection_waits_for_the_next_engine_without_spinning() -> None:
    async with desk() as d:
        engine = await d.upstream(hello)
        await engine.die()
        d.gateway.open(engine.url)
        waiting = asyncio.create_task(d.post())
        await d.held()
        await d.open(hello)
        assert (await waiting)[0] == 200


async def test_an_engine_that_answers_503_itself_is_passed_on() -> None:
    async def starting(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=503)

    async with desk() as d:
        await d.open(starting)
        assert await d.post() == (503, b"")


async def test_a_client_that_leaves_stops_the_engine_working_for_it() -> None:
    async with desk() as d:
        engine = await d.open(never)
        waiting = asyncio.create_task(d.post())
        await d.in_flight()
        waiting.cancel()
        await eventually(lambda: engine.cancelled == 1, "cancelled at the engine")
        await d.in_flight(0)
        assert d.gateway.counters.abandoned_total == 1
        async with asyncio.timeout(1):
            await d.gateway.idle()


async def test_a_client_that_leaves_while_held_frees_its_place() -> None:
    async with desk(hold=Hold(requests=1)) as d:
        waiting = asyncio.create_task(d.post({"prompt": "x" * 100}))
        await d.held()
        assert d.gateway.counters.held_bytes > 100
        waiting.cancel()
        await d.held(0)
        assert d.gateway.counters.held_bytes == 0


async def test_a_held_stream_gets_heartbeats_and_then_its_events() -> None:
    async with desk(heartbeat_after=0.05, heartbeat_every=0.02) as d:
        async with d.session.post(d.url, json=STREAM) as response:
            assert response.status == 200
            assert response.content_type == "text/event-stream"
            assert (await response.content.readany()).startswith(b": \n\n")
            await d.open(stream_of(2))
            body = await response.content.read()
        rest = body.replace(b": \n\n", b"")
        assert rest == b'data: {"n": 0}\n\ndata: {"n": 1}\n\ndata: [DONE]\n\n'


async def test_an_engines_error_after_heartbeats_becomes_an_error_event() -> None:
    async def bad(request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({"error": {"message": "too long", "code": 400}}, status=400)

    async with desk(heartbeat_after=0.05, heartbeat_every=0.02) as d:
        async with d.session.post(d.url, json=STREAM) as response:
            await response.content.readany()
            await d.open(bad)
            body = await response.content.read()
        event = json.loads(body.replace(b": \n\n", b"").removeprefix(b"data: "))
        assert event["error"]["message"] == "too long"
        assert b"[DONE]" not in body


async def test_a_held_request_that_wants_no_stream_gets_the_engines_own_status() -> None:
    async def teapot(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=418)

    async with desk(heartbeat_after=0.02, heartbeat_every=0.02) as d:
        nested = {"tools": [{"stream": True}]}
        waiting = asyncio.create_task(d.post(nested))
        await d.held()
        async with d.session.post(d.url, json=STREAM) as stream:
            await stream.content.readexactly(len(b": \n\n") * 3)  # so its time would have come too
            await d.open(teapot)
        assert (await waiting)[0] == 418


async def test_refusing_a_stream_with_heartbeats_ends_it_with_an_error_event() -> None:
    async with desk(heartbeat_after=0.05, heartbeat_every=0.02) as d:
        async with d.session.post(d.url, json=STREAM) as response:
            await response.content.readany()
            d.gateway.close("failed", admit=False)
            body = await response.content.read()
        assert b'"engine_unavailable"' in body
        assert b"[DONE]" not in body


async def test_idle_waits_for_the_last_request_at_the_engine() -> None:
    release = asyncio.Event()

    async def slow(request: web.BaseRequest) -> web.StreamResponse:
        await release.wait()
        return await hello(request)

    async with desk() as d:
        await d.open(slow)
        waiting = [asyncio.create_task(d.post()) for _ in range(3)]
        await d.in_flight(3)
        d.gateway.close("switch")
        idle = asyncio.create_task(d.gateway.idle())
        await asyncio.sleep(0)
        assert not idle.done()
        release.set()
        await asyncio.wait_for(idle, 5)
        assert d.gateway.counters.in_flight == 0
        await asyncio.gather(*waiting)


async def test_only_work_counts_as_progress() -> None:
    async with desk() as d:
        await d.open(hello)
        async with d.session.get(d.url + "/v1/loads") as response:
            await response.read()
        assert d.gateway.counters.last_progress is None
        await d.post()
        assert d.gateway.counters.last_progress is not None


async def test_stop_ends_streams_with_an_error_event_and_leaves_no_listener() -> None:
    async with desk() as d:
        await d.open(stream_of(10**9))
        async with d.session.post(d.url, json=STREAM) as response:
            await response.content.readany()
            address = d.gateway.address
            stopping = asyncio.create_task(d.gateway.stop())
            body = await response.content.read()
            await stopping
        assert b"opsctl stops" in body
        with pytest.raises(OSError):
            await asyncio.open_connection(*address)


async def test_a_body_that_ends_with_the_connection_is_reset_when_broken_off() -> None:
    async def part(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half")
        await asyncio.Event().wait()
        return response

    async with desk() as d:
        await d.open(part)
        reader, writer = await asyncio.open_connection(*d.gateway.address)
        writer.write(b"GET /x HTTP/1.0\r\n\r\n")
        await reader.readuntil(b"half")
        d.gateway.cut("hang")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


@pytest.mark.parametrize("how", ["drained", "killed"])
async def test_twenty_switches_under_fifty_clients_lose_nothing(how: str) -> None:
    """Drained: every stream is whole. Killed: requests are served again, streams say they broke."""
    stop = asyncio.Event()
    whole = broken = emitted = 0
    wanted = b"".join(b'data: {"n": %d}\n\n' % n for n in range(30)) + b"data: [DONE]\n\n"

    async def slowly(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal emitted
        response = web.StreamResponse(headers=SSE)
        await response.prepare(request)
        for number in range(30):
            await response.write(b'data: {"n": %d}\n\n' % number)
            emitted += 1
            await asyncio.sleep(0.001)
        await response.write(b"data: [DONE]\n\n")
        return response

    async with desk(attempts=1000) as d:

        async def client() -> None:
            nonlocal whole, broken
            while not stop.is_set():
                status, body = await d.post(STREAM)
                assert status == 200
                if body == wanted:
                    whole += 1
                else:
                    assert how == "killed"
                    assert b"[DONE]" not in body
                    assert b'"engine_error"' in body
                    broken += 1

        engine = await d.open(slowly)
        clients = [asyncio.create_task(client()) for _ in range(50)]
        for switch in range(20):
            # A different moment in the streams' lives each time.
            enough = emitted + 30 * 50 + 37 * switch
            await eventually(lambda enough=enough: emitted >= enough, "traffic flows")
            if how == "killed":
                await engine.die()
            d.gateway.close("switch")
            await asyncio.wait_for(d.gateway.idle(), 5)
            await engine.die()
            await d.held(50)
            engine = await d.open(slowly)
        stop.set()
        await asyncio.gather(*clients)
        counters = d.gateway.counters
        assert counters.completed_total == whole
        assert counters.failed_total == broken
        assert (broken > 0) == (how == "killed")
        assert counters.rejected_total == counters.abandoned_total == counters.in_flight == 0


async def test_a_fault_while_looking_for_stalled_clients_does_not_end_the_looking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look, faults = Unread.stalled, iter([RuntimeError("seen once")])

    def faulty(*arguments: Any) -> Any:
        for fault in faults:
            raise fault
        return look(*arguments)

    monkeypatch.setattr(Unread, "stalled", faulty)
    async with desk(client_timeout=1.0) as d:
        await d.open(hello)
        half = b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n{"
        with pytest.raises(ConnectionResetError):
            await raw(d.url, half)
        told = [(event, facts) for event, facts in d.events if event != "gateway_listening"]
    events = [event for event, _ in told]
    assert events == ["gate_opened", "internal_error", "clients_let_go"]
    assert "seen once" in str(told[1][1]["traceback"])
