"""Clocks and power beside each cell: what the driver gives, and nothing made up for the rest."""

from __future__ import annotations

import json
import os
from typing import Any

from opsctl.bench.clocks_helper import Clocks
from opsctl.bench.gpus import joined
from opsctl.gpu.model import Gpu


class FakeNvml:
    """Two GPUs; the second is one whose clocks cannot be read."""

    class NVMLError(Exception):
        """As pynvml has it."""

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:  # noqa: N802
        if handle == 1:
            raise self.NVMLError("Not Supported")
        return {1: 2430, 2: 14001}[kind]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:  # noqa: N802
        return 4


def said() -> list[dict[str, Any]]:
    """Everything the helper writes."""
    read, write = os.pipe()
    Clocks(FakeNvml(), write).run()
    os.close(write)
    with os.fdopen(read) as output:
        return [json.loads(line) for line in output]


def test_clocks_are_read_and_each_call_is_announced_before_it_is_made() -> None:
    lines = said()
    assert lines[0] == {"call": "nvmlDeviceGetCount"}
    assert lines[-1] == {"end": True}
    assert [line for line in lines if "gpu" in line] == [
        {"gpu": 0, "sm_clock_mhz": 2430, "memory_clock_mhz": 14001, "clock_reasons": 4},
        {"gpu": 1, "sm_clock_mhz": None, "memory_clock_mhz": None, "clock_reasons": 4},
    ]


def test_readings_of_both_sources_are_one_for_each_gpu() -> None:
    gpus = [Gpu(0, power=410.0, power_limit=600.0, temperature=71), Gpu(1)]
    first, second = joined(gpus, [line for line in said() if "gpu" in line][:1])
    assert first["sm_clock_mhz"] == 2430
    assert (first["power_w"], first["temperature_c"], first["clock_reasons"]) == (410.0, 71, 4)
    assert (second["index"], second["power_w"], second["sm_clock_mhz"]) == (1, None, None)
