"""After opsctl itself died: find its engine by identity, adopt it or end it, never double it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from opsctl.config.schema import Config, LaunchProfile
from opsctl.engine.client import EngineClient, Readiness
from opsctl.engine.log import EngineLog
from opsctl.engine.process import EngineProcess, Identity, kill_leftovers, leftovers
from opsctl.engine.release import MemoryReader, UnknownMemory, verify
from opsctl.engine.start import RunningEngine
from opsctl.errors import OpsctlError, ReleaseError
from opsctl.profiles.fingerprint import fingerprint
from opsctl.serve import strays
from opsctl.serve.places import Places
from opsctl.serve.remembered import EngineRecord

Guard = Callable[[LaunchProfile], MemoryReader]
"""Makes what tells of the GPU memory of a profile."""


@dataclass(frozen=True)
class Found:
    """What became of the engine of an earlier opsctl."""

    engine: RunningEngine | None
    told: str
    killed: tuple[int, ...] = ()


async def recover(
    record: EngineRecord | None, config: Config, places: Places, wanted: str | None, guard: Guard
) -> Found | None:
    """Adopt the recorded engine when it is healthy and matches; end everything else of ours.

    Ours is also what no record tells of (the state file was lost, or opsctl died between a spawn
    and its record): a process whose output goes to this state directory's engine log. `wanted`
    restricts adoption to one profile. None when there was nothing; raises ReleaseError when
    something will not go.
    """
    identity = _identity(record)
    found = None
    if record is not None and identity is not None:
        found = await _Recovery(record, identity, config, places, guard).run(wanted)
    kept = set() if found is None or found.engine is None else _pids(found.engine)
    unknown = await strays.end(places.engine_logs, spare=kept)
    if not unknown:
        return found
    told = f"{found.told}; " if found is not None else ""
    killed = (*(found.killed if found is not None else ()), *unknown)
    engine = found.engine if found is not None else None
    return Found(engine, f"{told}ended an engine that no state file tells of", killed)


def _identity(record: EngineRecord | None) -> Identity | None:
    try:
        return None if record is None else Identity.from_json(record.identity)
    except ValueError:
        return None  # damaged: whatever lives of it is found by its log


def _pids(engine: RunningEngine) -> set[int]:
    return {member.pid for member in engine.process.members()}


@dataclass(frozen=True)
class _Recovery:
    """What is done about one recorded engine."""

    record: EngineRecord
    identity: Identity
    config: Config
    places: Places
    guard: Guard

    async def run(self, wanted: str | None) -> Found:
        """Adopt it, or end it."""
        process = EngineProcess.attach(self.identity)
        why_not = "its main process is gone"
        if process is not None:
            why_not = _mismatch(self.record, self.config, wanted) or ""
            if not why_not:
                engine = self._engine(process)
                why_not = await _unfit(engine)
                if not why_not:
                    await self._observe(engine.memory)
                    return Found(engine, "adopted")
                await engine.client.close()
                engine.memory.close()
        return await self._end(why_not)

    def _engine(self, process: EngineProcess) -> RunningEngine:
        profile = self.config.profiles[self.record.profile]
        return RunningEngine(
            name=self.record.profile,
            profile=profile,
            port=self.record.port,
            process=process,
            client=EngineClient(f"http://127.0.0.1:{self.record.port}"),
            log=EngineLog.at_end(
                Path(self.record.log) if self.record.log else self.places.engine_log
            ),
            memory=self.guard(profile),
            fingerprint=self.record.fingerprint,
            extra_flags=self.record.extra_flags,
            adopted=True,
        )

    async def _observe(self, memory: MemoryReader) -> None:
        await memory.observe(self.identity, [m.pid for m in leftovers(self.identity)])

    async def _end(self, why: str) -> Found:
        profile = self.config.profiles.get(self.record.profile)
        memory = self.guard(profile) if profile is not None else UnknownMemory()
        living = leftovers(self.identity)
        await self._observe(memory)
        report = await kill_leftovers(self.identity)
        release = await verify(
            self.identity,
            ports=(self.record.port,),
            memory=memory,
            deadline=profile.timeouts.release if profile else 60.0,
            segments=report.segments,
        )
        memory.close()
        if not release.ok:
            raise ReleaseError(
                f"the engine of an earlier opsctl ({self.record.profile}, "
                f"pid {self.identity.pid}) is not released: {release.why}",
                hint="end what is named, or reset the GPU or reboot if it cannot be ended",
            )
        return Found(None, why, tuple(member.pid for member in living))


def _mismatch(record: EngineRecord, config: Config, wanted: str | None) -> str | None:
    profile = config.profiles.get(record.profile)
    if profile is None:
        return f"profile {record.profile!r} is not configured any more"
    if wanted is not None and wanted != record.profile:
        return f"profile {wanted!r} was asked for"
    if fingerprint(profile) != record.fingerprint:
        return f"profile {record.profile!r} has changed since it was started"
    if not record.ready:
        return "it had not become ready"
    return None


async def _unfit(engine: RunningEngine) -> str:
    """Why a living engine cannot be trusted with requests; empty when it can."""
    if await engine.client.readiness() is not Readiness.READY:
        return "it does not say that it is ready"
    try:
        await engine.client.generate_one(engine.profile.timeouts.probe)
    except OpsctlError as error:
        return error.message
    return ""
