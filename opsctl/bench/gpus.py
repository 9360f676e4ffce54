"""What the GPUs said: a card that is hot, capped or slow explains a slow cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from opsctl.doctor import disposable
from opsctl.gpu import nvml
from opsctl.gpu.model import Gpu
from opsctl.system.threads import aside

Reading = Mapping[str, float | str | None]

_CLOCKS = ("sm_clock_mhz", "memory_clock_mhz", "clock_reasons")
_LONGEST = 3.0


async def gpu_readings() -> tuple[Reading, ...]:
    """Clocks (MHz), power (W), temperature (°C) and utilization (%) of each GPU.

    `clock_reasons` are NVML's bits of what holds the clocks down (4 is the power cap, 64 heat).
    Empty where the driver does not answer; a value it does not give is None.
    """
    snapshot = await nvml.read_async(deadline=2.0)
    if snapshot.state != "ok":
        return ()
    ask = partial(disposable.ask, "opsctl.bench.clocks_helper", silence=2.0, longest=_LONGEST)
    said = await aside(ask, key="clocks")
    return joined(snapshot.gpus, said.lines)


def joined(gpus: Iterable[Gpu], lines: Iterable[Mapping[str, Any]]) -> tuple[Reading, ...]:
    """One reading a GPU out of both sources."""
    clocks = {line.get("gpu"): line for line in lines}
    return tuple(
        {
            "index": gpu.index,
            "uuid": gpu.uuid,
            "power_w": gpu.power,
            "power_limit_w": gpu.power_limit,
            "temperature_c": gpu.temperature,
            "utilization_percent": gpu.utilization,
            **{name: clocks.get(gpu.index, {}).get(name) for name in _CLOCKS},
        }
        for gpu in gpus
    )
