"""Bridges above GPUs, and what their access control services (ACS) do with peer-to-peer traffic.

Standard library only; also read by Python 3.10.
"""

from __future__ import annotations

import os
import re

from ansible.module_utils.opsctl_system import Host

EXTENDED = 0x100  # where a device's extended capabilities start in its configuration space
ACS = 0x000D  # PCI Express Base Specification, 7.7.11: Access Control Services
CONTROL = 6  # offset of the control register in that capability
REDIRECT = 0x0C  # its bits P2P Request Redirect and P2P Completion Redirect
ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def redirecting(host: Host) -> list[str]:
    """Return bridges above GPUs that send peer-to-peer traffic up to the root complex."""
    devices = "/sys/bus/pci/devices/"
    bridges: set[str] = set()
    for gpu in host.gpus():
        place = os.path.realpath(host.path(devices + gpu.address))
        bridges |= {part for part in place.split("/")[:-1] if ADDRESS.fullmatch(part)}
    return sorted(b for b in bridges if _control(host, devices + b + "/config") & REDIRECT)


def _control(host: Host, config: str) -> int:
    """Return the ACS control register, 0 where there is none or it cannot be read."""
    try:
        space = host.path(config).read_bytes()
    except OSError:
        return 0
    at, seen = EXTENDED, set()
    while at and at not in seen and at + CONTROL + 2 <= len(space):
        seen.add(at)
        header = int.from_bytes(space[at : at + 4], "little")
        if header & 0xFFFF == ACS:
            return int.from_bytes(space[at + CONTROL : at + CONTROL + 2], "little")
        at = header >> 20
    return 0
