"""Memory that no process accounts for, and GPUs that cannot be used. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from opsctl.gpu.mapping import Mapped
from opsctl.gpu.model import Gpu, Holder, HostProcess, Snapshot, Verdict

MIB = 1 << 20
SLACK = 512 * MIB
"""What is always granted to the driver beyond its stated reserve: contexts, page tables, ECC."""
SLACK_SHARE = 0.01
UNSTATED = 2
"""The slack is this many times as large where the driver does not state its reserve."""


class KernelFault(Protocol):
    """A message of the driver in the kernel log (`kernel_log.Xid`)."""

    @property
    def code(self) -> int:
        """Number of the Xid."""

    @property
    def bus_id(self) -> str | None:
        """PCI address of the GPU, as the kernel writes it."""

    @property
    def text(self) -> str:
        """The message."""

    @property
    def remedy(self) -> str:
        """`none`, `restart engine`, `reset` or `reboot`."""


def slack(gpu: Gpu) -> int:
    """Bytes of one GPU that may be in use without an owner and without being a leak.

    512 MiB or 1 % of its memory, whichever is more; twice that where the driver does not say
    what it reserves for itself.
    """
    share = int((gpu.memory_total or 0) * SLACK_SHARE)
    return max(SLACK, share) * (UNSTATED if gpu.memory_reserved is None else 1)


def phantoms(
    snapshot: Snapshot,
    mapped: Mapped,
    processes: Mapping[int, HostProcess],
    *,
    host_pids: bool | None,
) -> Iterator[Holder]:
    """Memory in use beyond what the listed processes and the driver's reserve explain."""
    for gpu in snapshot.gpus:
        unexplained = _unexplained(gpu, mapped)
        if unexplained is None or unexplained <= slack(gpu):
            continue
        unlisted = _openers(gpu, mapped, processes)
        yield Holder(
            verdict=Verdict.PHANTOM,
            pid=None,
            start_time=None,
            gpus=(gpu.index,),
            memory=unexplained,
            evidence=tuple(_phantom_evidence(gpu, unexplained, unlisted, host_pids)),
            per_gpu={gpu.index: unexplained},
            advice=_phantom_advice(unlisted, host_pids),
        )


def _unexplained(gpu: Gpu, mapped: Mapped) -> int | None:
    """Bytes; None where that cannot be said: memory of a process untold, or split by MIG."""
    rows = [row[gpu.index] for row in mapped.rows.values() if gpu.index in row]
    if gpu.memory_used is None or gpu.mig or None in rows:
        return None
    return gpu.memory_used - (gpu.memory_reserved or 0) - sum(row or 0 for row in rows)


def _openers(gpu: Gpu, mapped: Mapped, processes: Mapping[int, HostProcess]) -> list[int]:
    """A program of CUDA's opens all GPUs, so one that is listed anywhere is no suspect."""
    ending = f"/nvidia{gpu.minor}"
    return sorted(
        process.pid
        for process in processes.values()
        if process.pid not in mapped.rows
        and any(name.endswith(ending) for name in process.devices or ())
    )


def _phantom_evidence(
    gpu: Gpu, unexplained: int, unlisted: list[int], host_pids: bool | None
) -> Iterator[str]:
    yield (
        f"{gib(unexplained)} are in use beyond the listed processes and the driver's reserve "
        f"({gib(gpu.memory_reserved or 0)} stated, {gib(slack(gpu))} granted)"
    )
    if unlisted:
        yield f"its device is open in {_numbers(unlisted)}, which NVML does not list"
    elif host_pids:
        yield "no process of this host that can be seen has its device open without being listed"
    else:
        yield "opsctl sees only the processes of its own pid namespace; others may hold it"


def _phantom_advice(unlisted: list[int], host_pids: bool | None) -> str:
    if unlisted:
        return f"look at {_numbers(unlisted)} with `opsctl gpu explain PID`"
    if not host_pids:
        return "look again from the host, outside of this container"
    return "nothing can be ended: reset the GPU when nothing uses it, or reboot"


def faults(snapshot: Snapshot, xids: Sequence[KernelFault]) -> Iterator[Holder]:
    """What keeps single GPUs, or all of them, from being used."""
    if snapshot.state in {"fault", "unresponsive"}:
        advice = {
            "fault": "reload the driver or reboot; then look again",
            "unresponsive": "signals do not help: look at the kernel log, reset or reboot",
        }[snapshot.state]
        yield _fault((), (f"the driver is {_WORDS[snapshot.state]}: {snapshot.why}",), advice)
    serious = [xid for xid in xids if xid.remedy in {"reset", "reboot"}]
    known = {_bus(gpu.bus_id) for gpu in snapshot.gpus} - {None}
    for gpu in snapshot.gpus:
        mine = [xid for xid in serious if gpu.bus_id and _bus(xid.bus_id) == _bus(gpu.bus_id)]
        if gpu.fault or mine:
            said = [gpu.fault] if gpu.fault else []
            yield _fault((gpu.index,), (*said, *map(_xid_words, mine)), _remedy(mine))
    others = [xid for xid in serious if _bus(xid.bus_id) not in known]
    if others:
        yield _fault((), tuple(map(_xid_words, others)), _remedy(others))


_WORDS = {"fault": "faulty", "unresponsive": "unresponsive"}


def _fault(gpus: tuple[int, ...], evidence: tuple[str, ...], advice: str) -> Holder:
    return Holder(Verdict.FAULT, None, None, gpus, None, evidence, advice=advice)


def _xid_words(xid: KernelFault) -> str:
    text = " ".join(xid.text.split())[:200]
    return f"the kernel log has Xid {xid.code} ({text}), which needs a {xid.remedy}"


def _remedy(xids: Sequence[KernelFault]) -> str:
    if any(xid.remedy == "reboot" for xid in xids):
        return "reboot; do not start on it before"
    return "reset the GPU when nothing uses it, or reboot; do not start on it before"


def _bus(bus_id: str | None) -> str | None:
    """NVML writes 00000000:17:00.0, the kernel log 0000:17:00."""
    if not bus_id:
        return None
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain.lstrip('0') or '0'}:{rest.partition('.')[0]}"


def _numbers(pids: list[int]) -> str:
    return ("process " if len(pids) == 1 else "processes ") + ", ".join(map(str, pids))


def gib(count: int) -> str:
    """Bytes as GiB with one digit."""
    return f"{count / (1 << 30):.1f} GiB"
