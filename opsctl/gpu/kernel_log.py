"""What the NVIDIA driver told the kernel log since boot: Xid errors, and what they ask for.

Codes and actions are those of NVIDIA's Xid catalogue for Ampere and newer
(docs.nvidia.com/deploy/xid-errors, "Analyzing Xid Errors with the Xid Catalog"). Where it names a
workflow instead of an action, the table takes its outcome for a GPU without NVLink. A code that
is not in the table asks for nothing: an unknown number is no reason to reboot a host.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from opsctl.gpu.nvml_report import pci_address

Remedy = Literal["none", "restart engine", "reset", "reboot"]

REMEDIES: dict[int, Remedy] = {
    8: "restart engine",  # GPU stopped processing
    11: "restart engine",  # invalid or corrupted push buffer stream
    13: "restart engine",  # graphics engine exception
    25: "restart engine",  # invalid or illegal push buffer stream
    31: "restart engine",  # GPU memory page fault
    32: "restart engine",  # invalid or corrupted push buffer stream
    43: "restart engine",  # a channel was stopped; its process has to go
    45: "none",  # cleanup after another error, or after a kill
    46: "reset",  # GPU stopped processing
    48: "reset",  # double-bit memory error
    62: "reset",  # internal micro-controller halt
    63: "none",  # memory row remapped; takes effect at the next reset
    64: "reset",  # memory row could not be remapped
    69: "restart engine",  # graphics engine class error
    74: "reset",  # NVLink error
    79: "reboot",  # GPU has fallen off the bus
    92: "none",  # many corrected memory errors
    94: "restart engine",  # memory error contained to one process
    95: "reset",  # memory error that reaches every process
    109: "reset",  # context switch timeout
    110: "reset",  # security fault
    119: "reset",  # the GPU's system processor (GSP) does not answer
    120: "reset",  # error in the GPU's system processor
    136: "reset",  # link training failed
    137: "none",  # illegal peer access, an application's error
    140: "reset",  # unrecovered memory error
    143: "reset",  # GPU initialization error
    151: "reboot",  # key rotation error
    155: "reset",  # NVLink: error defined by software
    156: "reset",  # resource retirement event
    157: "none",  # resource retirement failure
    158: "reset",  # fatal timeout
}
_RECOVERY_CHANGED = 154
_ACTIONS: tuple[tuple[str, Remedy], ...] = (("reboot", "reboot"), ("reset", "reset"))

_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F]{1,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?)"
    r"[^)]*\): (?P<code>\d+)(?:, *(?P<text>.*))?$"
)
_LOADED = re.compile(r"NVRM: loading NVIDIA UNIX")
_KMSG = re.compile(r"^\d+,\d+,(?P<microseconds>\d+),[^;]*;")
_SECONDS = re.compile(r"^(?:<\d+>)?\[ *(?P<seconds>\d+\.\d+)\]")
_CHANGED_TO = re.compile(r"\bto\s+0x[0-9a-fA-F]+\s+\((?P<action>[^)]*)\)")

_KMSG_FILE = Path("/dev/kmsg")
_RECORD = 8192  # bytes; the kernel's own limit for one record
_RECORDS = 200_000
_JOURNAL_LINES = 2_000
_JOURNAL_SECONDS = 5.0


@dataclass(frozen=True)
class Xid:
    """One Xid. `time` is in seconds since boot; `bus_id` as the kernel names PCI devices."""

    code: int
    bus_id: str | None
    time: float | None
    text: str
    remedy: Remedy


def parse(lines: Iterable[str]) -> tuple[Xid, ...]:
    """The Xids that still say something, oldest first.

    Takes records of /dev/kmsg and lines of `dmesg` or `journalctl`. Loading the driver anew ends
    the story of everything before. A driver that takes its recovery action back (Xid 154 to
    "None") takes back what it asked for before on that GPU; the Xids stay, with remedy `none`.
    """
    found: list[Xid] = []
    for line in lines:
        if _LOADED.search(line):
            found.clear()
        elif (xid := _parse_line(line)) is not None:
            if xid.code == _RECOVERY_CHANGED and xid.remedy == "none":
                found = [_withdrawn(old) if old.bus_id == xid.bus_id else old for old in found]
            found.append(xid)
    return tuple(found)


def read() -> tuple[Xid, ...] | None:
    """Xids since boot; None when the log may not be read, which is not the same as no Xid."""
    lines = _kernel_ring()
    if lines is None or lines.wrapped:
        journal = _journal()
        if journal is not None:
            return parse(journal)
    return None if lines is None else parse(lines.records)


def _parse_line(line: str) -> Xid | None:
    match = _XID.search(line.rstrip())
    if match is None:
        return None
    code, text = int(match["code"]), (match["text"] or "").strip()
    return Xid(code, pci_address(match["bus"]), _time(line), text, _remedy(code, text))


def _remedy(code: int, text: str) -> Remedy:
    if code != _RECOVERY_CHANGED:
        return REMEDIES.get(code, "none")
    changed = _CHANGED_TO.search(text)
    action = (changed["action"] if changed else text).lower()
    return next((remedy for word, remedy in _ACTIONS if word in action), "none")


def _withdrawn(xid: Xid) -> Xid:
    return replace(xid, remedy="none") if xid.remedy in {"reset", "reboot"} else xid


def _time(line: str) -> float | None:
    if match := _KMSG.match(line):
        return int(match["microseconds"]) / 1e6
    match = _SECONDS.match(line)
    return float(match["seconds"]) if match else None


@dataclass(frozen=True)
class _Ring:
    records: tuple[str, ...]
    wrapped: bool
    """Older records were overwritten."""


def _kernel_ring(path: Path = _KMSG_FILE) -> _Ring | None:
    """The kernel's own buffer, which holds nothing from before the boot."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        records = tuple(_records(descriptor))
    except PermissionError:
        return None
    finally:
        os.close(descriptor)
    first = records[0].split(",", 2)[1:2] if records else []
    return _Ring(tuple(r for r in records if "NVRM" in r), first not in ([], ["0"]))


def _records(descriptor: int) -> Iterator[str]:
    for _ in range(_RECORDS):
        try:
            record = os.read(descriptor, _RECORD)
        except BrokenPipeError:  # overwritten while it was read; the next one is there
            continue
        except BlockingIOError:
            return
        if not record:
            return
        yield record.decode(errors="replace").partition("\n")[0]


def _journal() -> list[str] | None:
    """What the journal has kept of this boot's kernel messages."""
    command = ["journalctl", "--dmesg", "--boot", "--no-pager", "--output=short-monotonic"]
    command += ["--grep=NVRM: (Xid|loading NVIDIA UNIX)", f"--lines={_JOURNAL_LINES}"]
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_JOURNAL_SECONDS,
            check=False,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = [line for line in result.stdout.splitlines() if not line.startswith("-- ")]
    if not lines and result.stderr.strip():  # no journal, or not allowed to see the kernel's part
        return None
    return lines
