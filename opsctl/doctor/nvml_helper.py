"""The process that asks NVML what only the doctor wants to know: pairs, BAR1, limits, errors.

Run as `python -m opsctl.doctor.nvml_helper`; see opsctl/doctor/disposable.py for what it writes.
Creates no CUDA context.
"""

from __future__ import annotations

import importlib
import json
import os
from typing import Any

_P2P_READ, _P2P_WRITE, _P2P_ATOMICS = 0, 1, 3
_UNCORRECTED, _VOLATILE = 1, 0


class Reading:
    """One pass over everything; a call that fails gives null."""

    def __init__(self, nvml: Any, output: int) -> None:
        self._nvml = nvml
        self._output = output

    def run(self) -> None:
        """Read the system, then every GPU, then every pair."""
        state = self.call("nvmlSystemGetConfComputeState")
        self.say(confidential=None if state is None else state.ccFeature == 1)
        count = self.call("nvmlDeviceGetCount") or 0
        handles = {n: self.call("nvmlDeviceGetHandleByIndex", n) for n in range(count)}
        known = {n: handle for n, handle in handles.items() if handle is not None}
        for index, handle in known.items():
            self._gpu(index, handle)
        for first, one in known.items():
            for second, other in known.items():
                if first < second:
                    self._pair(first, second, one, other)
        self.say(end=True)

    def _gpu(self, index: int, handle: Any) -> None:
        bar1 = self.call("nvmlDeviceGetBAR1MemoryInfo", handle)
        ecc = self.call("nvmlDeviceGetEccMode", handle)
        rows = self.call("nvmlDeviceGetRemappedRows", handle)
        reasons = self.call("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:  # the name of drivers before R535
            reasons = self.call("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        self.say(
            gpu=index,
            bar1_total=None if bar1 is None else bar1.bar1Total,
            replays=self.call("nvmlDeviceGetPcieReplayCounter", handle),
            power_limit=_watts(self.call("nvmlDeviceGetPowerManagementLimit", handle)),
            power_default=_watts(self.call("nvmlDeviceGetPowerManagementDefaultLimit", handle)),
            ecc=None if ecc is None else ecc[0] == 1,
            ecc_pending=None if ecc is None else ecc[1] == 1,
            uncorrected=self.call("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE),
            rows_pending=None if rows is None else rows[2] != 0,
            rows_failed=None if rows is None else rows[3] != 0,
            compute_mode=self.call("nvmlDeviceGetComputeMode", handle),
            clock_reasons=reasons,
        )

    def _pair(self, first: int, second: int, one: Any, other: Any) -> None:
        """Both ways: a status that is not OK in either direction is the pair's."""
        statuses = {}
        for name, capability in (
            ("read", _P2P_READ),
            ("write", _P2P_WRITE),
            ("atomics", _P2P_ATOMICS),
        ):
            there = self.call("nvmlDeviceGetP2PStatus", one, other, capability)
            back = self.call("nvmlDeviceGetP2PStatus", other, one, capability)
            statuses[name] = None if there is None or back is None else there or back
        ancestor = self.call("nvmlDeviceGetTopologyCommonAncestor", one, other)
        self.say(pair=[first, second], ancestor=ancestor, **statuses)

    def call(self, name: str, *arguments: Any) -> Any:
        """Announce and make one call; None when NVML does not give the value."""
        function = getattr(self._nvml, name, None)
        if function is None:
            return None
        self.say(call=name)
        try:
            return function(*arguments)
        except (self._nvml.NVMLError, AttributeError, TypeError, ValueError):
            return None

    def say(self, **content: Any) -> None:
        """Write one line of the answer."""
        write(self._output, content)


def write(output: int, content: dict[str, Any]) -> None:
    """Write one line whole."""
    line = json.dumps(content).encode() + b"\n"
    while line:
        line = line[os.write(output, line) :]


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def main() -> None:
    """Answer once."""
    output = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not end up in the answer
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError as error:
        write(output, {"failed": f"the Python package nvidia-ml-py is missing: {error}"})
        return
    write(output, {"call": "nvmlInit_v2"})
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        write(output, {"failed": f"NVML does not start: {error}"})
        return
    Reading(nvml, output).run()


if __name__ == "__main__":
    main()
