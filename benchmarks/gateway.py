"""What the gateway costs, beside nginx and beside going direct, measured in one run.

    python benchmarks/gateway.py [-o table|json] [--streams 64] [--events 2000] [--requests 4000]

An upstream in a process of its own emits one event per stream and tick, as an engine does after
each decode step. CPU is utime + stime of the proxy's process, divided by events or requests; time
to first byte is taken on one kept-alive connection each, in turns. The run reports and judges, and
always exits 0: absolute figures mean nothing on a shared host, the ratios do.
"""

from __future__ import annotations

# ruff: noqa: D102, D103 - a script; its names say what they do
import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

import uvloop

from opsctl.config.schema import GatewayConfig
from opsctl.serve.gateway import Gateway

TICK = 0.004
EVENT = (
    b'data: {"id":"cmpl-1","object":"text_completion","created":1764000000,"choices":[{"index":0,'
    b'"text":" token","logprobs":null,"finish_reason":null,"matched_stop":null}],"model":"bench",'
    b'"usage":null}\n\n'
)
DONE = b"data: [DONE]\n\n"
SHORT = b'{"id":"cmpl-1","choices":[{"index":0,"text":" token","finish_reason":"length"}]}'
BODY = b'{"model":"bench","prompt":"' + b"word " * 100 + b'","stream":true}'
NGINX = """
daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log stderr error;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  keepalive_requests 1000000;
  upstream engine {{ server 127.0.0.1:{upstream}; keepalive 128; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 600s;
    }}
  }}
}}
"""


@dataclasses.dataclass(frozen=True)
class Figures:
    """CPU in microseconds, times in milliseconds; CPU is None where no proxy is in between."""

    cpu_per_event_us: float | None
    cpu_per_request_us: float | None
    first_byte_ms: float
    events_per_read: float


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Upstream(asyncio.Protocol):
    """The cheapest server that speaks enough HTTP/1.1: the path says what is wanted."""

    streams: dict[Upstream, int] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.data = b""

    def connection_lost(self, exc: Exception | None) -> None:
        self.streams.pop(self, None)

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, separator, rest = self.data.partition(b"\r\n\r\n")
        if not separator or len(rest) < len(BODY):
            return
        path = self.data.split(b" ", 2)[1]
        self.data = rest[len(BODY) :]
        if path.startswith(b"/short"):
            head = (
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            )
            self.transport.write(head % len(SHORT) + SHORT)
            return
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked"
        count = int(path.rpartition(b"/")[2])
        self.transport.write(head + b"\r\n\r\n" + chunk(EVENT))
        self.streams[self] = count - 1
        if count == 1:
            self.emit()

    def emit(self) -> None:
        left = self.streams[self]
        if left:
            self.transport.write(chunk(EVENT))
            self.streams[self] = left - 1
        else:
            del self.streams[self]
            self.transport.write(chunk(DONE) + b"0\r\n\r\n")


async def upstream_role() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Upstream, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    while True:
        await asyncio.sleep(TICK)
        for stream in list(Upstream.streams):
            stream.emit()


async def gateway_role(upstream: int) -> None:
    gateway = Gateway(GatewayConfig(), api_key=None, record=lambda *_, **__: None)
    await gateway.start("127.0.0.1:0")
    gateway.open(f"http://127.0.0.1:{upstream}")
    print(gateway.address[1], flush=True)
    await asyncio.Event().wait()


@contextlib.contextmanager
def role(*arguments: str) -> Iterator[tuple[int, int]]:
    """Run one of the roles above; yields its pid and port."""
    command = [sys.executable, __file__, "--role", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            yield process.pid, int(process.stdout.readline())
        finally:
            process.terminate()


@contextlib.contextmanager
def nginx(binary: str, upstream: int) -> Iterator[tuple[int, int]]:
    """Run nginx in the foreground on a free loopback port."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        configuration = Path(folder, "nginx.conf")
        configuration.write_text(NGINX.format(folder=folder, port=port, upstream=upstream))
        command = [binary, "-p", folder, "-c", str(configuration)]
        with subprocess.Popen(command) as process:
            try:
                wait_for_port(port)
                yield process.pid, port
            finally:
                process.terminate()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Client:
    """One kept-alive connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.reads = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def to(cls, port: int) -> AsyncIterator[Client]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
        try:
            yield cls(reader, writer)
        finally:
            writer.close()

    async def ask(self, path: str) -> float:
        """Send a request, read all of the answer; returns seconds to the first byte."""
        head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        self.writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
        started = time.perf_counter()
        tail = await self.reader.read(2**20)
        first = time.perf_counter() - started
        end = SHORT if path == "/short" else b"0\r\n\r\n"
        while not tail.endswith(end):
            data = await self.reader.read(2**20)
            if not data:
                raise RuntimeError("the connection ended early")
            self.reads += 1
            tail = (tail + data)[-len(end) - 16 :] if len(data) < len(end) else data
        return first


async def measure_streams(port: int, streams: int, events: int) -> float:
    """Run the streams; returns events per read, which is near 1 when nothing was coalesced."""
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client.to(port)) for _ in range(streams)]
        await asyncio.gather(*(client.ask(f"/stream/{events}") for client in clients))
        return streams * events / sum(client.reads for client in clients)


async def measure_requests(port: int, requests: int, parallel: int = 8) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for_each = [await stack.enter_async_context(Client.to(port)) for _ in range(parallel)]

        async def several(client: Client) -> None:
            for _ in range(requests // parallel):
                await client.ask("/short")

        await asyncio.gather(*(several(client) for client in for_each))


async def measure_first_byte(ports: dict[str, int], rounds: int) -> dict[str, float]:
    """Return median milliseconds; the candidates take turns, so that noise hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in ports}
    async with contextlib.AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(Client.to(port)) for name, port in ports.items()
        }
        for _ in range(rounds):
            for name, client in clients.items():
                times[name].append(await client.ask("/stream/1"))
    return {name: 1000 * statistics.median(taken) for name, taken in times.items()}


async def measure(
    proxies: dict[str, tuple[int | None, int]], options: argparse.Namespace
) -> dict[str, Figures]:
    first_byte = await measure_first_byte({n: port for n, (_, port) in proxies.items()}, 500)
    figures = {}
    for name, (pid, port) in proxies.items():
        await measure_streams(port, options.streams, 50)  # connections and code warm up
        before = cpu_seconds(pid) if pid else 0.0
        per_read = await measure_streams(port, options.streams, options.events)
        between = cpu_seconds(pid) if pid else 0.0
        await measure_requests(port, options.requests)
        after = cpu_seconds(pid) if pid else 0.0
        events = options.streams * options.events
        figures[name] = Figures(
            1e6 * (between - before) / events if pid else None,
            1e6 * (after - between) / options.requests if pid else None,
            first_byte[name],
            per_read,
        )
    return figures


def judge(figures: dict[str, Figures]) -> list[dict[str, object]]:
    ours, direct, other = figures["gateway"], figures["direct"], figures.get("nginx")
    added = ours.first_byte_ms - direct.first_byte_ms
    targets: list[dict[str, object]] = [
        {"target": "added time to first byte < 1 ms", "value": added, "met": added < 1}
    ]
    if other and other.cpu_per_event_us and ours.cpu_per_event_us:
        ratio = ours.cpu_per_event_us / other.cpu_per_event_us
        text = "CPU per streamed event <= 2.5x nginx"
        targets.append({"target": text, "value": ratio, "met": ratio <= 2.5})
    if other and other.cpu_per_request_us and ours.cpu_per_request_us:
        ratio = ours.cpu_per_request_us / other.cpu_per_request_us
        targets.append({"target": "CPU per short request, x nginx", "value": ratio, "met": None})
    return targets


def show(figures: dict[str, Figures], targets: list[dict[str, object]], skipped: str) -> None:
    print(f"{'':10}{'us/event':>10}{'us/request':>12}{'first byte ms':>15}{'events/read':>13}")
    for name, row in figures.items():
        cpu = [row.cpu_per_event_us, row.cpu_per_request_us]
        event, request = (f"{value:.2f}" if value else "-" for value in cpu)
        print(f"{name:10}{event:>10}{request:>12}{row.first_byte_ms:>15.3f}", end="")
        print(f"{row.events_per_read:>13.2f}")
    for target in targets:
        verdict = {True: "met", False: "not met", None: "no target"}[target["met"]]  # type: ignore[index]
        print(f"{target['target']}: {target['value']:.2f} ({verdict})")
    if skipped:
        print(skipped)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", dest="output", choices=["table", "json"], default="table")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--events", type=int, default=2000)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--role", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        name, *arguments = options.role
        run = upstream_role() if name == "upstream" else gateway_role(int(arguments[0]))
        uvloop.run(run)
        return
    binary = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    skipped = "" if binary else "nginx: skipped, not installed (Debian: apt install nginx-light)"
    with contextlib.ExitStack() as stack:
        _, upstream = stack.enter_context(role("upstream"))
        proxies: dict[str, tuple[int | None, int]] = {"direct": (None, upstream)}
        if binary:
            proxies["nginx"] = stack.enter_context(nginx(binary, upstream))
        proxies["gateway"] = stack.enter_context(role("gateway", str(upstream)))
        figures = uvloop.run(measure(proxies, options))
    targets = judge(figures)
    if options.output == "json":
        rows = {name: dataclasses.asdict(row) for name, row in figures.items()}
        document = {"schema": "opsctl/bench-gateway/1", "figures": rows, "targets": targets}
        print(json.dumps(document | ({"skipped": skipped} if skipped else {}), indent=2))
    else:
        show(figures, targets, skipped)


if __name__ == "__main__":
    main()
