"""Keeps the one engine: carries out starts and stops, and says what came of them."""

from __future__ import annotations

import asyncio
import os
import traceback
import uuid
from collections.abc import Callable, Coroutine, Mapping

from opsctl.config.schema import Config, FlagValue, LaunchProfile, ServeConfig
from opsctl.engine import markers
from opsctl.engine.release import MemoryReader, SimulatedMemory
from opsctl.engine.start import Launch, RunningEngine, StartPath
from opsctl.engine.stop import stop
from opsctl.errors import OpsctlError, StartError
from opsctl.gpu.guard import GpuGuard
from opsctl.serve.inputs import (
    EngineLost,
    Event,
    NotReleased,
    Ready,
    Released,
    StandbyFailed,
    StandbyReady,
    StartFailed,
)
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
        self.extra_flags: Callable[[str], Mapping[str, FlagValue]] = lambda name: {}
        """What opsctl adds to the flags of a profile."""
        self._places = places
        self._post = post
        self._record = record
        self._spawned = spawned
        self._cgroup_parent = cgroup_parent
        self._path: StartPath | None = None
        self._standby: tuple[int, StartPath] | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, config: Config, name: str, generation: int) -> None:
        """Begin to start profile `name`; Ready or StartFailed will be posted."""
        launch = self._launch(config, name, gated=False)
        if launch is None:
            self._post(StartFailed(generation, "bad_flags", _gone(name)))
            return
        self.stage = ""
        self._path = self._new_path(launch)
        self._run("start", self._start(self._path, generation))

    def prepare(self, config: Config, name: str, standby: int) -> None:
        """Begin to bring a standby up to its gate; StandbyReady or StandbyFailed will be posted."""
        launch = self._launch(config, name, gated=True)
        if launch is None:
            self._post(StandbyFailed(standby, "bad_flags", _gone(name)))
            return
        path = self._new_path(launch)
        self._standby = (standby, path)
        self._run("standby", self._prepare(path, standby))

    def activate(self, generation: int, standby: int) -> None:
        """Let the standby take GPU memory; Ready or StartFailed will be posted."""
        if self._standby is None or self._standby[0] != standby:
            self._post(StartFailed(generation, "exited", "the prepared engine is gone"))
            return
        (_, self._path), self._standby = self._standby, None
        self.engine, self.stage = self._path.engine, ""
        self._spawned()
        self._run("start", self._activate(self._path, generation))

    def drop(self, standby: int) -> None:
        """Begin to end the standby, in whatever state it is."""
        if self._standby is None or self._standby[0] != standby:
            return
        (_, path), self._standby = self._standby, None
        self._run("drop", self._drop(path))

    def _launch(self, config: Config, name: str, *, gated: bool) -> Launch | None:
        profile = config.profiles.get(name)
        if profile is None:  # a reload may have taken it away
            return None
        simulated = profile.engine == "simulated"
        ledger = self._places.simulated_gpu
        used = None if self.engine is None else self.engine.log.path
        logs = [path for path in self._places.engine_logs if path != used]
        return Launch(
            name=name,
            profile=profile,
            nonce=uuid.uuid4().hex,
            port=0 if gated else config.serve.engine_port,
            log_path=logs[0],
            caller_environment=os.environ,
            memory=memory_reader(profile, config.serve, self._places, self._record),
            cgroup_parent=self._cgroup_parent,
            extra_environment={"OPSCTL_SIMULATED_GPU": str(ledger)} if simulated else {},
            extra_flags=self.extra_flags(name),
            gated=gated,
        )

    def _new_path(self, launch: Launch) -> StartPath:
        path = StartPath(launch, lambda stage: self._reach(path, stage))
        return path

    def adopt(self, engine: RunningEngine, generation: int) -> None:
        """Take over an engine that an earlier opsctl started."""
        self.engine, self.stage = engine, "ready"
        self._run("watch", self._watch(engine, generation))

    def stop(self, generation: int, *, force: bool) -> None:
        """Begin to end the engine or the start under way; Released or NotReleased follows."""
        self._run("stop", self._stop(generation, force))

    async def close(self) -> None:
        """End all tasks of the keeper; the engine itself is not touched, a standby is."""
        await self._finish("drop")
        for name in list(self._tasks):
            await self._cancel(name)

    def _reach(self, path: StartPath, stage: str) -> None:
        standby = path is not self._path
        if not standby:
            self.stage = stage
            if stage == "spawned":
                self.engine = path.engine
                self._spawned()
        self._record("engine_stage", stage=stage, standby=standby)

    async def _prepare(self, path: StartPath, standby: int) -> None:
        try:
            await path.prepare()
        except StartError as error:
            kind = "unsupported" if _knows_no_gate(error) else error.kind
            self._post(StandbyFailed(standby, kind, error.message))
        except OpsctlError as error:
            self._post(StandbyFailed(standby, "precondition", error.message))
        except Exception as error:
            self._record("internal_error", where="prepare", traceback=traceback.format_exc())
            self._post(StandbyFailed(standby, "internal", repr(error)))
        else:
            self._post(StandbyReady(standby))
            assert path.engine is not None  # noqa: S101 - it has been prepared
            code = await path.engine.process.wait()
            why = f"the prepared engine ended with exit code {code}"
            self._post(StandbyFailed(standby, "exited", why))

    async def _activate(self, path: StartPath, generation: int) -> None:
        await self._cancel("standby")  # it watched the process so far
        await self._start(path, generation)

    async def _drop(self, path: StartPath) -> None:
        await self._cancel("standby")
        path.launch.memory.close()
        if path.engine is None:
            return
        stopped = await stop(path.engine, force=True)
        self._record("standby_ended", released=stopped.release.ok, why=stopped.release.why)

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
        await self._finish("drop")
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

    async def _finish(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        if task is not None:
            await asyncio.wait([task])

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


def _gone(name: str) -> str:
    return f"profile {name!r} is not configured any more"


def _knows_no_gate(error: StartError) -> bool:
    return error.kind == "bad_flags" and "gated-launch-port" in error.message
