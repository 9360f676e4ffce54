"""Reads GPUs and the bridges above them from the kernel's PCI tree; no driver is needed."""

from __future__ import annotations

import os
import re
from pathlib import Path

from opsctl.doctor.host import Bridge, PciGpu
from opsctl.doctor.sources import Sources, number, text

NVIDIA = 0x10DE
DISPLAY = 0x03
"""PCI class of display controllers, 3D controllers among them."""
_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_EXTENDED = 0x100
"""Where the extended configuration space begins; only root may read so far."""
_ACS = 0x000D
_END = 4096


def gpus(sources: Sources) -> tuple[PciGpu, ...]:
    """Return every NVIDIA GPU on the PCI bus, in order of address."""
    folder = sources.sys / "bus/pci/devices"
    try:
        devices = sorted(folder.iterdir())
    except OSError:
        return ()
    return tuple(_gpu(device) for device in devices if _is_gpu(device))


def _is_gpu(device: Path) -> bool:
    kind = number(device / "class")
    return number(device / "vendor") == NVIDIA and kind is not None and kind >> 16 == DISPLAY


def _gpu(device: Path) -> PciGpu:
    node = number(device / "numa_node")
    fatal = [total(text(device / f"aer_dev_{kind}")) for kind in ("fatal", "nonfatal")]
    known = [count for count in fatal if count is not None]
    return PciGpu(
        device.name,
        numa_node=node if node is not None and node >= 0 else None,
        iommu=(text(device / "iommu_group/type") or "").strip() or None,
        fatal=sum(known) if known else None,
        correctable=total(text(device / "aer_dev_correctable")),
        bridges=tuple(_bridge(path) for path in _above(device)),
    )


def total(content: str | None) -> int | None:
    """Return the total of an aer_dev_* file; None when it is not there or says none."""
    found = re.search(r"^TOTAL_ERR_\w+ (\d+)$", content or "", re.MULTILINE | re.ASCII)
    return int(found[1]) if found else None


def _above(device: Path) -> list[Path]:
    """Return the bridges between the root complex and a device."""
    real = Path(os.path.realpath(device))
    return [path for path in real.parents if _ADDRESS.fullmatch(path.name)]


def _bridge(path: Path) -> Bridge:
    try:
        config = (path / "config").read_bytes()
    except OSError:
        config = b""
    return Bridge(path.name, acs_control(config), readable=len(config) > _EXTENDED)


def acs_control(config: bytes) -> int | None:
    """Find the ACS control register in a PCI configuration space; None when there is none.

    PCI Express Base Specification, Extended Capabilities: a list of headers from 0x100 on, each
    with id, version and the place of the next. A list that runs in circles ends.
    """
    place, seen = _EXTENDED, set[int]()
    while _EXTENDED <= place <= min(len(config), _END) - 8 and place not in seen:
        seen.add(place)
        header = int.from_bytes(config[place : place + 4], "little")
        if header & 0xFFFF == _ACS:
            return int.from_bytes(config[place + 6 : place + 8], "little")
        place = header >> 20 & 0xFFC
    return None
