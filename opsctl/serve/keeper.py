"""Keeps the one engine: carries out starts and stops, and says what came of them."""

from __future__ import annotations

import asyncio
import os
import traceback
import uuid
from collections.abc import Callable, Coroutine

from opsctl.config.schema import Config, LaunchProfile, ServeConfig
from opsctl.engine import markers
from opsctl.engine.release import MemoryReader, SimulatedMemory
from opsctl.engine.start import Launch, RunningEngine, StartPath
from opsctl.engine.stop import stop
from opsctl.errors import OpsctlError, StartError
from opsctl.gpu.guard import GpuGuard
from opsctl.serve.inputs import EngineLost, Event, NotReleased, Ready, Released, StartFailed
from opsctl.serve.places import Places
from opsctl.system.cgroup import Cgroup


class Keeper:
    """Owns the engine's tasks; reports only by posting events to the owner loop."""

    def __init__(
        self,
        places: Places,
        *,
        post: Callable[[Event], None],
        record: Callable[..., None],
        spawned: Callable[[], None],
        cgroup_parent: Cgroup | None,
    ) -> None:
        self.engine: RunningEngine | None = None
        """The engine that is up, or coming up; None between two engines."""
        self.stage = ""
        self._places = places
        self._post = post
        self._record = record
        self._spawned = spawned
        self._cgroup_parent = cgroup_parent
        self._path: StartPath | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, config: Config, name: str, generation: int) -> None:
        """Begin to start profile `name`; Ready or StartFailed will be posted."""
        profile = config.profiles.get(name)
        if profile is None:  # a reload may have taken it away
            why = f"profile {name!r} is not configured any more"
            self._post(StartFailed(generation, "bad_flags", why))
            return
        simulated = profile.engine == "simulated"
        ledger = self._places.simulated_gpu
        launch = Launch(
            name=name,
            profile=profile,
            nonce=uuid.uuid4().hex,
            port=config.serve.engine_port,
            log_path=self._places.engine_log,
            caller_environment=os.environ,
            memory=memory_reader(profile, config.serve, self._places, self._record),
            cgroup_parent=self._cgroup_parent,
            extra_environment={"OPSCTL_SIMULATED_GPU": str(ledger)} if simulated else {},
        )
        self._path = StartPath(launch, self._reach)
        self._run("start", self._start(self._path, generation))

    def adopt(self, engine: RunningEngine, generation: int) -> None:
        """Take over an engine that an earlier opsctl started."""
        self.engine, self.stage = engine, "ready"
        self._run("watch", self._watch(engine, generation))

    def stop(self, generation: int, *, force: bool) -> None:
        """Begin to end the engine or the start under way; Released or NotReleased follows."""
        self._run("stop", self._stop(generation, force))

    async def close(self) -> None:
        """End all tasks of the keeper; the engine itself is not touched."""
        for name in list(self._tasks):
            await self._cancel(name)

    def _reach(self, stage: str) -> None:
        self.stage = stage
        if stage == "spawned" and self._path is not None:
            self.engine = self._path.engine
            self._spawned()
        self._record("engine_stage", stage=stage)

    async def _start(self, path: StartPath, generation: int) -> None:
        try:
            engine = await path.run()
        except StartError as error:
            self._post(StartFailed(generation, error.kind, error.message))
        except OpsctlError as error:
            self._post(StartFailed(generation, "precondition", error.message))
        except Exception as error:  # a fault of opsctl itself must not end serving
            self._record("internal_error", where="start", traceback=traceback.format_exc())
            self._post(StartFailed(generation, "internal", repr(error)))
        else:
            self._run("watch", self._watch(engine, generation))
            self._post(Ready(generation))

    async def _watch(self, engine: RunningEngine, generation: int) -> None:
        code = await engine.process.wait()
        how = "ended" if code is None else f"ended with exit code {code}"
        engine.log.read_new()
        failure = markers.classify(engine.log.tail(200), code)
        if failure.kind == "unknown":
            self._post(EngineLost(generation, "exited", f"engine process {how}"))
        else:
            why = f"engine process {how}: {failure.what}"
            self._post(EngineLost(generation, failure.kind, why))

    async def _stop(self, generation: int, force: bool) -> None:
        await self._cancel("start")
        await self._cancel("watch")
        path, self._path = self._path, None
        engine = self.engine or (path.engine if path is not None else None)
        if engine is None:
            if path is not None:
                path.launch.memory.close()
            self._post(Released(generation))
            return
        try:
            stopped = await stop(engine, force=force)
        except Exception as error:
            self._record("internal_error", where="stop", traceback=traceback.format_exc())
            self._post(NotReleased(generation, repr(error)))
            return
        self._record(
            "engine_stopped",
            exit_code=stopped.report.exit_code,
            escalated=stopped.report.escalated,
            killed=[member.pid for member in stopped.report.killed],
            seconds=round(stopped.report.seconds, 3),
            released=stopped.release.ok,
            memory="unknown" if stopped.release.memory_held is None else "verified",
        )
        if stopped.release.ok:
            engine.memory.close()
            self.engine = None
            self._post(Released(generation))
        else:
            self._post(NotReleased(generation, stopped.release.why))

    def _run(self, name: str, work: Coroutine[object, object, None]) -> None:
        self._tasks[name] = asyncio.create_task(work)

    async def _cancel(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        if task is None or task.done():
            return
        task.cancel()
        await asyncio.wait([task])


def memory_reader(
    profile: LaunchProfile, serve: ServeConfig, places: Places, record: Callable[..., None]
) -> MemoryReader:
    """What guards the memory that an engine of this profile uses."""
    if profile.engine == "simulated":
        return SimulatedMemory(places.simulated_gpu)
    return GpuGuard(
        profile,
        state_dir=places.root,
        reap_before_start=serve.reap_before_start,
        record=record,
    )
