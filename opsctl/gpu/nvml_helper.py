"""The process that calls NVML, so that a driver that hangs never hangs opsctl.

Run as `python -m opsctl.gpu.nvml_helper [IDLE_SECONDS]`. Each line on stdin asks for one reading;
the answer is JSON, one object a line: each call is announced before it is made, and each value is
written as soon as it is known. So whoever reads knows which call did not return, and has
everything that was read before it. Ends with its stdin, or IDLE_SECONDS after the last reading.

Only what it needs is imported: one reading a second must stay cheap.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
from typing import Any

_UNUSABLE = {15: "the GPU is lost", 16: "the GPU needs a reset", 28: "the GPU was not found"}
_NOT_THERE = {3, 4, 6, 13, 25, 26}
"""Not supported, no permission, not found, function missing, argument version, deprecated."""

_RECOVERY_ACTION = 230
_RECOVERY = {
    1: "the driver asks for a reset of the GPU",
    2: "the driver asks for a reboot",
    4: "the driver asks to drain and reset the GPU",
    6: "the driver asks for a reset of the GPU's PCIe bus",
    7: "the driver asks for a reboot",
}
_TABLES = {
    "compute": ("nvmlDeviceGetComputeRunningProcesses", ("_v3", "_v2")),
    "graphics": ("nvmlDeviceGetGraphicsRunningProcesses", ("_v3", "_v2")),
    "mps": ("nvmlDeviceGetMPSComputeRunningProcesses", ("_v3", "_v2")),
}
_INSUFFICIENT_SIZE = 7


class _LeftAloneError(Exception):
    """Whoever asked has closed the pipe."""


class _Reading:
    """One pass over everything NVML says."""

    def __init__(self, nvml: Any, output: int) -> None:
        self._nvml = nvml
        self._output = output
        self._fault: str | None = None

    def run(self) -> None:
        """Read all GPUs; a GPU that fails does not keep the others from being read."""
        self.say(
            driver=self._call(None, "nvmlSystemGetDriverVersion"),
            cuda=self._call(None, "nvmlSystemGetCudaDriverVersion_v2"),
        )
        count = self._call(None, "nvmlDeviceGetCount", essential=True)
        self.say(count=count, fault=self._fault)
        for index in range(count or 0):
            self._fault = None
            self._gpu(index)
        self.say(end=True)

    def _gpu(self, index: int) -> None:
        handle = self._call(index, "nvmlDeviceGetHandleByIndex", index, essential=True)
        if handle is not None:
            self._identity(index, handle)
            self._memory(index, handle)
            self._condition(index, handle)
            self._link(index, handle)
            self._processes(index, handle)
        self.say(gpu=index, fault=self._fault)

    def _identity(self, index: int, handle: Any) -> None:
        pci = self._call(index, "nvmlDeviceGetPciInfo_v3", handle)
        self.say(
            gpu=index,
            name=self._call(index, "nvmlDeviceGetName", handle),
            uuid=self._call(index, "nvmlDeviceGetUUID", handle),
            bus_id=_text(pci.busId) if pci is not None else None,
            minor=self._call(index, "nvmlDeviceGetMinorNumber", handle),
            compute_capability=self._call(index, "nvmlDeviceGetCudaComputeCapability", handle),
        )

    def _memory(self, index: int, handle: Any) -> None:
        """Version 1 counts the driver's reserve as used, version 2 beside it: used is with it."""
        memory = self._call(
            index,
            "nvmlDeviceGetMemoryInfo",
            handle,
            self._nvml.nvmlMemory_v2,
            shown="nvmlDeviceGetMemoryInfo_v2",
            essential=True,
        )
        reserved = None if memory is None else memory.reserved
        if memory is None and self._fault is None:
            memory = self._call(index, "nvmlDeviceGetMemoryInfo", handle, essential=True)
        if memory is not None:
            self.say(
                gpu=index,
                memory_total=memory.total,
                memory_used=memory.used + (reserved or 0),
                memory_reserved=reserved,
            )

    def _condition(self, index: int, handle: Any) -> None:
        utilization = self._call(index, "nvmlDeviceGetUtilizationRates", handle)
        mig = self._call(index, "nvmlDeviceGetMigMode", handle)
        persistence = self._call(index, "nvmlDeviceGetPersistenceMode", handle)
        temperature = self._call(index, "nvmlDeviceGetTemperatureV", handle, 0)
        if temperature is None:
            temperature = self._call(index, "nvmlDeviceGetTemperature", handle, 0)
        self.say(
            gpu=index,
            power=_watts(self._call(index, "nvmlDeviceGetPowerUsage", handle)),
            power_limit=_watts(self._call(index, "nvmlDeviceGetEnforcedPowerLimit", handle)),
            temperature=temperature,
            utilization=None if utilization is None else utilization.gpu,
            persistence=None if persistence is None else persistence == 1,
            mig=None if mig is None else mig[0] == 1,
        )
        self._recovery(index, handle)

    def _recovery(self, index: int, handle: Any) -> None:
        """What the driver itself says must be done (R570 and later)."""
        values = self._call(index, "nvmlDeviceGetFieldValues", handle, [_RECOVERY_ACTION])
        if values is not None and values[0].nvmlReturn == 0:
            self._fault = self._fault or _RECOVERY.get(values[0].value.uiVal)

    def _link(self, index: int, handle: Any) -> None:
        self.say(
            gpu=index,
            pcie_generation=self._call(index, "nvmlDeviceGetCurrPcieLinkGeneration", handle),
            pcie_width=self._call(index, "nvmlDeviceGetCurrPcieLinkWidth", handle),
            pcie_generation_max=self._call(index, "nvmlDeviceGetMaxPcieLinkGeneration", handle),
            pcie_width_max=self._call(index, "nvmlDeviceGetMaxPcieLinkWidth", handle),
        )

    def _processes(self, index: int, handle: Any) -> None:
        for kind in _TABLES:
            rows = self._table(index, handle, kind)
            if rows is None:  # with MIG, the sum over all instances needs privileges
                rows = self._by_instance(index, handle, kind)
            self.say(gpu=index, kind=kind, rows=rows)

    def _by_instance(self, index: int, handle: Any, kind: str) -> list[list[Any]] | None:
        mig = self._call(index, "nvmlDeviceGetMigMode", handle)
        if mig is None or mig[0] != 1:
            return None
        found: list[list[Any]] | None = None
        for number in range(self._call(index, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            part = self._call(index, "nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
            rows = None if part is None else self._table(index, part, kind)
            if rows is not None:
                found = (found or []) + rows
        return found

    def _table(self, index: int, handle: Any, kind: str) -> list[list[Any]] | None:
        name, versions = _TABLES[kind]
        for version in versions:
            rows = self._call(index, name + version, handle, again=_INSUFFICIENT_SIZE)
            if rows is not None:
                return [
                    [row.pid, row.usedGpuMemory, row.gpuInstanceId, row.computeInstanceId]
                    for row in rows
                ]
        return None

    def _call(
        self,
        gpu: int | None,
        name: str,
        *arguments: Any,
        shown: str | None = None,
        essential: bool = False,
        again: int | None = None,
    ) -> Any:
        """Make one call; None when NVML does not give the value.

        The bindings ask tables for their size first: a process started in between makes the
        second call fail with the code `again`, and both are made once more.
        """
        function = getattr(self._nvml, name, None)
        if function is None:  # bindings older or newer than this program
            return None
        for attempt in range(3):
            self._announce(gpu, shown or name)
            try:
                return function(*arguments)
            except self._nvml.NVMLError as error:
                if error.value == again and attempt < 2:
                    continue
                self._judge(error.value, shown or name, str(error), essential)
                return None
            except (AttributeError, TypeError, ValueError):  # the bindings, not the driver
                return None
        return None

    def _judge(self, code: int, name: str, text: str, essential: bool) -> None:
        if code in _UNUSABLE:
            self._fault = self._fault or f"{_UNUSABLE[code]} ({name}: {text})"
        elif essential and code not in _NOT_THERE:
            self._fault = self._fault or f"{name} failed: {text}"

    def _announce(self, gpu: int | None, name: str) -> None:
        if _hung_up():
            raise _LeftAloneError
        self.say(call=name, of=gpu)

    def say(self, **content: Any) -> None:
        """Write one line of the answer."""
        _write(self._output, content)


def _write(output: int, content: dict[str, Any]) -> None:
    line = json.dumps(content).encode() + b"\n"
    while line:
        line = line[os.write(output, line) :]


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _hung_up() -> bool:
    poll = select.poll()
    poll.register(0, 0)  # a closed pipe is reported whether asked for or not
    return bool(poll.poll(0))


def _start(nvml: Any, output: int) -> bool:
    """Initialize NVML; says why when it cannot be."""
    _write(output, {"call": "nvmlInit_v2", "of": None})
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        failure = {"code": error.value, "text": str(error), "library": _library(nvml, error.value)}
        _write(output, {"failed": failure, "end": True})
        return False
    return True


def _library(nvml: Any, code: int) -> str | None:
    """The version of the library, which answers this without a driver that fits."""
    if code == 12:
        return None
    try:
        return str(nvml.nvmlSystemGetNVMLVersion())
    except nvml.NVMLError:
        return None


def _serve(nvml: Any, output: int, idle: float) -> None:
    started = False
    while select.select([0], [], [], idle)[0] and os.read(0, 4096):
        started = started or _start(nvml, output)
        if not started:
            return  # a driver loaded meanwhile needs a fresh library
        _Reading(nvml, output).run()


def main() -> None:
    """Answer until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    output = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not end up in the answer
    try:
        nvml = importlib.import_module("pynvml")  # no other process of opsctl loads it
    except ImportError as error:
        failure = {"code": None, "text": f"the Python package nvidia-ml-py is missing: {error}"}
        _write(output, {"failed": failure, "end": True})
        return
    try:
        _write(output, {"ready": True})
        _serve(nvml, output, float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
    except (_LeftAloneError, BrokenPipeError):
        pass


if __name__ == "__main__":
    main()
