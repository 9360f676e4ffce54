"""After opsctl itself died: find its engine by identity, adopt it or end it, never double it."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.config.schema import Config
from opsctl.engine.client import EngineClient, Readiness
from opsctl.engine.log import EngineLog
from opsctl.engine.process import EngineProcess, Identity, kill_leftovers, leftovers
from opsctl.engine.release import verify
from opsctl.engine.start import RunningEngine
from opsctl.errors import OpsctlError, ReleaseError
from opsctl.profiles.fingerprint import fingerprint
from opsctl.serve import strays
from opsctl.serve.keeper import memory_reader
from opsctl.serve.places import Places
from opsctl.serve.remembered import EngineRecord


@dataclass(frozen=True)
class Found:
    """What became of the engine of an earlier opsctl."""

    engine: RunningEngine | None
    told: str
    killed: tuple[int, ...] = ()


async def recover(
    record: EngineRecord | None, config: Config, places: Places, wanted: str | None
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
        found = await _recover(record, identity, config, places, wanted)
    kept = set() if found is None or found.engine is None else _pids(found.engine)
    unknown = await strays.end(places.engine_log, spare=kept)
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


async def _recover(
    record: EngineRecord, identity: Identity, config: Config, places: Places, wanted: str | None
) -> Found:
    process = EngineProcess.attach(identity)
    why_not = "its main process is gone"
    if process is not None:
        why_not = _mismatch(record, config, wanted) or ""
        if not why_not:
            engine = _engine(record, config, places, process)
            why_not = await _unfit(engine)
            if not why_not:
                return Found(engine, "adopted")
            await engine.client.close()
    return await _end(record, identity, config, places, why_not)


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


def _engine(
    record: EngineRecord, config: Config, places: Places, process: EngineProcess
) -> RunningEngine:
    profile = config.profiles[record.profile]
    return RunningEngine(
        name=record.profile,
        profile=profile,
        port=record.port,
        process=process,
        client=EngineClient(f"http://127.0.0.1:{record.port}"),
        log=EngineLog(places.engine_log),
        memory=memory_reader(profile.engine, places),
        fingerprint=record.fingerprint,
        adopted=True,
    )


async def _unfit(engine: RunningEngine) -> str:
    """Why a living engine cannot be trusted with requests; empty when it can."""
    if await engine.client.readiness() is not Readiness.READY:
        return "it does not say that it is ready"
    try:
        await engine.client.generate_one(engine.profile.timeouts.probe)
    except OpsctlError as error:
        return error.message
    return ""


async def _end(
    record: EngineRecord, identity: Identity, config: Config, places: Places, why: str
) -> Found:
    living = leftovers(identity)
    report = await kill_leftovers(identity)
    profile = config.profiles.get(record.profile)
    release = await verify(
        identity,
        ports=(record.port,),
        memory=memory_reader(profile.engine if profile else "sglang", places),
        deadline=profile.timeouts.release if profile else 60.0,
        segments=report.segments,
    )
    if not release.ok:
        raise ReleaseError(
            f"the engine of an earlier opsctl ({record.profile}, pid {identity.pid}) "
            f"is not released: {release.why}",
            hint="end what is named, or reset the GPU or reboot if it cannot be ended",
        )
    return Found(None, why, tuple(member.pid for member in living))
