"""From what the two helpers say to facts; what does not fit is taken for not said. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from opsctl.doctor.host import CudaDevice, CudaFacts, CudaPair, GpuDetail, GpuDetails, GpuPair

T = TypeVar("T", GpuDetail, GpuPair, CudaDevice, CudaPair)


def gpu_details(lines: Iterable[Mapping[str, Any]]) -> GpuDetails:
    """Join the lines of the NVML helper."""
    said = list(lines)
    told = [x["confidential"] for x in said if "confidential" in x]
    return GpuDetails(
        tuple(_made(GpuDetail, x, index=x["gpu"]) for x in said if "gpu" in x),
        tuple(_made(GpuPair, x, **_pair(x)) for x in said if "pair" in x),
        told[0] if told else None,
    )


def cuda_facts(lines: Iterable[Mapping[str, Any]]) -> CudaFacts:
    """Join the lines of the libcuda helper."""
    said = list(lines)
    versions = [x["version"] for x in said if "version" in x]
    return CudaFacts(
        versions[0] if versions else None,
        tuple(_made(CudaDevice, x, index=x["device"]) for x in said if "device" in x),
        tuple(_made(CudaPair, x, **_pair(x)) for x in said if "pair" in x),
    )


def _pair(line: Mapping[str, Any]) -> dict[str, int]:
    first, second = line["pair"]
    return {"first": first, "second": second}


def _made(kind: type[T], line: Mapping[str, Any], **fixed: Any) -> T:
    names = {entry.name for entry in fields(kind)} - fixed.keys()
    return kind(**fixed, **{name: value for name, value in line.items() if name in names})
