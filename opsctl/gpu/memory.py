"""Is an engine's GPU memory back? Asked before the next start, answered by what the driver says.

The sum over an engine's processes is the wrong question once they are dead: what matters is that
their GPUs hold no more than before the start. So a baseline is taken before a start, the GPUs an
engine uses are noted while it lives, and afterwards the part of their memory that nobody else
owns is compared. Other tenants may come and go meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from opsctl.gpu import survey
from opsctl.gpu.census_memory import slack
from opsctl.gpu.model import Census, Gpu, Holder, Snapshot, Verdict
from opsctl.gpu.nvml import Nvml
from opsctl.system import procfs

TOLERANCE = 64 << 20
"""Bytes of one GPU that may be in use beyond the baseline: the driver's own ups and downs."""
ENOUGH_TO_MATTER = 1 << 30
"""Bytes below which a holder (a desktop, a monitor) does not keep an engine from starting."""

_SPACING = 0.2  # seconds between readings, however often the question is asked
_KEEP = 2.0  # seconds the helper stays after the last question
_ABSENT_FOR = 60.0  # seconds a host without a GPU is not asked again
_NONCE = "OPSCTL_NONCE"

Read = Callable[[], Awaitable[Snapshot]]
Look = Callable[[], Awaitable[Census]]


class EngineIdentity(Protocol):
    """What of an engine's identity is needed to know its processes."""

    @property
    def nonce(self) -> str:
        """The launch nonce in the environment of its processes."""

    @property
    def session(self) -> int:
        """The session its main process leads."""


@dataclass(frozen=True)
class _Level:
    """Memory of one GPU without the driver's reserve, and what each process has of it."""

    used: int
    rows: Mapping[int, int | None]


class GpuMemory:
    """Tells how much GPU memory an engine holds, alive or dead. Used from one event loop.

    On a host without NVML every answer is None, at no cost.
    """

    def __init__(
        self,
        gpus: Sequence[int] | None = None,
        *,
        read: Read | None = None,
        look: Look | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`gpus` are the ones engines may use, by NVML index; None when it is not known."""
        self._gpus = None if gpus is None else frozenset(gpus)
        self._nvml = Nvml(keep=_KEEP)
        self._read = read or self._nvml.read_async
        self._look = look or survey.look_async
        self._clock = clock
        self._baseline: dict[int, _Level] = {}
        self._seen: dict[str, set[int]] = {}
        self._members: set[tuple[int, int]] = set()
        self._absent_until = float("-inf")
        self._next = float("-inf")

    async def before_start(self, gpus: Sequence[int] | None = None) -> None:
        """Note what is in use before an engine starts; `gpus` when they are known by now."""
        if gpus is not None:
            self._gpus = frozenset(gpus)
        snapshot = await self._snapshot()
        levels = {gpu.index: _level(gpu, snapshot) for gpu in snapshot.gpus} if snapshot else {}
        self._baseline = {index: level for index, level in levels.items() if level is not None}

    async def observe(self, identity: EngineIdentity, pids: Collection[int]) -> frozenset[int]:
        """Note which GPUs the processes of a living engine use; all that were ever seen."""
        snapshot = await self._snapshot()
        if snapshot is not None:
            self._note(identity, snapshot, pids)
        return frozenset(self._seen.get(identity.nonce, ()))

    async def held(self, identity: EngineIdentity) -> int | None:
        """Bytes the engine still holds, 0 when all is back; None when that cannot be told.

        Without a baseline (an engine that was taken over), memory that no living process owns
        counts as the engine's, beyond what is granted to the driver (`census_memory.slack`).
        """
        snapshot = await self._snapshot()
        if snapshot is None:
            return None
        ours = [use.pid for use in snapshot.uses if self._belongs(identity, use.pid)]
        self._note(identity, snapshot, ours)
        watched = self._watched(identity)
        known = {gpu.index: gpu for gpu in snapshot.gpus}
        if not watched:
            return None
        parts = [
            self._excess(identity, known[index], snapshot) if index in known else None
            for index in sorted(watched)
        ]
        total = sum(part for part in parts if part is not None)
        return None if total == 0 and None in parts else total

    async def busy(
        self, gpus: Sequence[int] | None = None, *, at_least: int = ENOUGH_TO_MATTER
    ) -> tuple[Holder, ...] | None:
        """Who keeps an engine from starting on `gpus` (None: on any); None when it is unknown.

        Holders of at least `at_least` bytes, or of an amount NVML does not tell, and faults.
        """
        if self._clock() < self._absent_until:
            return None
        census = await self._look()
        if not self._usable(census.snapshot):
            return None
        wanted = None if gpus is None else frozenset(gpus)
        return tuple(
            holder
            for holder in census.holders
            if (wanted is None or not holder.gpus or wanted & frozenset(holder.gpus))
            and _matters(holder, at_least)
        )

    def close(self) -> None:
        """End the helper that reads NVML."""
        self._nvml.close()

    async def _snapshot(self) -> Snapshot | None:
        """A reading that began after the question; None when it says nothing about memory."""
        if self._clock() < self._absent_until:
            return None
        await asyncio.sleep(max(self._next - self._clock(), 0))
        snapshot = await self._read()
        self._next = self._clock() + _SPACING
        return snapshot if self._usable(snapshot) else None

    def _usable(self, snapshot: Snapshot) -> bool:
        if snapshot.state == "absent":
            self._absent_until = self._clock() + _ABSENT_FOR
        return snapshot.state == "ok"

    def _note(self, identity: EngineIdentity, snapshot: Snapshot, pids: Collection[int]) -> None:
        used = {use.gpu for use in snapshot.uses if use.pid in pids}
        self._seen.setdefault(identity.nonce, set()).update(used)
        stats = [found for pid in pids if (found := procfs.stat(pid)) is not None]
        self._members.update((found.pid, found.start_time) for found in stats)

    def _belongs(self, identity: EngineIdentity, pid: int) -> bool:
        """Whether a living process is one of the engine's."""
        found = procfs.stat(pid)
        return found is not None and (
            (pid, found.start_time) in self._members
            or found.session == identity.session
            or procfs.environ_value(pid, _NONCE) == identity.nonce
        )

    def _is_others(self, identity: EngineIdentity, pid: int) -> bool:
        """Whether a row is certainly not the engine's: its process lives here and is another's.

        A number nobody has here may be a dead process of the engine that the driver still lists.
        """
        found = procfs.stat(pid)
        return found is not None and found.state not in "ZX" and not self._belongs(identity, pid)

    def _watched(self, identity: EngineIdentity) -> Collection[int]:
        seen = self._seen.get(identity.nonce, set())
        return seen or (self._baseline.keys() if self._gpus is None else self._gpus)

    def _excess(self, identity: EngineIdentity, gpu: Gpu, snapshot: Snapshot) -> int | None:
        """Bytes beyond what was there before and what others own now; 0 within the tolerance."""
        now, before = _level(gpu, snapshot), self._baseline.get(gpu.index)
        if now is None:
            return None
        others = [
            memory
            for pid, memory in now.rows.items()
            if (before is not None and pid in before.rows) or self._is_others(identity, pid)
        ]
        mine = _subtract(now.used, others)
        if before is None:
            return None if mine is None else _beyond(mine, slack(gpu))
        unowned = _subtract(before.used, before.rows.values())
        if mine is None or unowned is None:  # NVML does not tell per process: the plain difference
            return _beyond(now.used - before.used, TOLERANCE)
        return _beyond(mine - unowned, TOLERANCE)


def _level(gpu: Gpu, snapshot: Snapshot) -> _Level | None:
    if gpu.memory_used is None or gpu.fault is not None:
        return None
    rows = {use.pid: use.memory for use in snapshot.uses if use.gpu == gpu.index}
    return _Level(gpu.memory_used - (gpu.memory_reserved or 0), rows)


def _subtract(used: int, owned: Collection[int | None]) -> int | None:
    known = [memory for memory in owned if memory is not None]
    return used - sum(known) if len(known) == len(owned) else None


def _beyond(excess: int, tolerance: int) -> int:
    return excess if excess > tolerance else 0


def _matters(holder: Holder, at_least: int) -> bool:
    if holder.verdict is Verdict.FAULT:
        return True
    if holder.memory is None:
        return bool(holder.per_gpu)
    return holder.memory >= at_least
