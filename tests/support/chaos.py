"""Everything at once that can happen to a serving instance, drawn from a seed.

`Chaos` does things to the instance; `Clients` keep asking and judge every answer; `Witness` looks
from outside for what must never be.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from opsctl.observe.events import timestamp
from opsctl.serve.places import Places
from opsctl.system import procfs
from tests.support.serving import Serving
from tests.support.simulated import MODEL

Document = dict[str, Any]
NONCE = "OPSCTL_NONCE"
LEDGER = "OPSCTL_SIMULATED_GPU"
SLOWEST_STATUS = 2.0


class Clients:
    """Streams that never end asking, each answer checked word by word."""

    def __init__(self, url: str, streams: int, seed: int) -> None:
        self.url = url
        self.wrong: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self._streams = streams
        self._random = random.Random(seed)
        self._over = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Clients:
        self._tasks = [asyncio.create_task(self._one()) for _ in range(self._streams)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over = True
        async with asyncio.timeout(120):
            await asyncio.gather(*self._tasks)

    async def _one(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while not self._over:
                kind = await self._ask(session)
                self.outcomes[kind] += 1
                if kind == "unreachable":
                    await asyncio.sleep(0.2)

    async def _ask(self, session: aiohttp.ClientSession) -> str:
        stream = self._random.random() < 0.8
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Write the numbered words."}],
            "max_tokens": self._random.choice((8, 48, 200)),
            "stream": stream,
        }
        try:
            async with session.post(f"{self.url}/v1/chat/completions", json=body) as response:
                if response.status != 200:
                    return self._refused(response.status, await response.read())
                if not stream:
                    return self._whole(await response.json(), body["max_tokens"])
                return await self._streamed(response, body["max_tokens"])
        except aiohttp.ClientConnectorError:
            return "unreachable"
        except (aiohttp.ClientError, OSError):
            return "connection broke"

    def _refused(self, status: int, content: bytes) -> str:
        """An error says so: an error status, and a body of OpenAI's shape."""
        with contextlib.suppress(ValueError, KeyError, TypeError):
            if json.loads(content)["error"]["message"]:
                return f"status {status}"
        return self._wrong(f"status {status} with {content[:200]!r}")

    def _whole(self, document: Document, tokens: int) -> str:
        choice = document["choices"][0]
        words = choice["message"]["content"].split()
        if words != numbered(tokens) or choice["finish_reason"] != "length":
            return self._wrong(f"{choice['finish_reason']}: {words} for {tokens} tokens")
        return "complete"

    async def _streamed(self, response: aiohttp.ClientResponse, tokens: int) -> str:
        text, finish, done, error = "", None, False, ""
        async for line in response.content:
            if not line.startswith(b"data: "):
                continue
            if done or error:
                return self._wrong(f"{line!r} after the end")
            data = line[6:].strip()
            if data == b"[DONE]":
                done = True
                continue
            chunk = json.loads(data)
            if "error" in chunk:
                error = str(chunk["error"])
                continue
            for choice in chunk["choices"]:
                text += choice["delta"].get("content") or ""
                finish = choice.get("finish_reason") or finish
        words = text.split()
        if words != numbered(tokens)[: len(words)]:
            return self._wrong(f"words {words}")
        if error:
            return "error event"
        if not done or len(words) != tokens or finish != "length":
            return self._wrong(f"done {done}, finish {finish}, {len(words)} of {tokens} words")
        return "complete"

    def _wrong(self, what: str) -> str:
        self.wrong.append(what)
        return "wrong"


def numbered(count: int) -> list[str]:
    """The answer of the simulated engine."""
    return [f"w{number}" for number in range(count)]


@dataclass
class Control:
    """The control socket of whatever opsctl serves from a state directory now."""

    places: Places
    slowest: float = 0.0

    async def ask(self, method: str, path: str, body: Document | None = None) -> Document | None:
        """The answer; None while no opsctl is there to give one."""
        connector = aiohttp.UnixConnector(path=str(self.places.socket))
        timeout = aiohttp.ClientTimeout(total=30)
        begun = time.monotonic()
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
                session.request(method, f"http://opsctl{path}", json=body) as response,
            ):
                document: Document = await response.json()
        except (aiohttp.ClientError, OSError):
            return None
        if path == "/v1/status":
            self.slowest = max(self.slowest, time.monotonic() - begun)
        return {**document, "status": response.status}

    async def status(self) -> Document | None:
        """The status document."""
        return await self.ask("GET", "/v1/status")


@dataclass
class Witness:
    """Looks on from outside, for two engines at once and for slow answers.

    A standby (`standbys`) may live beside the engine that serves, but hold no memory.
    """

    control: Control
    standbys: bool
    doubles: list[str] = field(default_factory=list)
    looks: int = 0

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            await self.control.status()
            await asyncio.to_thread(self._look)
            await asyncio.sleep(0.3)

    def _look(self) -> None:
        self.looks += 1
        trees: dict[str, list[psutil.Process]] = {}
        places = self.control.places
        found = holders(places) if self.standbys else engine_processes(places)
        for nonce, process in found:
            trees.setdefault(nonce, []).append(process)
        # One may have ended and the next begun while the list was read.
        alive = {n: [p for p in ps if living(p)] for n, ps in trees.items()}
        if len([n for n, ps in alive.items() if ps]) > 1:
            self.doubles.append(
                str({n: [(p.pid, p.name()) for p in ps] for n, ps in alive.items()})
            )


def living(process: psutil.Process) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def engine_processes(places: Places) -> Iterator[tuple[str, psutil.Process]]:
    """Launch nonce and process of every engine of this state directory.

    Its main process tells by its environment, which schedulers have written their titles over.
    """
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except (psutil.Error, OSError):
            continue
        if environment.get(LEDGER) == str(places.simulated_gpu) and environment.get(NONCE):
            yield environment[NONCE], process
    yield from holders(places)


def holders(places: Places) -> Iterator[tuple[str, psutil.Process]]:
    """Launch nonce and process of whatever holds memory, as the ledger of the engines tells it."""
    with contextlib.suppress(OSError):
        for line in places.simulated_gpu.read_text().splitlines():
            with contextlib.suppress(ValueError, KeyError, psutil.Error):
                entry = json.loads(line)
                stat = procfs.stat(entry["pid"])
                if stat is not None and stat.start_time == entry["start_time"]:
                    yield entry["nonce"], psutil.Process(entry["pid"])


@dataclass(frozen=True)
class Deed:
    """Something that was done, and the events of which one must tell of it."""

    time: str
    what: str
    told_by: frozenset[str] = frozenset()


class Chaos:
    """Does random things to an instance."""

    def __init__(
        self, instance: Serving, control: Control, seed: int, write: Callable[[int], Path]
    ) -> None:
        self.instance = instance
        self.control = control
        self.deeds: list[Deed] = []
        self.starts = 1
        self._random = random.Random(seed)
        self._write = write
        self._stack = contextlib.ExitStack()
        self._frozen: list[psutil.Process] = []
        self._weighted: dict[Callable[[], Awaitable[None]], int] = {
            self._kill_engine: 3,
            self._kill_child: 3,
            self._freeze: 2,
            self._thaw: 2,
            self._switch: 6,
            self._pause: 1,
            self._resume: 1,
            self._drain: 1,
            self._undrain: 2,
            self._reload: 2,
            self._kill_opsctl: 2,
            self._stop_opsctl: 1,
        }

    def __enter__(self) -> Chaos:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def run(self, seconds: float) -> None:
        """Do one thing after another."""
        end = time.monotonic() + seconds
        deeds, weights = list(self._weighted), list(self._weighted.values())
        while time.monotonic() < end:
            await asyncio.sleep(self._random.choice((0.05, 0.3, 1.0, 3.0)))
            (deed,) = self._random.choices(deeds, weights)
            await deed()

    async def settle(self) -> Document:
        """Undo what was done on purpose, and wait until it serves."""
        for process in self._frozen:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            await self.control.ask("POST", "/v1/drain", {"off": True})
            status = await self.control.status()
            if status is not None and status["state"] == "serving":
                return status
            await asyncio.sleep(0.3)
        raise AssertionError(f"it does not serve again: {await self.control.status()}")

    def _did(self, what: str, *told_by: str) -> None:
        self.deeds.append(Deed(timestamp(), what, frozenset(told_by)))

    async def _engine(self) -> psutil.Process | None:
        status = await self.control.status()
        if status is None or not status["engine"]:
            return None
        self.instance.sessions.add(status["engine"]["pid"])
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(status["engine"]["pid"])
            return process if living(process) else None
        return None

    async def _victim(self) -> psutil.Process | None:
        """A process of the engine."""
        main = await self._engine()
        if main is None:
            return None
        with contextlib.suppress(psutil.NoSuchProcess):
            titled = [p for p in main.children(recursive=True) if "sglang::" in p.cmdline()[0]]
            return self._random.choice([main, *titled])
        return None

    async def _kill_engine(self) -> None:
        main = await self._engine()
        if main is not None:
            self._kill(main)

    async def _kill_child(self) -> None:
        victim = await self._victim()
        if victim is not None:
            self._kill(victim)

    def _kill(self, process: psutil.Process) -> None:
        self._did(
            f"SIGKILL to {process.pid}",
            "engine_lost",
            "start_failed",
            "engine_stopped",
            "recovered",
        )
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()

    async def _freeze(self) -> None:
        victim = await self._victim()
        if victim is not None:
            self._did(f"SIGSTOP to {victim.pid}")
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.suspend()
                self._frozen.append(victim)

    async def _thaw(self) -> None:
        if self._frozen:
            self._did("SIGCONT")
            with contextlib.suppress(psutil.NoSuchProcess):
                self._frozen.pop().resume()

    async def _switch(self) -> None:
        profile = self._random.choice(("eagle3", "baseline"))
        begun = timestamp()
        before = await self.control.status()
        answer = await self.control.ask("POST", "/v1/switch", {"profile": profile})
        if before is None or answer is None or answer["status"] != 200:
            return
        news = before["profile"] != profile or before["state"] != "serving"
        begins = news and before["target"] != profile and answer["target"] == profile
        told = ("switch_begun",) if begins else ()
        self.deeds.append(Deed(begun, f"switch {profile}", frozenset(told)))

    async def _pause(self) -> None:
        await self._verb("/v1/pause", lambda before: before["automation"] == "on", "paused")

    async def _resume(self) -> None:
        await self._verb("/v1/resume", lambda before: before["automation"] == "paused", "resumed")

    async def _drain(self) -> None:
        await self._verb("/v1/drain", lambda before: False, "")

    async def _undrain(self) -> None:
        begun = timestamp()
        before = await self.control.status()
        answer = await self.control.ask("POST", "/v1/drain", {"off": True})
        if before and answer and before["drain_asked"] and not answer["drain_asked"]:
            self.deeds.append(Deed(begun, "drain --off", frozenset({"drain_ended"})))

    async def _verb(self, path: str, news: Callable[[Document], bool], event: str) -> None:
        begun = timestamp()
        before = await self.control.status()
        answer = await self.control.ask("POST", path)
        if before is not None and answer is not None and answer["status"] == 200:
            told = {event} if news(before) else set()
            self.deeds.append(Deed(begun, path, frozenset(told)))

    async def _reload(self) -> None:
        self._write(self._random.randrange(3))
        begun = timestamp()
        answer = await self.control.ask("POST", "/v1/reload")
        if answer is not None:
            told = "reloaded" if answer["status"] == 200 else "reload_refused"
            self.deeds.append(Deed(begun, "reload", frozenset({told})))

    async def _kill_opsctl(self) -> None:
        self._did("SIGKILL to opsctl", "opsctl_started")
        self.instance.process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(self.instance.process.wait, 10)
        await self._start_again()

    async def _stop_opsctl(self) -> None:
        async with asyncio.timeout(30):
            while await self.control.status() is None:  # Python itself is still starting
                await asyncio.sleep(0.1)
        self._did("SIGTERM to opsctl", "stopped")
        self.instance.process.send_signal(signal.SIGTERM)
        if self._random.random() < 0.5:
            await asyncio.sleep(0.2)
            self.instance.process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(self.instance.process.wait, 60)
        assert code == 0, f"exit code {code}: {self.instance.output.read_text()[-2000:]}"
        assert not [p for _, p in engine_processes(self.control.places) if living(p)]
        await self._start_again()

    async def _start_again(self) -> None:
        sessions = self.instance.sessions
        again = Serving(self.instance.arguments, self.instance.state_dir, sessions=sessions)
        self.instance = self._stack.enter_context(again)
        self.starts += 1
        await asyncio.sleep(self._random.choice((0.0, 0.5, 2.0)))
