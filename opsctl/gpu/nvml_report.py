"""From the lines of the NVML helper to a snapshot, complete or not. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, cast

from opsctl.gpu.model import DriverState, Gpu, GpuUse, Snapshot

_FIELDS = {entry.name for entry in fields(Gpu)} - {"index"}
_LIBRARY_NOT_FOUND = 12
_DRIVER_NOT_LOADED = 9
_NO_PERMISSION = 4
_MISMATCH = 18
_KINDS: tuple[Literal["mps", "compute", "graphics"], ...] = ("mps", "compute", "graphics")


@dataclass
class Report:
    """What the helper has said so far in one reading."""

    started: bool = False
    """Whether the helper runs at all: its bindings are loaded."""
    ended: bool = False
    _call: tuple[str, int | None] | None = None
    _count: int | None = None
    _failure: Mapping[str, Any] | None = None
    _fault: str | None = None
    _driver: str | None = None
    _cuda: str | None = None
    _gpus: dict[int, dict[str, Any]] = field(default_factory=dict)
    _rows: dict[tuple[int, int], dict[str, list[int | None]]] = field(default_factory=dict)

    def feed(self, line: bytes) -> None:
        """Take one line; raises ValueError when it is not the helper's."""
        said = json.loads(line)
        if not isinstance(said, dict):
            raise ValueError("not an object")
        self.started = True
        self.ended = bool(said.get("end"))
        if "call" in said:
            self._call = (str(said["call"]), said["of"])
        elif "failed" in said:
            self._failure = said["failed"]
        elif "gpu" in said:
            self._about_gpu(int(said["gpu"]), said)
        elif "driver" in said:
            self._driver = said["driver"]
            self._cuda = _cuda_version(said["cuda"])
        elif "count" in said:
            self._count, self._fault = said["count"], said["fault"]

    def _about_gpu(self, index: int, said: Mapping[str, Any]) -> None:
        gpu = self._gpus.setdefault(index, {})
        gpu.update({name: value for name, value in said.items() if name in _FIELDS})
        for pid, memory, _, _ in said.get("rows") or ():
            tables = self._rows.setdefault((index, int(pid)), {})
            tables.setdefault(str(said["kind"]), []).append(memory)

    @property
    def pending(self) -> str:
        """The call that was announced last, in words."""
        if self._call is None:
            return "the start of the helper"
        name, gpu = self._call
        return f"the call {name}" + ("" if gpu is None else f" for GPU {gpu}")

    def snapshot(self, *, kernel_module: str | None = None) -> Snapshot:
        """The verdict of a reading that ended. `kernel_module` is the version of the loaded one."""
        if self._failure is not None:
            state, why = _judge(self._failure, kernel_module)
            return Snapshot(state, why)
        if self._count is None:
            return self._snapshot("fault", self._fault or "NVML does not tell the number of GPUs")
        if self._count == 0:
            return self._snapshot("absent", "the driver sees no GPU")
        return self._snapshot("ok", "")

    def unresponsive(self, why: str) -> Snapshot:
        """What was read before a call did not return; its GPU is marked."""
        name = self.pending
        gpu = self._call[1] if self._call is not None else None
        if gpu is not None:
            self._gpus.setdefault(gpu, {})["fault"] = f"{name} did not return"
        return self.stopped(why)

    def stopped(self, why: str) -> Snapshot:
        """What was read before the time was over."""
        unread = [str(n) for n in range(self._count or 0) if n not in self._gpus]
        if unread:
            why += f"; not read: GPU {', '.join(unread)}"
        return self._snapshot("unresponsive", why)

    def broken(self, why: str) -> Snapshot:
        """What was read before the helper died."""
        return self._snapshot("fault", why)

    def _snapshot(self, state: DriverState, why: str) -> Snapshot:
        return Snapshot(
            state,
            why,
            driver=self._driver,
            cuda=self._cuda,
            gpus=tuple(_gpu(index, values) for index, values in sorted(self._gpus.items())),
            uses=tuple(_use(*key, tables) for key, tables in sorted(self._rows.items())),
        )


def _gpu(index: int, values: Mapping[str, Any]) -> Gpu:
    values = dict(values)
    capability = values.pop("compute_capability", None)
    bus_id = values.pop("bus_id", None)
    return Gpu(
        index,
        compute_capability=None if capability is None else (capability[0], capability[1]),
        bus_id=None if bus_id is None else pci_address(bus_id),
        **values,
    )


def _use(gpu: int, pid: int, tables: Mapping[str, list[int | None]]) -> GpuUse:
    """One row for a process, which may be in several tables, or once for each MIG instance."""
    kind = next(kind for kind in _KINDS if kind in tables)
    sums = [total for rows in tables.values() if (total := _sum(rows)) is not None]
    return GpuUse(gpu, pid, kind, max(sums, default=None))


def _sum(rows: Iterable[int | None]) -> int | None:
    known = [memory for memory in rows if memory is not None]
    return sum(known) if len(known) == len(list(rows)) else None


def pci_address(text: str) -> str:
    """A PCI address as the kernel writes it (`0000:c1:00.0`), whatever NVML or a log line wrote."""
    domain, _, rest = text.strip().lower().partition(":")
    bus, _, device = rest.partition(":")
    if not device:  # no domain: bus:device
        domain, bus, device = "0", domain, rest
    slot, _, function = device.partition(".")
    try:
        return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(slot, 16):02x}.{function or '0'}"
    except ValueError:
        return text


def _cuda_version(number: int | None) -> str | None:
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"


def _judge(failure: Mapping[str, Any], kernel_module: str | None) -> tuple[DriverState, str]:
    code, text = failure["code"], failure["text"]
    if code == _LIBRARY_NOT_FOUND:
        return "absent", "no NVIDIA driver: the library libnvidia-ml.so.1 is not there"
    if code == _DRIVER_NOT_LOADED:
        return "absent", "the NVIDIA kernel module is not loaded"
    if code == _MISMATCH:
        library = cast("str | None", failure.get("library"))
        return "fault", _mismatch(kernel_module, library)
    if code == _NO_PERMISSION:
        return "fault", f"no permission to talk to the NVIDIA driver: {text}"
    return "fault", str(text) if code is None else f"NVML does not start: {text} (code {code})"


def _mismatch(kernel_module: str | None, library: str | None) -> str:
    versions = [
        *([f"the loaded kernel module is {kernel_module}"] if kernel_module else []),
        *([f"the library is {library}"] if library else []),
    ]
    detail = f" ({', '.join(versions)})" if versions else ""
    return (
        f"driver and library do not match{detail}: the driver was upgraded while it was in use; "
        "reboot, or end everything on the GPUs and reload the kernel modules"
    )
