"""The demo: a real `opsctl serve --auto-spec --demo`, rising and falling load, and the verdict."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp

from opsctl.bench.traffic import Job, Summary, keep_busy, numbered_words
from opsctl.errors import OpsctlError
from opsctl.observe.events import parse_lines
from opsctl.system import unix_socket

MODEL = "demo"


@dataclass(frozen=True)
class Phase:
    """One stretch of the demo: this many streams, at least `seconds`, at most `limit`."""

    name: str
    streams: int
    seconds: float
    limit: float
    until_profile: str | None = None


PHASES = (
    Phase("quiet", 1, 8.0, 8.0),
    Phase("busy", 40, 8.0, 60.0, until_profile="baseline"),
    Phase("quiet again", 1, 5.0, 60.0, until_profile="eagle3"),
)


@dataclass(frozen=True)
class Verdict:
    """What the demo showed; times in seconds."""

    requests: int
    failed: int
    tokens: int
    switches: tuple[dict[str, object], ...]
    serve_exit_code: int | None
    reasons: tuple[str, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether it went both ways, nothing failed, and serving ended cleanly."""
        return not self.failed and len(self.switches) >= 2 and self.serve_exit_code == 0

    def document(self) -> dict[str, object]:
        """As plain data."""
        return {**asdict(self), "ok": self.ok}


async def run(tell: Callable[[str], None]) -> Verdict:
    """Run the demo on a free port in a state directory of its own, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="opsctl-demo-") as directory:
        return await _Demo(Path(directory), tell).run()


class _Demo:
    def __init__(self, directory: Path, tell: Callable[[str], None]) -> None:
        self._directory = directory
        self._tell_line = tell
        self._begun = time.monotonic()
        self._url = ""
        self._told = 0

    async def run(self) -> Verdict:
        """Serve, load, stop, judge."""
        self._tell("starting opsctl serve --auto-spec --demo (the engine is simulated)")
        with (self._directory / "serve.output").open("wb") as output:
            server = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "opsctl", "serve", "--auto-spec", "--demo",
                "--listen", "127.0.0.1:0", "--state-dir", str(self._directory),
                stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        try:
            await self._until(self._serving, server, 60.0)
            summary = await self._load(server)
            await self._opsctl("stop")
            code = await asyncio.wait_for(server.wait(), 60.0)
        finally:
            with suppress(ProcessLookupError):
                server.terminate()
            await server.wait()
        self._tell_events()
        return self._verdict(summary, code)

    async def _load(self, server: asyncio.subprocess.Process) -> Summary:
        everything = Summary()
        for phase in PHASES:
            plural = "" if phase.streams == 1 else "s"
            self._tell(f"{phase.name}: {phase.streams} stream{plural}")
            over = asyncio.Event()
            job = Job(self._url, MODEL, max_tokens=48, check=numbered_words)
            traffic = asyncio.ensure_future(keep_busy(job, phase.streams, over))
            await self._follow(phase, server)
            over.set()
            everything.outcomes.extend((await traffic).outcomes)
        return everything

    async def _follow(self, phase: Phase, server: asyncio.subprocess.Process) -> None:
        begun = time.monotonic()
        shown = begun
        while True:
            await asyncio.sleep(0.5)
            self._tell_events()
            if server.returncode is not None:
                raise OpsctlError(f"opsctl serve ended early:\n{self._output()}")
            status = await self._status()
            now = time.monotonic()
            if status is not None and now - shown >= 2.0:
                shown = now
                self._tell(_load_line(status))
            there = phase.until_profile is None or (
                status is not None
                and status["state"] == "serving"
                and status["profile"] == phase.until_profile
            )
            if now - begun >= (phase.seconds if there else phase.limit):
                return

    async def _until(
        self,
        condition: Callable[[], Awaitable[bool]],
        server: asyncio.subprocess.Process,
        seconds: float,
    ) -> None:
        deadline = time.monotonic() + seconds
        while not await condition():
            if server.returncode is not None or time.monotonic() > deadline:
                raise OpsctlError(f"opsctl serve did not come up:\n{self._output()}")
            await asyncio.sleep(0.2)
        self._tell_events()

    async def _serving(self) -> bool:
        status = await self._status()
        if status is None or status["state"] != "serving":
            return False
        self._url = f"http://{status['listen']}"
        return True

    async def _status(self) -> dict[str, object] | None:
        timeout = aiohttp.ClientTimeout(total=5.0)
        try:
            with unix_socket.address(self._directory / "run" / "control.sock") as path:
                connector = aiohttp.UnixConnector(path=path)
                async with (
                    aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
                    session.get("http://opsctl/v1/status") as response,
                ):
                    document: dict[str, object] = await response.json()
                    return document
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None

    async def _opsctl(self, *words: str) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "opsctl", *words, "--state-dir", str(self._directory),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        await process.wait()

    def _events(self) -> list[dict[str, object]]:
        path = self._directory / "events.jsonl"
        return list(parse_lines(path.read_text())) if path.exists() else []

    def _tell_events(self) -> None:
        events = self._events()
        for event in events[self._told :]:
            line = _EVENT_LINES.get(str(event["event"]))
            if line is not None:
                self._tell(line(event))
        self._told = len(events)

    def _tell(self, line: str) -> None:
        self._tell_line(f"{time.monotonic() - self._begun:5.1f} s  {line}")

    def _output(self) -> str:
        return (self._directory / "serve.output").read_text(errors="replace")[-2000:]

    def _verdict(self, summary: Summary, code: int | None) -> Verdict:
        return Verdict(
            requests=len(summary.outcomes),
            failed=len(summary.failed),
            tokens=summary.tokens,
            switches=tuple(e for e in self._events() if e["event"] == "switched"),
            serve_exit_code=code,
            reasons=tuple(sorted({outcome.why for outcome in summary.failed})),
            seconds=round(time.monotonic() - self._begun, 1),
        )


def _known(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def _load_line(status: dict[str, object]) -> str:
    load = status["load"]
    told = json.loads(json.dumps(load))
    return (
        f"  {status['state']} {status['profile']}: running {_known(told['running'])}, "
        f"queued {_known(told['queued'])}, held {told['held']}"
    )


_EVENT_LINES: dict[str, Callable[[dict[str, object]], str]] = {
    "switch_begun": lambda e: f"switch {e['source']} -> {e['target']}: {e['why']}",
    "switched": lambda e: (
        f"switched to {e['target']} in {e['seconds']} s "
        f"(drain {e['drain_s']}, stop {e['stop_s']}, start {e['start_s']})"
    ),
    "engine_lost": lambda e: f"engine lost: {e['why']}",
    "fell_back": lambda e: f"fell back to {e['target']}",
    "serving": lambda e: f"serving {e['profile']}",
}
