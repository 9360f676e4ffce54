"""What the GPUs said: a slow card explains a slow cell."""

from __future__ import annotations

from collections.abc import Mapping

from opsctl.gpu import nvml

Reading = Mapping[str, float | str | None]


async def gpu_readings() -> tuple[Reading, ...]:
    """Power (W), its limit, temperature (°C) and utilization (%); empty where nothing is read."""
    snapshot = await nvml.read_async(deadline=2.0)
    if snapshot.state != "ok":
        return ()
    return tuple(
        {
            "index": gpu.index,
            "uuid": gpu.uuid,
            "power_w": gpu.power,
            "power_limit_w": gpu.power_limit,
            "temperature_c": gpu.temperature,
            "utilization_percent": gpu.utilization,
        }
        for gpu in snapshot.gpus
    )
