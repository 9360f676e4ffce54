"""What was read of GPUs and processes, and what was concluded: plain data, no reading.

None always means unknown (not supported, not readable); it is never a zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

DriverState = Literal["ok", "absent", "fault", "unresponsive"]


@dataclass(frozen=True)
class Gpu:
    """One GPU as NVML describes it: memory in bytes, power in watts, temperature in °C."""

    index: int
    uuid: str | None = None
    name: str | None = None
    compute_capability: tuple[int, int] | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    """Includes what the driver reserves for itself."""
    memory_reserved: int | None = None
    power: float | None = None
    power_limit: float | None = None
    temperature: int | None = None
    utilization: int | None = None
    """Percent of the last sample period in which a kernel ran; proves nothing about progress."""
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_generation_max: int | None = None
    pcie_width_max: int | None = None
    bus_id: str | None = None
    minor: int | None = None
    """N of /dev/nvidiaN."""
    persistence: bool | None = None
    mig: bool | None = None
    fault: str | None = None
    """Why this GPU cannot be used, in words; None when nothing speaks against it."""


@dataclass(frozen=True)
class GpuUse:
    """One row of NVML's process tables. `pid` may be one of another pid namespace."""

    gpu: int
    pid: int
    kind: Literal["compute", "graphics", "mps"]
    memory: int | None = None


@dataclass(frozen=True)
class Snapshot:
    """Everything one reading of NVML gave."""

    state: DriverState
    why: str = ""
    driver: str | None = None
    cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()
    uses: tuple[GpuUse, ...] = ()


@dataclass(frozen=True)
class HostProcess:
    """One process as /proc describes it; times in clock ticks since boot."""

    pid: int
    start_time: int
    state: str
    ppid: int
    session: int
    group: int
    comm: str
    title: str
    """The command line, secrets hidden; the comm where there is none."""
    uid: int | None = None
    user: str | None = None
    cgroup: str | None = None
    nonce: str | None = None
    """OPSCTL_NONCE of its environment; None when absent or not readable."""
    devices: frozenset[str] | None = None
    """Open or mapped /dev/nvidia* files; None when not readable."""
    ports: tuple[int, ...] = ()
    age: float | None = None
    wchan: str | None = None
    """Kernel function it sleeps or spins in; of the driver's where one is on its stack."""
    threads: int = 1
    """Threads that live; read for zombies only."""


@dataclass(frozen=True)
class KnownEngine:
    """An engine from a state file of opsctl: `alive` when its supervisor and main process are."""

    nonce: str
    pid: int
    start_time: int
    session: int
    cgroup: str | None
    alive: bool
    where: str
    """State directory it was recorded in."""
    gone: str = ""
    """Who is gone when it is not alive, such as `its supervisor (pid 4711)`."""
    main_alive: bool = False


class Verdict(StrEnum):
    """What a holder of GPU memory is."""

    MANAGED = "managed"
    ORPHAN = "orphan"
    STRAY = "stray engine"
    ZOMBIE = "zombie"
    STUCK = "stuck"
    FOREIGN = "foreign"
    UNMAPPED = "unmapped"
    PHANTOM = "phantom"
    FAULT = "fault"


@dataclass(frozen=True)
class Holder:
    """A process (or, without `process`, memory nobody owns) with its verdict and the evidence."""

    verdict: Verdict
    pid: int | None
    start_time: int | None
    gpus: tuple[int, ...]
    memory: int | None
    """Bytes over all its GPUs; None when NVML does not say."""
    evidence: tuple[str, ...]
    process: HostProcess | None = None
    per_gpu: Mapping[int, int | None] = field(default_factory=dict)
    advice: str | None = None
    """What to do next, in words."""


@dataclass(frozen=True)
class Census:
    """Who holds what, and why it is believed."""

    snapshot: Snapshot
    holders: tuple[Holder, ...]
    processes: Mapping[int, HostProcess] = field(default_factory=dict)
    """Everything that was read of /proc, for explanations; most of it concerns no GPU."""
    engines: tuple[KnownEngine, ...] = ()

    def of(self, pid: int) -> Holder | None:
        """The verdict about one process; rows of NVML that nobody could map come second."""
        found = [holder for holder in self.holders if holder.pid == pid]
        return min(found, key=lambda holder: holder.process is None, default=None)
