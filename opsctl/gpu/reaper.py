"""Carry out a plan: end its targets, then see that everything they held is back.

Success is what was observed afterwards, never that a signal was sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence

from opsctl.gpu import cleanup, jit_locks
from opsctl.gpu.model import Census, Holder
from opsctl.gpu.reaper_ladder import climb
from opsctl.gpu.reaper_memory import releases
from opsctl.gpu.reaper_outcome import ENDED, GpuRelease, Outcome, Result
from opsctl.gpu.reaper_plan import Left, Plan, Target, blocking, plan
from opsctl.system import ports as tcp
from opsctl.system import procfs

__all__ = ["Left", "Look", "Outcome", "Plan", "Target", "plan", "reap"]

Look = Callable[[], Awaitable[Census]]
"""Takes a fresh census."""

_POLL = 0.5
_LOOKS = 2  # a driver may be slow once, on a host where much has just ended
_PORTS = 2.0


async def reap(
    plan: Plan,
    *,
    grace: float = 20.0,
    kill_grace: float = 10.0,
    memory_deadline: float = 30.0,
    look: Look | None = None,
    clear_jit_locks: bool = False,
) -> Outcome:
    """End the targets of `plan` and verify; seconds bound each wait.

    `grace` is what a main process gets to end by itself, `kill_grace` what SIGKILL gets to work,
    `memory_deadline` what the driver gets to take the memory back. Without `look` nothing is said
    about memory. All trees are ended at the same time.
    """
    estate = _Estate()
    trees: dict[str | int, list[Target]] = {}
    for target in plan.targets:
        trees.setdefault(target.nonce or target.tree, []).append(target)
    ladders = (
        climb(
            members,
            grace=grace,
            kill_grace=kill_grace,
            spared=plan.spared,
            watched=estate.record,
        )
        for members in trees.values()
    )
    results = tuple(result for tree in await asyncio.gather(*ladders) for result in tree)
    removed = cleanup.remove(estate.merged())
    freed, busy = await _ports(results)
    memory, census = await _memory(plan, results, look, memory_deadline)
    return Outcome(
        results=results,
        memory=memory,
        ports_freed=freed,
        ports_busy=busy,
        removed=removed.removed,
        kept=removed.kept,
        jit_locks=jit_locks.survey(
            estate.caches or jit_locks.of_caller() if clear_jit_locks else estate.caches,
            clear=clear_jit_locks,
        ),
        blocked_by=_blocked_by(plan, census, results),
        driver=(census or plan.census).snapshot.state,
    )


class _Estate:
    """What the processes had, put down before they were signalled."""

    def __init__(self) -> None:
        self.caches: set[jit_locks.Cache] = set()
        self._belongings: list[cleanup.Belongings] = []

    def record(self, pids: Sequence[int]) -> None:
        """Put down the files and caches of living processes."""
        if not pids:
            return
        self._belongings.append(cleanup.record(pids))
        for pid in pids:
            self.caches.update(jit_locks.caches_of(pid))

    def merged(self) -> cleanup.Belongings:
        """Everything that was put down."""
        return cleanup.Belongings(
            frozenset[tuple[str, int]]().union(*(one.segments for one in self._belongings)),
            frozenset[cleanup.TempFile]().union(*(one.files for one in self._belongings)),
            frozenset[int]().union(*(one.uids for one in self._belongings)),
        )


async def _ports(results: Collection[Result]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Ports the targets listened on: those free now, and who has the others."""
    wanted = frozenset(
        port
        for result in results
        if result.target.holder.process is not None
        for port in result.target.holder.process.ports
    )
    if not wanted:
        return (), ()
    end = time.monotonic() + _PORTS
    while True:
        busy = tcp.listeners(wanted)
        if not busy or time.monotonic() >= end:
            break
        await asyncio.sleep(_POLL / 10)
    taken = {entry.port for entry in busy}
    return tuple(sorted(wanted - taken)), tuple(sorted({str(entry) for entry in busy}))


async def _memory(
    plan: Plan, results: Sequence[Result], look: Look | None, deadline: float
) -> tuple[tuple[GpuRelease, ...], Census | None]:
    """Look until the memory of the ended processes is back, at most `deadline` seconds."""
    if look is None:
        return (), None
    ended = [result.target for result in results if result.outcome in ENDED]
    end = time.monotonic() + deadline
    looks = 0
    while True:
        census, looks = await look(), looks + 1
        found = releases(ended, plan.census, census)
        held = any(gpu.released is False for gpu in found)
        silent = bool(found) and census.snapshot.state != "ok"
        if not (held or (silent and looks < _LOOKS)) or time.monotonic() >= end:
            return found, census
        await asyncio.sleep(_POLL)


def _blocked_by(
    plan: Plan, census: Census | None, results: Collection[Result]
) -> tuple[Holder, ...]:
    """Who holds memory still, apart from targets, which have results of their own."""
    done = {(result.target.pid, result.target.start_time) for result in results}
    if census is not None:
        holders: Sequence[Holder] = census.holders
    else:
        holders = [entry.holder for entry in plan.left if _lives(entry.holder)]
    return tuple(
        holder
        for holder in blocking(holders, plan.gpus)
        if (holder.pid, holder.start_time) not in done
    )


def _lives(holder: Holder) -> bool:
    entry = procfs.stat(holder.pid) if holder.pid is not None else None
    return holder.pid is None or (entry is not None and entry.start_time == holder.start_time)
