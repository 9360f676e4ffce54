"""The process that asks NVML for clocks and what holds them down.

Run as `python -m opsctl.bench.clocks_helper`; see opsctl/doctor/disposable.py for what it writes.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from opsctl.doctor.nvml_helper import Reading, write

_SM, _MEMORY = 1, 2


class Clocks(Reading):
    """One pass over all GPUs; a call that fails gives null. Clocks in MHz."""

    def run(self) -> None:
        """Read every GPU."""
        for index in range(self.call("nvmlDeviceGetCount") or 0):
            handle = self.call("nvmlDeviceGetHandleByIndex", index)
            if handle is None:
                continue
            reasons = self.call("nvmlDeviceGetCurrentClocksEventReasons", handle)
            if reasons is None:  # the name of drivers before R535
                reasons = self.call("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
            self.say(
                gpu=index,
                sm_clock_mhz=self.call("nvmlDeviceGetClockInfo", handle, _SM),
                memory_clock_mhz=self.call("nvmlDeviceGetClockInfo", handle, _MEMORY),
                clock_reasons=reasons,
            )
        self.say(end=True)


def main() -> None:
    """Answer once."""
    output = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not end up in the answer
    nvml: Any = importlib.import_module("pynvml")
    write(output, {"call": "nvmlInit_v2"})
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        write(output, {"failed": f"NVML does not start: {error}"})
        return
    Clocks(nvml, output).run()


if __name__ == "__main__":
    main()
