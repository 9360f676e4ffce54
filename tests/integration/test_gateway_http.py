"""Everything passes through untouched: paths, headers, bodies, framing; and the own pages."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import random

import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from opsctl.config.schema import GatewayConfig, Hold
from opsctl.errors import PreconditionError, UsageError
from opsctl.serve.gateway import Gateway
from tests.support.gateway import desk, hello, raw, stream_of


class Recorder:
    """A raw upstream: keeps the bytes of each request, answers with fixed bytes."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**24)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        self.bodies.append(await self._body(reader, head.lower()))
        writer.write(self.answer)
        await writer.drain()
        writer.close()

    async def _body(self, reader: asyncio.StreamReader, head: bytes) -> bytes:
        if b"transfer-encoding: chunked" in head:
            body = b""
            while size := int(await reader.readline(), 16):
                body += await reader.readexactly(size)
                await reader.readline()
            return body
        length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return await reader.readexactly(int(length or 0))

    async def stop(self) -> None:
        if self._server:
            self._server.close()
            await self._server.wait_closed()


def lines(head: bytes, *gone: bytes) -> list[bytes]:
    return [line for line in head.strip().split(b"\r\n")[1:] if not line.lower().startswith(gone)]


@pytest.mark.parametrize("seed", range(8))
async def test_random_requests_and_answers_arrive_byte_for_byte(seed: int) -> None:
    chance = random.Random(seed)
    target = "/" + "".join(chance.choices("abz09/%2F~!$&'()*+,;=:@-._", k=30)).replace("%", "%41")
    target += chance.choice(["", "?", "?a=%zz&&b=1+2&", "?q=%2F%3f/?&x;y"])
    method = chance.choice(["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
    body = b"" if method == "GET" else chance.randbytes(chance.randrange(1, 100_000))
    names = [f"X-{chance.choice('aBcD')}{chance.choice('eFgH')}" for _ in range(10)]
    sent = [f"{name}: v {number}; =,\xe4".encode() for number, name in enumerate(names)]
    sent += [b"Content-Encoding: gzip", b"Accept-Encoding: br", b"Cookie: a=1", b"Cookie: b=2"]
    framing = [b"Content-Length: %d" % len(body)] if body else []
    host = b"Host: front.example:99"
    start = f"{method} {target} HTTP/1.1".encode()
    request = b"\r\n".join([start, host, *sent, *framing, b"", b""])
    reply = chance.randbytes(50_000)
    answer_lines = [f"X-{n}: \xe9 {n}".encode("latin-1") for n in "zYzX"]
    answer_lines += [b"set-cookie: a=1", b"Set-Cookie: b=2", b"Content-Encoding: br"]
    answer_lines += [b"Content-Length: %d" % len(reply)]
    answer = b"\r\n".join([b"HTTP/1.1 207 Odd  Reason", *answer_lines, b"", b""]) + reply

    upstream = Recorder(answer)
    async with desk() as d:
        d.gateway.open(await upstream.start())
        received = await raw(d.url, request + body, until=reply)
        await upstream.stop()
    head, _, got = received.partition(b"\r\n\r\n")
    assert upstream.heads[0].split(b"\r\n")[0] == start
    wanted = [host, *sent, *framing]
    assert sorted(lines(upstream.heads[0], b"x-forwarded")) == sorted(wanted)
    ours = [line for line in lines(upstream.heads[0]) if line.startswith(b"X-")]
    assert [line for line in ours if line in sent] == [line for line in sent if line in ours]
    assert upstream.bodies[0] == body
    assert head.split(b"\r\n")[0] == b"HTTP/1.1 207 Odd  Reason"
    assert lines(head) == answer_lines
    assert got == reply


async def test_hop_by_hop_headers_stay_on_their_hop_and_the_client_is_named() -> None:
    request = (
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, X-Mine\r\nX-Mine: 1\r\n"
        b"TE: trailers\r\n"
        b"Keep-Alive: 5\r\nProxy-Authorization: p\r\nProxy-Connection: p\r\nX-Stays: 1\r\n"
        b"X-Forwarded-For: 9.9.9.9\r\nX-Forwarded-Proto: https\r\n\r\n"
    )
    answer = (
        b"HTTP/1.1 200 OK\r\nConnection: close, X-Theirs\r\nX-Theirs: 1\r\n"
        b"Proxy-Authenticate: p\r\nTrailer: X\r\nX-Stays: 2\r\nContent-Length: 2\r\n\r\nok"
    )
    upstream = Recorder(answer)
    async with desk() as d:
        d.gateway.open(await upstream.start())
        received = await raw(d.url, request, until=b"ok")
        await upstream.stop()
    assert sorted(lines(upstream.heads[0])) == [
        b"Host: a",
        b"X-Forwarded-For: 9.9.9.9, 127.0.0.1",
        b"X-Forwarded-Proto: https",
        b"X-Stays: 1",
    ]
    head = received.partition(b"\r\n\r\n")[0]
    assert lines(head) == [b"X-Stays: 2", b"Content-Length: 2"]


@pytest.mark.parametrize(
    ("method", "answer", "wanted"),
    [
        (b"HEAD", b"200 OK\r\nContent-Length: 5\r\n\r\n", b"200 OK\r\nContent-Length: 5\r\n\r\n"),
        (b"GET", b"204 No Content\r\nX: 1\r\n\r\n", b"204 No Content\r\nX: 1\r\n\r\n"),
        (b"GET", b"304 Not Modified\r\nETag: e\r\n\r\n", b"304 Not Modified\r\nETag: e\r\n\r\n"),
    ],
)
async def test_answers_without_a_body_keep_the_connection_usable(
    method: bytes, answer: bytes, wanted: bytes
) -> None:
    upstream = Recorder(b"HTTP/1.1 " + answer)
    request = method + b" /a HTTP/1.1\r\nHost: a\r\n\r\n"
    async with desk() as d:
        d.gateway.open(await upstream.start())
        twice = b"HTTP/1.1 " + wanted + b"HTTP/1.1 " + wanted
        assert await raw(d.url, request + request, until=twice) == twice
        await upstream.stop()


async def test_a_header_value_that_is_not_utf8_arrives_as_text_not_mutilated() -> None:
    upstream = Recorder(b"HTTP/1.1 204 No Content\r\n\r\n")
    async with desk() as d:
        d.gateway.open(await upstream.start())
        await raw(d.url, b"GET / HTTP/1.1\r\nHost: a\r\nX-A: Gr\xfc\xdfe\r\n\r\n", until=b"204")
        await upstream.stop()
    assert "X-A: Grüße".encode() in upstream.heads[0]


async def test_an_http_1_0_client_gets_a_stream_that_ends_with_the_connection() -> None:
    async with desk() as d:
        await d.open(stream_of(2))
        received = await raw(d.url, b"GET / HTTP/1.0\r\n\r\n")
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert body == b'data: {"n": 0}\n\ndata: {"n": 1}\n\ndata: [DONE]\n\n'


async def test_the_client_is_invited_to_send_a_body_it_asks_about() -> None:
    async with desk() as d:
        await d.open(hello)
        host, port = d.gateway.address
        reader, writer = await asyncio.open_connection(host, port)
        head = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
        writer.write(head)
        async with asyncio.timeout(5):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"abc")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        writer.close()


async def echo_size(request: web.BaseRequest) -> web.StreamResponse:
    size = 0
    async for chunk in request.content.iter_any():
        size += len(chunk)
    return web.json_response({"size": size, "framing": request.headers.get("Content-Length")})


@pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_000])
@pytest.mark.parametrize("chunked", [False, True])
async def test_bodies_below_and_above_the_kept_size_arrive_whole(size: int, chunked: bool) -> None:
    async def parts():  # type: ignore[no-untyped-def]
        for start in range(0, size, 50_000):
            yield b"x" * min(50_000, size - start)

    async with desk(keep_body=100_000) as d:
        await d.open(echo_size)
        data = parts() if chunked else io.BytesIO(b"x" * size)
        async with d.session.post(d.url, data=data) as response:
            assert (await response.json())["size"] == size


async def test_a_large_body_waits_unread_with_its_client_and_is_not_sent_twice() -> None:
    size = 40_000_000
    sent = 0

    async def parts():  # type: ignore[no-untyped-def]
        nonlocal sent
        while sent < size:
            sent += 100_000
            yield b"x" * 100_000

    async with desk(keep_body=1000) as d:
        headers = {"Content-Length": str(size)}
        waiting = asyncio.create_task(d.session.post(d.url, data=parts(), headers=headers))
        await d.held()
        before = -1
        while before != sent:  # until the client is stopped by full buffers
            before = sent
            await asyncio.sleep(0.05)
        assert sent < size / 2
        assert d.gateway.counters.held_bytes == 2**17  # what is buffered, not what is declared

        async def die_inside(request: web.BaseRequest) -> web.StreamResponse:
            await request.content.readany()
            assert request.transport
            request.transport.abort()
            return web.Response()

        await d.open(die_inside)
        response = await waiting
        assert response.status == 502
        assert "too large to be kept" in (await response.json())["error"]["message"]


@pytest.mark.parametrize("end", ["client leaves", "gateway stops"])
async def test_a_slow_client_slows_the_engine_down_instead_of_filling_memory(end: str) -> None:
    sent = 0

    async def flood(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)
            sent += 65536

    async with desk() as d:
        await d.open(flood)
        reader, writer = await asyncio.open_connection(*d.gateway.address, limit=1024)
        writer.write(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readexactly(1)
        before = -1
        while before != sent:  # until everything in between is full
            before = sent
            await asyncio.sleep(0.1)
            assert sent < 64 * 2**20
        if end == "client leaves":
            writer.transport.abort()
            await d.in_flight(0)
            assert d.gateway.counters.abandoned_total == 1
        else:
            await asyncio.wait_for(d.gateway.stop(), 8)
            writer.transport.abort()


async def test_a_request_that_is_no_http_gets_400_and_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with desk() as d:
        await d.open(hello)
        with caplog.at_level(logging.DEBUG):
            assert (await raw(d.url, b"GARBAGE my-secret\r\n\r\n"))[8:13] == b" 400 "
            both = b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            assert (await raw(d.url, b"POST / HTTP/1.1\r\n" + both))[8:13] == b" 400 "
            huge = b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n"
            assert (await raw(d.url, huge))[8:13] == b" 400 "
        assert (await d.post())[0] == 200
    assert "my-secret" not in caplog.text


async def test_a_tunnel_is_refused_and_an_upgrade_is_declined() -> None:
    async with desk() as d:
        await d.open(echo_size)
        assert (
            await raw(d.url, b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", until=b"}")
        ).startswith(b"HTTP/1.1 405")
        upgrade = (
            b"POST / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
            b"Content-Length: 3\r\n\r\nabc"
        )
        assert b'"size": 3' in await raw(d.url, upgrade, until=b"}")


async def test_a_key_guards_everything_but_the_fronts_own_pages_and_stays_here() -> None:
    async with desk(api_key="s3cret-key") as d:
        seen: list[str | None] = []

        async def note(request: web.BaseRequest) -> web.StreamResponse:
            seen.append(request.headers.get("Authorization"))
            return web.Response()

        await d.open(note)
        for given in (
            None,
            "Bearer wrong",
            "Bearer ",
            "s3cret-key",
            "Basic s3cret-key",
            "Bearer \xe4",
        ):
            headers = {"Authorization": given} if given else {}
            async with d.session.post(d.url + "/v1/models", headers=headers) as response:
                assert response.status == 401, given
                assert (await response.json())["error"]["code"] == "invalid_api_key"
        for path in ("/healthz/../v1/models", "//healthz", "/healthz/"):
            assert (await raw(d.url, f"GET {path} HTTP/1.0\r\n\r\n".encode())).startswith(
                b"HTTP/1.1 401"
            )
        assert seen == []
        for scheme in ("Bearer", "bearer"):
            headers = {"Authorization": f"{scheme} s3cret-key"}
            async with d.session.post(d.url + "/v1/models", headers=headers) as response:
                assert response.status == 200
        assert seen == [None, None]
        for path in ("/healthz", "/readyz", "/metrics"):
            async with d.session.get(d.url + path) as response:
                assert response.status == 200
        assert "s3cret-key" not in repr(d.events)


async def test_a_body_of_unknown_length_is_counted_as_it_arrives_and_bounded() -> None:
    async def parts():  # type: ignore[no-untyped-def]
        for _ in range(100):
            yield b"x" * 1000

    async with desk(hold=Hold(bytes=50_000)) as d:
        async with d.session.post(d.url, data=parts()) as response:
            assert response.status == 429
        assert d.gateway.counters.held_bytes == 0


async def test_the_own_pages_answer_head_without_a_body() -> None:
    async with desk() as d:
        request = b"HEAD /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        received = await raw(d.url, request)
        assert received.startswith(b"HTTP/1.1 200 OK\r\n")
        assert received.endswith(b"\r\n\r\n")


async def test_without_a_key_the_clients_authorization_reaches_the_engine() -> None:
    async def show(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text=request.headers["Authorization"])

    async with desk() as d:
        await d.open(show)
        async with d.session.get(d.url + "/x", headers={"Authorization": "Bearer t"}) as response:
            assert await response.text() == "Bearer t"


async def test_readyz_says_whether_and_why_not_while_healthz_stays_200() -> None:
    async with desk() as d:
        d.gateway.status_source = lambda: {"state": "switching", "profile": "eagle3"}
        d.gateway.close("switch to baseline")
        async with d.session.get(d.url + "/readyz") as response:
            facts = await response.json()
            assert response.status == 503
            assert facts["reason"] == "switch to baseline"
            assert facts["state"] == "switching"
        async with d.session.get(d.url + "/healthz") as response:
            assert response.status == 200
        await d.open(hello)
        async with d.session.get(d.url + "/readyz?x=1") as response:
            assert (response.status, (await response.json())["ready"]) == (200, True)


ENGINE_METRICS = """# HELP sglang:num_running_reqs Running.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="a \\"b\\" } c"} 3.0
# TYPE opsctl_gateway_held gauge
opsctl_gateway_held 99
this line is no exposition
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="two"} 4.0
sglang:num_running_reqs{model_name="two"} 5.0
# TYPE sglang:e2e_seconds histogram
sglang:e2e_seconds_bucket{le="+Inf"} 2
sglang:e2e_seconds_sum 1.5
sglang:e2e_seconds_count NaN"""


async def test_metrics_are_opsctls_and_the_engines_in_one_valid_scrape() -> None:
    async def engine_text() -> str:
        return ENGINE_METRICS

    async with desk() as d:
        await d.open(hello)
        d.gateway.metrics_source = engine_text
        d.gateway.status_source = lambda: {"state": "ready", "switches_total": 3, "up": True}
        await d.post()
        async with d.session.get(d.url + "/metrics") as response:
            text = await response.text()
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    samples = {s.name + str(sorted(s.labels.items())): s.value for f in families for s in f.samples}
    assert samples["opsctl_gateway_requests_total[('outcome', 'completed')]"] == 1
    assert samples["opsctl_gateway_held[]"] == 0
    assert samples["opsctl_engine_metrics_up[]"] == 1
    assert samples["opsctl_state_info[('state', 'ready')]"] == 1
    assert samples["opsctl_switches_total[]"] == 3
    assert samples["opsctl_gateway_first_byte_seconds_count[]"] == 1
    assert samples["sglang:num_running_reqs[('model_name', 'two')]"] == 4
    assert samples["sglang:e2e_seconds_sum[]"] == 1.5


@pytest.mark.parametrize("how", ["none", "raises"])
async def test_metrics_are_served_when_the_engine_gives_none(how: str) -> None:
    async def engine_text() -> str | None:
        if how == "raises":
            raise RuntimeError
        return None

    async with desk() as d:
        d.gateway.metrics_source = engine_text
        async with d.session.get(d.url + "/metrics") as response:
            assert "opsctl_engine_metrics_up 0.0" in await response.text()


async def test_an_engine_that_answers_garbage_gives_502_not_a_broken_client() -> None:
    upstream = Recorder(b"this is not HTTP\r\n\r\n")
    async with desk() as d:
        d.gateway.open(await upstream.start())
        status, body = await d.post()
        await upstream.stop()
    assert (status, json.loads(body)["error"]["code"]) == (502, "engine_failed")


async def test_the_address_taken_by_another_is_said_plainly() -> None:
    async with desk() as d:
        second = Gateway(GatewayConfig(), api_key=None, record=lambda *_, **__: None)
        listen = "{}:{}".format(*d.gateway.address)
        with pytest.raises(PreconditionError, match="cannot listen on"):
            await second.start(listen)
        with pytest.raises(UsageError):
            await second.start("nonsense")
