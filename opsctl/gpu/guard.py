"""Before a start: end what is ours and dead, refuse what others hold. After a stop: memory back.

A launch into half-released memory ends in an out-of-memory error after minutes of loading. So a
start waits for nothing and hopes for nothing: who holds the GPUs of the profile is looked up, and
the refusal names the holder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Literal

from opsctl.config.schema import LaunchProfile
from opsctl.config.units import readable_size
from opsctl.errors import PreconditionError
from opsctl.gpu import engines, names, survey
from opsctl.gpu.memory import EngineIdentity, GpuMemory
from opsctl.gpu.model import Census, Holder
from opsctl.gpu.reaper import plan, reap
from opsctl.profiles import gpus as placement
from opsctl.system import procfs

Reap = Literal["own", "stray", "never"]


class GpuGuard:
    """Watches over the GPUs of one launch profile. Does nothing on a host without NVML."""

    def __init__(
        self,
        profile: LaunchProfile,
        *,
        state_dir: Path,
        reap_before_start: Reap,
        record: Callable[..., None],
    ) -> None:
        self._profile = profile
        self._state_dir = str(state_dir)
        self._reap = reap_before_start
        self._record = record
        self._memory = GpuMemory()

    async def before_start(self) -> None:
        """End what may be ended; raises PreconditionError when the GPUs are not free then."""
        census = await self._look()
        if census.snapshot.state == "absent":
            return
        if census.snapshot.state != "ok":
            raise PreconditionError(
                f"the GPU driver is {census.snapshot.state}: {census.snapshot.why}",
                hint="see `opsctl gpu ps`; a reset or a reboot may be needed",
            )
        wanted = self._indices(census)
        if self._reap != "never":
            await self._end_leftovers(census, wanted)
        holders = await self._memory.busy(wanted)
        if holders:
            raise PreconditionError(
                "GPU memory is held: " + "; ".join(map(_named, holders)),
                hint="see `opsctl gpu ps`; `opsctl gpu reap` ends what may be ended",
            )
        await self._memory.before_start(wanted)

    async def before_activation(self) -> None:
        """Note what is in use, the standby's own contexts included, before it takes memory."""
        census = await self._look()
        if census.snapshot.state == "ok":
            await self._memory.before_start(self._indices(census))

    async def observe(self, identity: EngineIdentity, pids: Collection[int]) -> None:
        """Note which GPUs a living engine uses."""
        await self._memory.observe(identity, pids)

    async def held(self, identity: EngineIdentity) -> int | None:
        """Bytes the engine still holds; None when it cannot be told."""
        return await self._memory.held(identity)

    def close(self) -> None:
        """End the helper that reads NVML."""
        self._memory.close()

    async def _look(self) -> Census:
        return await survey.look_async([self._state_dir])

    def _indices(self, census: Census) -> tuple[int, ...] | None:
        return placement.indices(self._profile, [gpu.uuid for gpu in census.snapshot.gpus])

    async def _end_leftovers(self, census: Census, wanted: Sequence[int] | None) -> None:
        """Only trees that hold these very GPUs: another instance may yet adopt its own engine."""
        directories = engines.state_dirs([self._state_dir], os.environ, census.processes)
        supervisors = {p.pid for p in census.processes.values() if names.is_opsctl(p)}
        every = [gpu.index for gpu in census.snapshot.gpus]
        intended = plan(
            census,
            gpus=every if wanted is None else wanted,
            include=("stray",) if self._reap == "stray" else (),
            caller_uid=os.geteuid(),
            me=os.getpid(),
            spared=procfs.ancestors(os.getpid()) | supervisors,
            engines=engines.known(directories),
        )
        if not intended.targets:
            return
        outcome = await reap(intended, look=self._look)
        self._record(
            "reaped_before_start",
            targets=[
                {"pid": r.target.pid, "why": r.target.why, "outcome": r.outcome}
                for r in outcome.results
            ],
        )


def _named(holder: Holder) -> str:
    memory = "memory" if holder.memory is None else readable_size(holder.memory)
    where = f" of GPU {', '.join(map(str, holder.gpus))}" if holder.gpus else ""
    if holder.process is not None:
        who = f"pid {holder.pid} ({holder.process.title[:60]}, user {holder.process.user})"
    elif holder.pid is not None:
        who = f"pid {holder.pid}"
    else:
        who = "no process that can be seen"
    return f"{memory}{where} by {who}: {holder.verdict}"
