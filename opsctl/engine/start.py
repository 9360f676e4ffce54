"""The one verified way to start an engine, used by serve, switch and bench alike.

preflight → spawn → log stages (each with a deadline, all with a total one) → ready answer, from
a process of this engine → model listed → one short generation. Only then does the engine count
as started.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from opsctl.config.schema import FlagValue, LaunchProfile
from opsctl.engine import markers, preflight
from opsctl.engine.client import EngineClient, EngineUnhealthy, Readiness
from opsctl.engine.listening import stranger
from opsctl.engine.log import EngineLog
from opsctl.engine.process import EngineProcess
from opsctl.engine.release import MemoryReader
from opsctl.engine.tree import compiling
from opsctl.errors import StartError
from opsctl.profiles.fingerprint import fingerprint
from opsctl.profiles.flags import arguments
from opsctl.profiles.launch import command
from opsctl.system.cgroup import Cgroup
from opsctl.system.threads import aside

T = TypeVar("T")

POLL = 0.1
"""Seconds between looks at the log and the process while an engine starts."""


@dataclass(frozen=True)
class Launch:
    """Everything one start needs. `port` 0 picks a free one."""

    name: str
    profile: LaunchProfile
    nonce: str
    port: int
    log_path: Path
    caller_environment: Mapping[str, str]
    memory: MemoryReader
    cgroup_parent: Cgroup | None = None
    extra_environment: Mapping[str, str] = field(default_factory=dict)
    extra_flags: Mapping[str, FlagValue] = field(default_factory=dict)
    """What opsctl adds to the profile's flags, after them; no part of its fingerprint."""
    gated: bool = False
    """Whether the engine waits at a gate of its own until it may take GPU memory."""


@dataclass
class RunningEngine:
    """An engine that was spawned or adopted, and what is known about it."""

    name: str
    profile: LaunchProfile
    port: int
    process: EngineProcess
    client: EngineClient
    log: EngineLog
    memory: MemoryReader
    fingerprint: str
    stages: dict[str, float] = field(default_factory=dict)
    """Seconds from spawn at which each stage was reached."""
    missing_markers: tuple[str, ...] = ()
    """Expected log texts that had not shown up by ready: the start is degraded."""
    extra_flags: Mapping[str, FlagValue] = field(default_factory=dict)
    """As in its launch."""
    adaptive_off: str = ""
    """SGLang's own word that it does not adapt its draft steps although it was told to."""
    adopted: bool = False
    owns_port: bool = True
    """False once somebody else was seen to listen there: the port is not the engine's to free."""

    @property
    def url(self) -> str:
        """Base URL of the engine's HTTP server."""
        return f"http://127.0.0.1:{self.port}"


class StartPath:
    """One start under way; `engine` is set as soon as there is a process to clean up."""

    def __init__(
        self, launch: Launch, on_stage: Callable[[str], None] = lambda stage: None
    ) -> None:
        self.engine: RunningEngine | None = None
        self.launch = launch
        self._on_stage = on_stage
        self._stage = "preflight"
        self._seen: list[str] = []
        self._cannot_listen = ""
        self._began = 0.0
        self._gate_port = preflight.free_port() if launch.gated else None

    async def prepare(self) -> None:
        """Bring a gated engine up to its gate; raises PreconditionError or StartError.

        It has started its processes and connected them, and holds no GPU memory yet. `run` lets
        it go on.
        """
        await self._in_time(self._prepare())

    async def run(self) -> RunningEngine:
        """Start the engine and prove that it serves; raises PreconditionError or StartError."""
        return await self._in_time(self._run())

    async def _in_time(self, work: Awaitable[T]) -> T:
        limits = self.launch.profile.timeouts
        try:
            async with asyncio.timeout(limits.start):
                return await work
        except TimeoutError:
            raise self._failure(
                "start_timeout", f"not ready after {limits.start:g} s (timeouts.start)"
            ) from None

    async def _prepare(self) -> None:
        assert self._gate_port is not None  # noqa: S101 - only gated launches are prepared
        engine = await self._spawn_checked()
        gate = self._gate_port
        await self._follow(engine, lambda: engine.client.gate_waits(gate))
        await self._check_listener(engine, gate)

    async def _spawn_checked(self) -> RunningEngine:
        launch = self.launch
        port = launch.port or preflight.free_port()
        await preflight.check(launch.profile, port=port, log_dir=launch.log_path.parent)
        if not launch.gated:
            await launch.memory.before_start()
        engine = await self._spawn_for_sure(port)
        self._began = time.monotonic()
        self._reach("spawned", 0.0)
        return engine

    async def _run(self) -> RunningEngine:
        launch = self.launch
        if self.engine is not None and self._gate_port is not None:
            engine = self.engine
            await launch.memory.before_activation()
            await self._activate(engine, self._gate_port)
        else:
            engine = await self._spawn_checked()
        await self._follow(engine, lambda: _is_ready(engine))
        await self._check_listener(engine, engine.port)
        await self._prove(engine)
        members = engine.process.members()
        await launch.memory.observe(engine.process.identity, [member.pid for member in members])
        expected = launch.profile.expect_log
        engine.missing_markers = tuple(
            text for text in expected if not any(text in line for line in self._seen)
        )
        self._seen.clear()
        return engine

    async def _activate(self, engine: RunningEngine, gate: int) -> None:
        try:
            await engine.client.activate_gate(gate)
        except EngineUnhealthy as error:
            raise self._failure(
                "probe_failed", f"its gate does not open: {error.message}"
            ) from error

    async def _spawn_for_sure(self, port: int) -> RunningEngine:
        """Spawn; when cancelled meanwhile, still learn of the process, so that it can be ended."""
        spawning = asyncio.ensure_future(self._spawn(port))
        try:
            self.engine = await asyncio.shield(spawning)
        except asyncio.CancelledError:
            self.engine = await spawning
            raise
        return self.engine

    async def _spawn(self, port: int) -> RunningEngine:
        launch = self.launch
        base = command(launch.profile, port=port, caller_environment=launch.caller_environment)
        gate = self._gate_port
        flags = {**launch.extra_flags} | ({} if gate is None else {"gated-launch-port": gate})
        full = replace(
            base,
            argv=(*base.argv, *arguments(flags)),
            environment={**base.environment, **launch.extra_environment},
        )
        # The file goes on from the last engine: its marks are not this one's.
        log = EngineLog.at_end(launch.log_path)
        process = await EngineProcess.spawn(
            full,
            nonce=launch.nonce,
            log_path=launch.log_path,
            cgroup_parent=launch.cgroup_parent,
        )
        return RunningEngine(
            name=launch.name,
            profile=launch.profile,
            port=port,
            process=process,
            client=EngineClient(f"http://127.0.0.1:{port}"),
            log=log,
            memory=launch.memory,
            fingerprint=fingerprint(launch.profile),
            extra_flags=launch.extra_flags,
        )

    async def _follow(self, engine: RunningEngine, arrived: Callable[[], Awaitable[bool]]) -> None:
        """Follow the log, with a deadline for each stage, until `arrived` says so."""
        progress = next_question = time.monotonic()
        while True:
            now = time.monotonic()
            if self._read_log(engine, now):
                progress = now
            if engine.process.exited:
                await self._exited(engine)
            if self._cannot_listen:  # SGLang may hang now for minutes, deaf to SIGTERM
                await self._check_listener(engine, engine.port)
                raise self._failure("port_in_use", self._cannot_listen)
            if now >= next_question:
                next_question = now + 2 * POLL
                if await arrived():
                    return
            stage_limit = self.launch.profile.timeouts.stage
            if now - progress > stage_limit:
                if not compiling(engine.process.members()):
                    raise self._failure(
                        "stage_timeout",
                        f"nothing new for {stage_limit:g} s after stage {self._stage!r} "
                        "(timeouts.stage)",
                    )
                progress = now
            await asyncio.sleep(POLL)

    def _read_log(self, engine: RunningEngine, now: float) -> bool:
        lines = engine.log.read_new()
        for line in lines:
            stage = markers.stage_of(line)
            if stage is not None and stage not in engine.stages:
                self._reach(stage, now - self._began)
            if markers.cannot_listen(line):
                self._cannot_listen = line.strip()[:300]
            engine.adaptive_off = markers.adaptive_off(line) or engine.adaptive_off
        if self.launch.profile.expect_log:
            self._seen.extend(lines)
        return any(markers.is_progress(line) for line in lines)

    def _reach(self, stage: str, seconds: float) -> None:
        self._stage = stage
        if self.engine is not None:
            self.engine.stages[stage] = round(seconds, 3)
        self._on_stage(stage)

    async def _check_listener(self, engine: RunningEngine, port: int) -> None:
        """Raise StartError when it is somebody else who listens on a port of the engine."""
        members = {member.pid for member in engine.process.members()}
        other = await aside(partial(stranger, port, members))
        if other is None:
            return
        engine.owns_port = engine.owns_port and port != engine.port
        raise self._failure(
            "port_in_use",
            f"not the engine but another server answers there: {other}",
            hint="stop it, or set serve.engine_port to another port",
        )

    async def _exited(self, engine: RunningEngine) -> None:
        """Explain why the engine ended before it was ready."""
        code = await engine.process.wait()
        engine.log.read_new()
        tail = engine.log.tail(200)
        failure = markers.classify(tail, code)
        if failure.kind == "port_in_use":
            await self._check_listener(engine, engine.port)
        raise self._failure(
            "exited" if failure.kind == "unknown" else failure.kind,
            f"the engine ended with exit code {code} after stage {self._stage!r}: {failure.what}",
            hint=failure.hint,
        )

    async def _prove(self, engine: RunningEngine) -> None:
        """Model listed and one short generation answered."""
        limit = self.launch.profile.timeouts.probe
        try:
            async with asyncio.timeout(limit):
                models = await engine.client.models()
                wanted = self.launch.profile.served_name or self.launch.profile.model
                if wanted not in models:
                    raise self._failure(
                        "probe_failed", f"/v1/models lists {list(models)}, not {wanted!r}"
                    )
                await engine.client.generate_one(limit)
        except EngineUnhealthy as error:
            raise self._failure("probe_failed", error.message) from error
        except TimeoutError:
            raise self._failure(
                "probe_failed", f"no generation within {limit:g} s (timeouts.probe)"
            ) from None

    def _failure(self, kind: str, what: str, hint: str | None = None) -> StartError:
        message = f"profile {self.launch.name!r}: {what}"
        where = hint or f"read the engine's log: {self.launch.log_path}"
        return StartError(message, stage=self._stage, kind=kind, hint=where)


async def _is_ready(engine: RunningEngine) -> bool:
    return await engine.client.readiness() is Readiness.READY
