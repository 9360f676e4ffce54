"""Whether the memory of ended processes is back, judged from two censuses; pure."""

from __future__ import annotations

from collections.abc import Sequence

from opsctl.gpu.mapping import per_process
from opsctl.gpu.model import Census, Gpu, Holder, Snapshot
from opsctl.gpu.reaper_outcome import GpuRelease
from opsctl.gpu.reaper_plan import Target, expected_back

TOLERANCE = 256 * 2**20
"""Bytes by which the part of a GPU that no process owns may wander between two readings."""


def releases(ended: Sequence[Target], before: Census, after: Census) -> tuple[GpuRelease, ...]:
    """For each GPU the ended targets held, whether it came back, and who holds the rest."""
    expected = expected_back(ended)
    pids = frozenset(target.pid for target in ended)
    return tuple(
        _release(gpu, pids, before.snapshot, after, expected.get(gpu))
        for gpu in sorted({gpu for target in ended for gpu in target.holder.gpus})
    )


def _release(
    number: int, ended: frozenset[int], before: Snapshot, census: Census, expected: int | None
) -> GpuRelease:
    after = census.snapshot
    was, now = _gpu(before, number), _gpu(after, number)
    used_before = was.memory_used if was else None
    if after.state != "ok" or now is None or now.fault:
        why = (now.fault if now else None) or after.why or f"driver {after.state}"
        return GpuRelease(number, used_before, None, None, f"unknown: {why}")
    listed = sorted({use.pid for use in after.uses if use.gpu == number} & ended)
    if listed:
        why = f"the driver still lists {', '.join(map(str, listed))}"
        return GpuRelease(number, used_before, now.memory_used, False, why)
    released = _released(was, now, before, after, expected)
    why = {True: "released", False: "memory is not back", None: "unknown: NVML gives no figures"}[
        released
    ]
    others = _others(number, census.holders)
    return GpuRelease(number, used_before, now.memory_used, released, why + others)


def _released(
    was: Gpu | None, now: Gpu, before: Snapshot, after: Snapshot, expected: int | None
) -> bool | None:
    """Compare what no process owns: it must not have grown by what the dead ones held.

    Others may take memory meanwhile, so that the plain difference says little.
    """
    if was is None or was.memory_used is None or now.memory_used is None:
        return None
    nobodys_before, nobodys_after = _nobodys(was, before), _nobodys(now, after)
    if nobodys_before is not None and nobodys_after is not None:
        return nobodys_after <= nobodys_before + TOLERANCE
    if expected is None:
        return None
    return now.memory_used <= was.memory_used - expected + TOLERANCE


def _nobodys(gpu: Gpu, snapshot: Snapshot) -> int | None:
    """Bytes in use that no row of the process tables explains; a pid counts once."""
    rows = [row[gpu.index] for row in per_process(snapshot).values() if gpu.index in row]
    known = [held for held in rows if held is not None]
    if gpu.memory_used is None or len(known) < len(rows):
        return None
    return gpu.memory_used - sum(known)


def _others(number: int, holders: Sequence[Holder]) -> str:
    named = [
        f"{holder.verdict} {holder.pid or ''} {holder.process.title if holder.process else ''}"
        for holder in holders
        if number in holder.gpus
    ]
    return "; still there: " + ", ".join(" ".join(name.split()) for name in named) if named else ""


def _gpu(snapshot: Snapshot, number: int) -> Gpu | None:
    return next((gpu for gpu in snapshot.gpus if gpu.index == number), None)
