"""Nothing is started before the last engine is seen gone: processes, ports, segments, memory.

A fixed pause after a kill is a guess; a launch into half-released memory ends in an out-of-memory
error minutes later. So the release is observed, against a deadline, and what is left is named.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from opsctl.config.units import readable_size
from opsctl.engine.segments import Segment, remaining, remove_unused
from opsctl.engine.tree import Identity, Key, Member, find, living
from opsctl.system import ports as tcp
from opsctl.system import procfs

_POLL = 0.05


@dataclass(frozen=True)
class Release:
    """What a stopped engine still holds. `memory_held` is in bytes; None means unknown."""

    ok: bool
    members: tuple[Member, ...]
    ports_busy: tuple[int, ...]
    shm_left: tuple[str, ...]
    memory_held: int | None
    why: str


class MemoryReader(Protocol):
    """Guards accelerator memory around the life of an engine."""

    async def before_start(self) -> None:
        """Raise PreconditionError when the memory an engine needs is held by somebody."""

    async def before_activation(self) -> None:
        """Note what is in use before an engine that waits at its gate takes memory."""

    async def observe(self, identity: Identity, pids: Collection[int]) -> None:
        """Note where the processes of a living engine hold memory."""

    async def held(self, identity: Identity) -> int | None:
        """Bytes; None when it cannot be told, which is not the same as none."""

    def close(self) -> None:
        """Nothing more will be asked."""


class UnknownMemory:
    """For hosts whose accelerator memory cannot be read."""

    async def before_start(self) -> None:
        """Nothing is known, nothing is refused."""

    async def before_activation(self) -> None:
        """There is nothing to note."""

    async def observe(self, identity: Identity, pids: Collection[int]) -> None:
        """There is nothing to note."""

    async def held(self, identity: Identity) -> int | None:
        """Unknown."""
        return None

    def close(self) -> None:
        """There is nothing to close."""


class SimulatedMemory:
    """Reads the ledger that simulated engines write in place of GPU memory.

    An entry is held while its process lives and for `linger_s` after it was first seen dead;
    null means for ever.
    """

    def __init__(self, ledger_path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = ledger_path
        self._clock = clock
        self._dead_since: dict[Key, float] = {}

    async def before_start(self) -> None:
        """The release of the last engine has been observed; nobody else uses the ledger."""

    async def before_activation(self) -> None:
        """The ledger says who holds what at any time."""

    async def observe(self, identity: Identity, pids: Collection[int]) -> None:
        """The ledger says who holds what at any time."""

    def close(self) -> None:
        """There is nothing to close."""

    async def held(self, identity: Identity) -> int | None:
        """Sum of what the engine's ledger entries hold; None when the ledger cannot be read."""
        try:
            text = self._path.read_text(errors="replace")
        except FileNotFoundError:
            return 0  # no simulated engine has taken memory yet
        except OSError:
            return None
        return sum(
            entry.bytes
            for entry in map(_parse_entry, text.splitlines())
            if entry is not None and entry.nonce == identity.nonce and self._is_held(entry)
        )

    def _is_held(self, entry: _Entry) -> bool:
        found = procfs.stat(entry.pid)
        if found and found.start_time == entry.start_time and found.state not in "ZX":
            return True
        if entry.linger is None:
            return True
        since = self._dead_since.setdefault((entry.pid, entry.start_time), self._clock())
        return self._clock() - since < entry.linger


@dataclass(frozen=True)
class _Entry:
    nonce: str
    pid: int
    start_time: int
    bytes: int
    linger: float | None


def _parse_entry(line: str) -> _Entry | None:
    try:
        data = json.loads(line)
        linger = data.get("linger_s", 0)
        return _Entry(
            nonce=str(data["nonce"]),
            pid=int(data["pid"]),
            start_time=int(data["start_time"]),
            bytes=int(data["bytes"]),
            linger=None if linger is None else float(linger),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None  # half a line: its writer died


async def verify(
    identity: Identity,
    *,
    ports: Sequence[int],
    memory: MemoryReader,
    deadline: float,
    segments: Collection[Segment] = (),
    hosts: Sequence[str] = ("127.0.0.1",),
) -> Release:
    """Watch until the engine holds nothing any more, at most `deadline` seconds.

    `segments` is the shared memory its members used (`StopReport.segments`); what is left of it
    is removed once all members are dead. Unknown memory does not block, and is said.
    """
    end = time.monotonic() + deadline
    while True:
        release = await _look(identity, ports, memory, segments, hosts)
        if release.ok or time.monotonic() >= end:
            return release
        await asyncio.sleep(_POLL)


async def _look(
    identity: Identity,
    ports: Sequence[int],
    memory: MemoryReader,
    segments: Collection[Segment],
    hosts: Sequence[str],
) -> Release:
    members = living(find(identity))
    if not members:
        remove_unused(segments)
    busy = tuple(port for port in ports if not tcp.is_free(port, hosts))
    left = tuple(sorted(path for path, _ in remaining(segments)))
    held = await memory.held(identity)
    holders = (
        *(f"process {member}" for member in members),
        *_port_holders(busy),
        *(f"shared memory {path}" for path in left),
        *([f"{readable_size(held)} of accelerator memory"] if held else []),
    )
    unknown = "; accelerator memory is unknown" if held is None else ""
    why = ("still held: " + ", ".join(holders) if holders else "released") + unknown
    return Release(not holders, members, busy, left, held, why)


def _port_holders(busy: Sequence[int]) -> tuple[str, ...]:
    if not busy:
        return ()
    named = {entry.port: str(entry) for entry in tcp.listeners(busy)}
    return tuple(named.get(port, f"port {port}") for port in busy)
