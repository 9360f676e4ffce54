#!/usr/bin/python3
"""Ansible module: can this host become a serving host? Nothing is changed before it agrees."""

from __future__ import annotations

import os
from typing import Any

from ansible.module_utils.opsctl_system import Host, Seen, answer

DOCUMENTATION = r"""
module: opsctl_see_host
short_description: Can this host become a serving host
description: Changes nothing but the notes of what a person must do.
options:
  state: {type: str, choices: [present, absent], default: present}
  pending: {type: path, required: true, description: Folder of notes.}
  require_gpu: {type: bool, required: true}
  free_disk: {type: int, required: true, description: Bytes free at O(engine_path).}
  memory: {type: int, required: true, description: Bytes.}
  engine_path: {type: path, required: true}
  driver: {type: bool, required: true, description: Whether the driver will be installed.}
  repository: {type: dict, required: true, description: What is said of NVIDIA's repository.}
"""
OPTIONS = {
    "require_gpu": {"type": "bool", "required": True},
    "free_disk": {"type": "int", "required": True},
    "memory": {"type": "int", "required": True},
    "engine_path": {"type": "path", "required": True},
    "driver": {"type": "bool", "required": True},
    "repository": {"type": "dict", "required": True},
}

SUPPORTED = {"debian": ("12", "13"), "ubuntu": ("22.04", "24.04")}
FIRST_TURING = (
    0x1E00  # device ids below are Volta and older, which open kernel modules do not drive
)
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
# The keys that DKMS signs with: its own, and the one Ubuntu makes through shim-signed.
SIGNING_KEYS = ("/var/lib/dkms/mok.pub", "/var/lib/shim-signed/mok/MOK.der")


def see(host: Host, wanted: dict[str, Any]) -> Seen:
    """Say what stands against this host (`problems`), and what a person has to do."""
    if wanted["state"] == "absent":
        return Seen({"problems": []})
    notes = {**_secure_boot(host), **_nouveau(host)} if wanted["driver"] else {}
    return Seen({"problems": _problems(host, wanted)}, notes)


def _problems(host: Host, wanted: dict[str, Any]) -> list[str]:
    return [
        *_system(host),
        *_repository(wanted),
        *_gpus(host, wanted),
        *_headers(host, wanted),
        *_space(host, wanted),
        *_memory(host, wanted),
    ]


def _system(host: Host) -> list[str]:
    name, version = host.release()
    problems = []
    if version not in SUPPORTED.get(name, ()):
        problems.append(
            f"This is {name or 'an unknown system'} {version}; "
            "opsctl provisions Debian 12 and 13, Ubuntu 22.04 and 24.04."
        )
    machine = os.uname().machine
    if machine != "x86_64":
        problems.append(f"This machine is {machine}; opsctl provisions x86_64.")
    return problems


def _repository(wanted: dict[str, Any]) -> list[str]:
    missing = [key for key, value in sorted(wanted["repository"].items()) if not value]
    return [
        f"Set provision.nvidia_repo.{key}, or provision.nvidia_repo.manage to false."
        for key in missing
    ]


def _gpus(host: Host, wanted: dict[str, Any]) -> list[str]:
    gpus = host.gpus()
    if not gpus and wanted["require_gpu"]:
        return [
            "There is no NVIDIA GPU on PCI. Check that the board is seated and switched on in the "
            "BIOS, or set provision.check_host.require_gpu to false."
        ]
    old = [f"{gpu.address} (10de:{gpu.device:04x})" for gpu in gpus if gpu.device < FIRST_TURING]
    if old and wanted["driver"]:
        return [
            f"The open kernel modules do not drive {', '.join(old)}, which is older than Turing. "
            "Blackwell needs the open ones: the two cannot be in one host."
        ]
    return []


def _headers(host: Host, wanted: dict[str, Any]) -> list[str]:
    kernel = host.running_kernel()
    if not wanted["driver"] or not kernel or host.headers(kernel):
        return []
    if host.path("/lib/modules/" + kernel).is_dir() and host.available("linux-headers-" + kernel):
        return []
    return [
        f"The headers of the running kernel {kernel} are neither installed nor known to apt, so "
        "the driver cannot be built: run apt-get update, or boot a kernel that apt has."
    ]


def _space(host: Host, wanted: dict[str, Any]) -> list[str]:
    place = host.path(wanted["engine_path"])
    if place.is_dir() and any(place.iterdir()):
        return []  # the engine is there already, and has taken its space
    while not place.exists():
        place = place.parent
    stat = os.statvfs(place)
    free = stat.f_bavail * stat.f_frsize
    if free >= wanted["free_disk"]:
        return []
    return [
        f"{_gib(free)} are free at {place}, where the engine goes; "
        f"provision.check_host.free_disk asks for {_gib(wanted['free_disk'])}."
    ]


def _memory(host: Host, wanted: dict[str, Any]) -> list[str]:
    words = host.read("/proc/meminfo").split()
    total = int(words[words.index("MemTotal:") + 1]) * 1024
    if total >= wanted["memory"]:
        return []
    return [
        f"This host has {_gib(total)} of memory; "
        f"provision.check_host.memory asks for {_gib(wanted['memory'])}."
    ]


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _secure_boot(host: Host) -> dict[str, str]:
    try:
        on = host.path(SECURE_BOOT).read_bytes()[-1:] == b"\1"
    except OSError:  # no UEFI, or a container
        return {}
    keys = [key for key in SIGNING_KEYS if host.path(key).exists()]
    if not on or any(_enrolled(host, key) for key in keys):
        return {}
    key = keys[0] if keys else SIGNING_KEYS[0]
    return {
        "secure-boot": "Secure Boot is on and refuses the driver until the key that DKMS signs "
        f"with is enrolled: mokutil --import {key}, reboot, and confirm at the console; "
        "or switch Secure Boot off in the BIOS."
    }


def _enrolled(host: Host, key: str) -> bool:
    # mokutil ends with 1 for an enrolled key and 0 for another one: its words are the answer.
    return "is already enrolled" in host.run("mokutil", "--test-key", key).out


def _nouveau(host: Host) -> dict[str, str]:
    if host.container() or not host.path("/sys/module/nouveau").exists():
        return {}
    return {"nouveau": "reboot: nouveau holds the GPUs until then; the next boot leaves it out."}


if __name__ == "__main__":
    answer("check_host", OPTIONS, see)
