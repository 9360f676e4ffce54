"""A running simulated engine for tests, and a guard that no process of it survives."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp


def free_port() -> int:
    """Return a port that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def eventually(
    condition: Callable[[], object], seconds: float = 10.0, what: str = "it"
) -> None:
    """Wait for a condition; fails when it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true in {seconds} s"
        await asyncio.sleep(0.02)


def living(nonce: str) -> dict[int, str]:
    """Return pid and title of every living process that carries the nonce in its environment."""
    mark = f"OPSCTL_NONCE={nonce}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with suppress(OSError):
            if mark not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX":
                title = (entry / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
                found[int(entry.name)] = title.decode()
    return found


@dataclass
class Stream:
    """What came over one stream."""

    status: int = 0
    texts: list[str] = field(default_factory=list)
    finish: str | None = None
    usage: dict[str, Any] | None = None
    done: bool = False
    broken: str = ""
    first: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def words(self) -> list[str]:
        """The answer, word by word."""
        return "".join(self.texts).split(" ") if self.texts else []

    def take(self, line: bytes) -> None:
        """Read one line of a chat or text stream."""
        if not line.startswith(b"data: "):
            return
        if line.strip() == b"data: [DONE]":
            self.done = True
            return
        event = json.loads(line[6:])
        self.usage = event.get("usage") or self.usage
        for choice in event["choices"]:
            text = choice["text"] if "text" in choice else choice["delta"].get("content", "")
            if text:
                self.texts.append(text)
                self.first.set()
            self.finish = choice["finish_reason"] or self.finish

    def assert_complete(self, tokens: int) -> None:
        """Fail unless every token came, in order, with usage and [DONE] behind them."""
        assert (self.status, self.broken) == (200, "")
        assert self.words == [f"w{index}" for index in range(tokens)]
        assert self.usage is not None
        assert self.usage["completion_tokens"] == tokens
        assert self.done


class Simulated:
    """One engine process and ways to talk to it."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str], log: Path) -> None:
        self.nonce = environment["OPSCTL_NONCE"]
        self.port = int(arguments[arguments.index("--port") + 1])
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_path = log
        self.session: aiohttp.ClientSession
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "opsctl.engine.simulated", *arguments],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env=environment, start_new_session=True,
            )  # fmt: skip
        self.pid = self.process.pid

    @property
    def log(self) -> str:
        """The log so far."""
        return self.log_path.read_text()

    @property
    def shm(self) -> list[Path]:
        """Its load snapshot file, if it is there."""
        return list(Path("/dev/shm").glob(f"sglang_loads_*_{self.port}_{self.pid}.shm"))

    def child(self, title: str) -> int:
        """Return the pid of a child by the end of its title."""
        return next(pid for pid, name in living(self.nonce).items() if name.endswith(title))

    async def status(self, path: str) -> int:
        """Return the status of a GET; 0 when the connection is refused."""
        try:
            async with self.session.get(self.url + path) as response:
                return response.status
        except aiohttp.ClientConnectorError:
            return 0

    async def get(self, path: str) -> Any:
        """Return the body of a GET, which must be a 200."""
        async with self.session.get(self.url + path) as response:
            assert response.status == 200, path
            return await response.json(content_type=None)

    async def post(self, path: str, body: object = None) -> tuple[int, str]:
        """Return status and text of a POST."""
        async with self.session.post(self.url + path, json=body) as response:
            return response.status, await response.text()

    async def fault(self, name: str, value: object = None) -> None:
        """Put a fault in force."""
        assert (await self.post("/sim/fault", {"name": name, "value": value}))[0] == 200

    async def load(self) -> dict[str, Any]:
        """Return the load of the only rank."""
        return dict((await self.get("/v1/loads?include=core"))["loads"][0])

    async def gauge(self, name: str) -> float:
        """Return the sum of one metric family over its labels."""
        async with self.session.get(self.url + "/metrics") as response:
            lines = (await response.text()).splitlines()
        values = [line for line in lines if line.startswith(f"sglang:{name}{{")]
        assert values, name
        return sum(float(line.rpartition(" ")[2]) for line in values)

    async def until_ready(self, seconds: float = 20.0) -> None:
        """Wait for /ready."""
        deadline = time.monotonic() + seconds
        while await self.status("/ready") != 200:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            await asyncio.sleep(0.05)

    async def until_running(self, count: int) -> None:
        """Wait until so many requests run."""
        deadline = time.monotonic() + 10
        while (await self.load())["num_running_reqs"] != count:
            assert time.monotonic() < deadline, await self.load()
            await asyncio.sleep(0.05)

    async def exit_code(self, seconds: float = 20.0) -> int:
        """Wait for the main process to end."""
        await eventually(lambda: self.process.poll() is not None, seconds, "the exit")
        return int(self.process.returncode)

    async def until_gone(self, seconds: float = 2.0) -> None:
        """Wait until no process of the engine lives."""
        await eventually(lambda: not living(self.nonce), seconds, f"{living(self.nonce)} gone")

    def stream(
        self, tokens: int | None = None, prompt: str = "hello", path: str = "/v1/chat/completions"
    ) -> tuple[Stream, asyncio.Task[None]]:
        """Start a stream."""
        body: dict[str, object] = {"stream": True, "stream_options": {"include_usage": True}}
        if path.endswith("chat/completions"):
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        if tokens is not None:
            body["max_tokens"] = tokens
        stream = Stream()
        return stream, asyncio.create_task(self._read(stream, path, body))

    async def _read(self, stream: Stream, path: str, body: object) -> None:
        try:
            async with self.session.post(self.url + path, json=body) as response:
                stream.status = response.status
                async for line in response.content:
                    stream.take(line)
        except aiohttp.ClientError as error:
            stream.broken = type(error).__name__


@asynccontextmanager
async def simulated(
    tmp_path: Path, *flags: str, ready: bool = True, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Simulated]:
    """Start an engine, quick by default; on the way out kill what is left of it."""
    arguments = ["--model-path", "demo/model", "--enable-metrics", "--sim-start-time", "0.5",
                 "--sim-drain-poll", "0.2", "--sim-crash-delay", "0.2"]  # fmt: skip
    if "--port" not in flags:
        arguments += ["--port", str(free_port())]
    nonce = uuid.uuid4().hex
    variables = {
        **os.environ,
        "OPSCTL_NONCE": nonce,
        "OPSCTL_SIMULATED_GPU": str(tmp_path / "gpu.jsonl"),
        **(environment or {}),
    }
    engine = Simulated([*arguments, *flags], variables, tmp_path / f"{nonce}.log")
    timeout = aiohttp.ClientTimeout(total=60)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        engine.session = session
        try:
            if ready:
                await engine.until_ready()
            yield engine
        finally:
            if engine.process.poll() is None:
                engine.process.kill()
            engine.process.wait()
            for pid in living(nonce):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for path in engine.shm:
                path.unlink()
