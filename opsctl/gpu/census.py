"""Who holds GPU memory, and why that is believed. Pure: readings go in, verdicts come out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from opsctl.gpu import census_memory
from opsctl.gpu.census_memory import KernelFault
from opsctl.gpu.census_rules import Scene, judge, strays
from opsctl.gpu.kinship import Kin
from opsctl.gpu.mapping import Mapped, attribute, gpus_of
from opsctl.gpu.model import Census, Holder, HostProcess, KnownEngine, Snapshot, Verdict


def census(
    snapshot: Snapshot,
    processes: Mapping[int, HostProcess],
    engines: Sequence[KnownEngine],
    *,
    me: int,
    host_pids: bool | None = None,
    xids: Sequence[KernelFault] = (),
) -> Census:
    """Join NVML's view with that of /proc and judge every process that is ours or near a GPU.

    `me` is the process number of this opsctl; `host_pids` whether it sees the host's process
    numbers (None: unknown). Every row of NVML ends up in exactly one holder.
    """
    mapped = attribute(snapshot, processes, host_pids=host_pids)
    kin = Kin(processes, engines, me)
    scene = Scene(kin, mapped, strays(kin, mapped))
    holders = [
        *census_memory.faults(snapshot, xids),
        *_processes(snapshot, scene),
        *_unmapped(mapped, host_pids),
        *census_memory.phantoms(snapshot, mapped, processes, host_pids=host_pids),
    ]
    return Census(snapshot, tuple(holders), processes, tuple(engines))


def _processes(snapshot: Snapshot, scene: Scene) -> Iterator[Holder]:
    for pid, process in sorted(scene.kin.processes.items()):
        finding = judge(process, scene)
        if finding is None:
            continue
        per_gpu = scene.mapped.of(pid)
        yield Holder(
            verdict=finding.verdict,
            pid=pid,
            start_time=process.start_time,
            gpus=tuple(sorted(per_gpu)) or gpus_of(process.devices, snapshot),
            memory=_sum(per_gpu),
            evidence=finding.evidence,
            process=process,
            per_gpu=per_gpu,
            advice=finding.advice,
        )


def _unmapped(mapped: Mapped, host_pids: bool | None) -> Iterator[Holder]:
    for pid, why in sorted(mapped.unmapped.items()):
        yield Holder(
            verdict=Verdict.UNMAPPED,
            pid=pid,
            start_time=None,
            gpus=tuple(sorted(mapped.rows[pid])),
            memory=_sum(mapped.rows[pid]),
            evidence=(why,),
            per_gpu=mapped.rows[pid],
            advice=(
                "look again in a moment; if it stays, a container may hold it, or the driver"
                if host_pids
                else "report only: look from the host, outside of this container"
            ),
        )


def _sum(per_gpu: Mapping[int, int | None]) -> int | None:
    known = [memory for memory in per_gpu.values() if memory is not None]
    return sum(known) if known and len(known) == len(per_gpu) else None
