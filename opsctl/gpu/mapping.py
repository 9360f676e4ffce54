"""Which rows of NVML's process tables belong to which processes here. Pure.

NVML may list numbers of another pid namespace. Such a number does not exist here, or it is that
of an innocent process; so a row counts only for a process that has the GPU's device file open.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from opsctl.gpu import names
from opsctl.gpu.model import HostProcess, Snapshot

PerGpu = Mapping[int, int | None]
_KERNEL_THREADS = 2  # parent of all kernel threads, which have no command line either
_MINOR = re.compile(r"nvidia(\d+)$")


@dataclass(frozen=True)
class Mapped:
    """NVML's rows by process number, and those that fit no process here with the reason."""

    rows: Mapping[int, PerGpu]
    unmapped: Mapping[int, str]

    def of(self, pid: int) -> PerGpu:
        """What NVML tells of a process that its row really means."""
        return {} if pid in self.unmapped else self.rows.get(pid, {})


def per_process(snapshot: Snapshot) -> dict[int, dict[int, int | None]]:
    """Memory by process and GPU. A process in several tables of one GPU is counted once."""
    found: dict[int, dict[int, int | None]] = {}
    for use in snapshot.uses:
        memory = found.setdefault(use.pid, {})
        known = [value for value in (memory.get(use.gpu), use.memory) if value is not None]
        memory[use.gpu] = max(known, default=None)
    return found


def attribute(
    snapshot: Snapshot, processes: Mapping[int, HostProcess], *, host_pids: bool | None
) -> Mapped:
    """Decide for every row whether its number means the process that has this number here.

    `host_pids`: whether opsctl itself sees the host's process numbers. Where it does not, one
    number that cannot be right is enough to trust none of them.
    """
    rows = per_process(snapshot)
    minors = {gpu.index: gpu.minor for gpu in snapshot.gpus}
    findings = {pid: _check(pid, processes.get(pid), rows[pid], minors) for pid in rows}
    wrong = {pid: why for pid, (fit, why) in findings.items() if fit == "wrong"}
    if wrong and host_pids is not True and not _mostly_right(findings, host_pids):
        example = min(wrong)
        wrong |= {
            pid: f"NVML's numbers are not those of this pid namespace, as {example} shows"
            for pid in rows
            if pid not in wrong
        }
    return Mapped(rows, wrong)


Fit = Literal["right", "unknown", "wrong"]


def _mostly_right(findings: Mapping[int, tuple[Fit, str]], host_pids: bool | None) -> bool:
    return host_pids is None and any(fit == "right" for fit, _ in findings.values())


def _check(
    pid: int, process: HostProcess | None, row: PerGpu, minors: Mapping[int, int | None]
) -> tuple[Fit, str]:
    if process is None:
        return "wrong", (
            f"no process {pid} can be seen here: it runs in another pid namespace (container), "
            "or has ended and the driver still counts its memory"
        )
    if process.state in "ZX" or _is_ending(process) or process.devices is None:
        return "unknown", ""
    wanted = {minors.get(gpu) for gpu in row} - {None}
    opened = {int(match[1]) for name in process.devices if (match := _MINOR.search(name))}
    control_only = process.devices and not opened  # as a client of MPS may have it
    if (opened and wanted <= opened) or control_only:
        return "right", ""
    what = f"process {pid} here ({process.title}, user {process.user or process.uid})"
    if opened:
        missing = ", ".join(f"/dev/nvidia{minor}" for minor in sorted(wanted - opened, key=str))
        return "wrong", f"{what} does not have {missing} open, so another process must be meant"
    return "wrong", f"{what} has no /dev/nvidia* open, so another process must be meant"


def _is_ending(process: HostProcess) -> bool:
    """Its files are closed before the driver has let go; without memory it has no command line."""
    if process.state == "D" and names.in_driver(process.wchan or ""):
        return True
    return process.title == f"[{process.comm}]" and process.ppid not in {0, _KERNEL_THREADS}


def device_words(devices: frozenset[str]) -> str:
    """The device files in a few words: those of GPUs before the driver's control files."""
    boards = sorted(name for name in devices if _MINOR.search(name)) or sorted(devices)
    more = len(devices) - 1
    return boards[0] + (f" and {more} more device files" if more else "")


def gpus_of(devices: frozenset[str] | None, snapshot: Snapshot) -> tuple[int, ...]:
    """Indices of the GPUs whose device files are among `devices`."""
    opened = {int(match[1]) for name in devices or () if (match := _MINOR.search(name))}
    return tuple(gpu.index for gpu in snapshot.gpus if gpu.minor in opened)
