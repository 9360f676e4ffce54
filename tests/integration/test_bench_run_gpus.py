"""The GPUs' readings against the real bindings of NVML and a made-up library."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.bench.gpus import gpu_readings
from tests.support.fake_nvml import FakeNvml


async def test_each_gpu_tells_power_and_heat_and_what_it_cannot_tell_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeNvml.eight_sm120(tmp_path)
    fake.gpus[3].power, fake.gpus[3].temperature = 598.5, 84
    fake.write()
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    readings = await gpu_readings()
    assert [reading["index"] for reading in readings] == list(range(8))
    assert (readings[3]["power_w"], readings[3]["temperature_c"]) == (598.5, 84)
    assert readings[3]["power_limit_w"] == 600.0
    assert all(reading["sm_clock_mhz"] is None for reading in readings)  # it has no such call


async def test_a_host_without_a_driver_has_no_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nonexistent")
    assert await gpu_readings() == ()
