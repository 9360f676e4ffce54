"""Engines for a measurement: started and stopped by the same verified path as for serving."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from opsctl.config.schema import Config, LaunchProfile
from opsctl.engine import preflight
from opsctl.engine.process import Identity, kill_leftovers
from opsctl.engine.release import MemoryReader, UnknownMemory, verify
from opsctl.engine.start import Launch, RunningEngine, StartPath
from opsctl.engine.stop import stop
from opsctl.errors import PreconditionError, ReleaseError
from opsctl.system.cgroup import Cgroup
from opsctl.system.files import write_atomic

ENGINE = "engine.json"
"""Identity of the engine that runs, so that the next run can end it if this one is killed."""


@dataclass(frozen=True)
class Means:
    """What starting takes. `fit` raises PreconditionError where a profile is known to break."""

    config: Config
    folder: Path
    environment: Mapping[str, str]
    fit: Callable[[str], Awaitable[None]]
    memory: Callable[[LaunchProfile], MemoryReader]
    cgroup_parent: Cgroup | None = None

    @property
    def logs(self) -> Path:
        """Folder of the engines' output; private, as it may hold prompts."""
        return self.folder / "logs"


async def check_all(means: Means, names: tuple[str, ...]) -> None:
    """Refuse before the first engine loads for minutes; raises PreconditionError."""
    means.logs.mkdir(parents=True, exist_ok=True)
    means.logs.chmod(0o700)
    for name in names:
        await preflight.check_files(means.config.profiles[name], log_dir=means.logs)
        await means.fit(name)


async def end_leftover(means: Means) -> int | None:
    """End the engine of a run that was killed in this folder; its pid, None when there was none.

    Raises ReleaseError when it does not go.
    """
    path = means.folder / ENGINE
    try:
        identity = Identity.from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise PreconditionError(
            f"{path} cannot be read, so an engine may be running that nobody knows",
            hint="see `opsctl gpu ps`, end the engine if there is one, remove the file",
        ) from error
    report = await kill_leftovers(identity, grace=10.0)
    release = await verify(
        identity, ports=(), memory=UnknownMemory(), deadline=60.0, segments=report.segments
    )
    if not release.ok:
        raise ReleaseError(
            f"the engine of the run that was killed here (pid {identity.pid}) is not released: "
            f"{release.why}",
            hint="end what is named, or reset the GPU if it cannot be ended",
        )
    path.unlink()
    return identity.pid


@asynccontextmanager
async def running(
    means: Means, name: str, on_stage: Callable[[str], None]
) -> AsyncIterator[RunningEngine]:
    """Start a profile and prove that it serves; afterwards stop it and see its release.

    Raises StartError, PreconditionError, or ReleaseError when something of it is left.
    """
    profile = means.config.profiles[name]
    memory = means.memory(profile)
    launch = Launch(
        name=name,
        profile=profile,
        nonce=uuid.uuid4().hex,
        port=means.config.serve.engine_port,
        log_path=means.logs / f"{name}.log",
        caller_environment=means.environment,
        memory=memory,
        cgroup_parent=means.cgroup_parent,
        extra_environment=_ledger(profile, means.folder),
    )

    def reach(stage: str) -> None:
        if stage == "spawned" and path.engine is not None:
            text = path.engine.process.identity.to_json()
            write_atomic(means.folder / ENGINE, text + "\n")
        on_stage(stage)

    path = StartPath(launch, reach)
    try:
        await means.fit(name)
        yield await path.run()
    finally:
        if path.engine is not None:
            await _end(path.engine, means.folder)
        memory.close()


async def _end(engine: RunningEngine, folder: Path) -> None:
    stopped = await stop(engine)
    if not stopped.release.ok:
        raise ReleaseError(
            f"profile {engine.name!r} has ended but is not released: {stopped.release.why}",
            hint="end what is named; the results measured so far are kept",
        )
    with suppress(FileNotFoundError):
        (folder / ENGINE).unlink()


def ledger(folder: Path) -> Path:
    """Where simulated engines write down what memory they hold."""
    return folder / "run" / "simulated-gpu.jsonl"


def _ledger(profile: LaunchProfile, folder: Path) -> Mapping[str, str]:
    if profile.engine != "simulated":
        return {}
    return {"OPSCTL_SIMULATED_GPU": str(ledger(folder))}
