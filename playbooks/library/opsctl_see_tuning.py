#!/usr/bin/python3
"""Ansible module: which settings of kernel and driver hold now, and which need what."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible.module_utils.opsctl_pci import redirecting
from ansible.module_utils.opsctl_system import Host, Seen, answer

DOCUMENTATION = r"""
module: opsctl_see_tuning
short_description: Which settings of kernel and driver hold now
description: Changes nothing but the notes of what a person must do.
options:
  state: {type: str, choices: [present, absent], default: present}
  pending: {type: path, required: true, description: Folder of notes.}
  files: {type: dict, required: true, description: "Our files: whether each is wanted, by path."}
  units: {type: dict, required: true, description: "Our units: whether each is wanted, by name."}
  words: {type: list, elements: str, required: true, description: Of the kernel line.}
  sysctl: {type: dict, required: true}
  registry: {type: str, required: true, description: Registry keys of the driver; empty for none.}
  disable_hmm: {type: bool, required: true}
  iommu: {type: str, required: true}
  disable_acs: {type: bool, required: true}
  power_limit: {type: int, required: true, description: Watts; 0 leaves it.}
  persistence: {type: bool, required: true, description: Whether the driver stays loaded.}
  shm_size: {type: int, required: true, description: Bytes; 0 leaves it.}
"""
OPTIONS: dict[str, Any] = {
    "files": {"type": "dict", "required": True},
    "units": {"type": "dict", "required": True},
    "words": {"type": "list", "elements": "str", "required": True},
    "sysctl": {"type": "dict", "required": True},
    "registry": {"type": "str", "required": True},
    "disable_hmm": {"type": "bool", "required": True},
    "iommu": {"type": "str", "required": True},
    "disable_acs": {"type": "bool", "required": True},
    "power_limit": {"type": "int", "required": True},
    "persistence": {"type": "bool", "required": True},
    "shm_size": {"type": "int", "required": True},
}
UNITS = "/etc/systemd/system/"
GRUB = "/etc/default/grub.d/opsctl.cfg"
MODPROBE = "/etc/modprobe.d/opsctl-nvidia.conf"
SHM = "/dev/shm"  # noqa: S108 - it is asked about, nothing is written there
TAKEN_AWAY = "/run/opsctl-gpu-tuning-taken-away"
"""Laid when a setting is taken away, and gone with the next boot as the setting is."""


def see(host: Host, wanted: dict[str, Any]) -> Seen:
    """Compare the host with what is wanted of it."""
    if wanted["state"] == "absent":
        wanted = {**wanted, "words": [], "sysctl": {}, "registry": "", "disable_hmm": False}
        wanted |= {"iommu": "leave", "disable_acs": False, "power_limit": 0, "shm_size": 0}
    power, range_problem = _power(host, wanted["power_limit"])
    shm, shm_problem = _shm(host, wanted["shm_size"])
    acs = redirecting(host)
    # A bridge that keeps its bits is noted, and not asked again and again.
    stubborn = host.path(wanted["pending"] + "/gpu_tuning-acs").exists()
    due = {
        "opsctl-power-limit.service": power,
        "opsctl-shm.service": shm,
        "opsctl-acs.service": wanted["disable_acs"] and bool(acs) and not stubborn,
    }
    units = wanted["units"]
    facts = {
        "problems": [text for text in (range_problem, shm_problem) if text],
        "files_extra": _extra(host, wanted["files"]),
        "folders": _folders(host, wanted["files"]),
        "units_extra": [u for u, asked in units.items() if not asked and _there(host, UNITS + u)],
        "units_off": [u for u, asked in units.items() if asked and not _enabled(host, u)],
        "units_due": [u for u, asked in units.items() if asked and due[u]],
        "setpci": host.has("setpci"),
        "grub": host.has("update-grub"),
        "grub_stale": _older(host, "/boot/grub/grub.cfg", GRUB),
        "initramfs": host.has("update-initramfs"),
        "initramfs_stale": _older(host, "/boot/initrd.img-*", MODPROBE),
        "sysctl_due": [key for key in _differing(host, wanted) if _writable(host, key)],
    }
    return Seen(facts, {**_left(host, wanted, acs), **_contradictions(host, wanted, acs)})


def _extra(host: Host, files: dict[str, bool]) -> list[str]:
    return [path for path, asked in files.items() if not asked and _there(host, path)]


def _folders(host: Host, files: dict[str, bool]) -> list[str]:
    """Folders to make first: not every system comes with /etc/default/grub.d."""
    wanted = {str(Path(path).parent) for path, asked in files.items() if asked}
    return sorted(folder for folder in wanted if not host.path(folder).is_dir())


def _there(host: Host, path: str) -> bool:
    return os.path.lexists(host.path(path))


def _enabled(host: Host, unit: str) -> bool:
    return _there(host, f"{UNITS}multi-user.target.wants/{unit}")


def _older(host: Host, made: str, source: str) -> bool:
    """Whether something made from our file is older than it, or than its being taken away."""
    gone = source in host.read(TAKEN_AWAY).split()
    file = host.path(TAKEN_AWAY if gone else source)
    products = host.root.glob(made.lstrip("/"))
    return file.exists() and any(p.stat().st_mtime < file.stat().st_mtime for p in products)


def _power(host: Host, watts: int) -> tuple[bool, str]:
    """Whether a GPU has another limit, and what is wrong with the one that is asked for."""
    if not watts:
        return False, ""
    query = "--query-gpu=power.limit,power.min_limit,power.max_limit"
    ran = host.run("nvidia-smi", query, "--format=csv,noheader,nounits", timeout=30)
    try:
        rows = [[float(cell) for cell in line.split(",")] for line in ran.out.splitlines()]
    except ValueError:  # no driver yet, or a board that knows no limits
        return False, ""
    if ran.code != 0 or not rows or any(len(row) != 3 for row in rows):
        return False, ""
    least, most = max(row[1] for row in rows), min(row[2] for row in rows)
    if not least <= watts <= most:
        return False, (
            f"provision.gpu_tuning.power_limit is {watts} W; "
            f"the GPUs here take {least:.0f} to {most:.0f} W."
        )
    return any(abs(row[0] - watts) >= 1 for row in rows), ""


def _shm(host: Host, size: int) -> tuple[bool, str]:
    if not size:
        return False, ""
    stat = os.statvfs(host.path(SHM))
    used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
    if used > size:
        return False, f"{SHM} holds {used} bytes, more than provision.gpu_tuning.shm_size."
    return abs(stat.f_blocks * stat.f_frsize - size) >= stat.f_frsize, ""


def _differing(host: Host, wanted: dict[str, Any]) -> list[str]:
    return [
        key
        for key, value in wanted["sysctl"].items()
        if host.path(_proc(key)).exists() and host.read(_proc(key)).split() != str(value).split()
    ]


def _proc(key: str) -> str:
    return "/proc/sys/" + key.replace(".", "/")


def _writable(host: Host, key: str) -> bool:
    return os.access(host.path(_proc(key)), os.W_OK)  # not in a container, where it is read-only


def _left(host: Host, wanted: dict[str, Any], acs: list[str]) -> dict[str, str]:
    """Say what does not hold yet, and what a person must do for it."""
    notes = {}
    reasons = _before_reboot(host, wanted)
    if reasons:
        notes["reboot"] = f"reboot: {'; '.join(reasons)}."
    notes |= _kernel_line(host, wanted["words"])
    stuck = [key for key in _differing(host, wanted) if _writable(host, key)]
    if stuck and host.path("/etc/sysctl.d/90-opsctl.conf").exists():
        notes["sysctl"] = (
            f"{', '.join(stuck)} has another value than provision.gpu_tuning.sysctl asks for: "
            "see sysctl --load=/etc/sysctl.d/90-opsctl.conf for what the kernel says."
        )
    if wanted["disable_acs"] and acs and host.path(UNITS + "opsctl-acs.service").exists():
        notes["acs"] = (
            f"{', '.join(acs)} still redirects peer-to-peer traffic: switch ACS off in the BIOS."
        )
    return notes


def _before_reboot(host: Host, wanted: dict[str, Any]) -> list[str]:
    reasons = []
    line = host.read("/proc/cmdline").split()
    missing = [word for word in wanted["words"] if word not in line]
    if missing and host.has("update-grub"):
        reasons.append(f"the kernel runs without {' '.join(missing)}")
    if host.read(TAKEN_AWAY):
        reasons.append("settings were taken away, and hold until then")
    if host.container():
        return reasons
    loaded = host.read("/proc/driver/nvidia/params")
    if wanted["registry"] and loaded and wanted["registry"] not in loaded:
        reasons.append("the driver is loaded without the registry keys for peer-to-peer")
    hmm = host.read("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm")
    if wanted["disable_hmm"] and hmm == "N":
        reasons.append("nvidia_uvm is loaded without uvm_disable_hmm=1")
    return reasons


def _kernel_line(host: Host, words: list[str]) -> dict[str, str]:
    if words and not host.has("update-grub"):
        line = host.read("/proc/cmdline").split()
        missing = [word for word in words if word not in line]
        text = (
            "There is no GRUB here: add {} to the kernel line of this host's boot loader; reboot."
        )
        return {"kernel-line": text.format(" ".join(missing))} if missing else {}
    config = host.read("/boot/grub/grub.cfg")
    lost = [word for word in words if config and word not in config.split()]
    if not lost or not host.path(GRUB).exists():
        return {}
    return {
        "kernel-line": f"GRUB's menu does not have {' '.join(lost)} although {GRUB} does: "
        "another file in /etc/default sets GRUB_CMDLINE_LINUX after it."
    }


def _contradictions(host: Host, wanted: dict[str, Any], acs: list[str]) -> dict[str, str]:
    notes = {}
    if wanted["registry"] and wanted["iommu"] == "leave" and _translating(host):
        notes["force-p2p"] = (
            "force_p2p is on and the IOMMU translates: peer-to-peer writes may hang or corrupt "
            "(vllm#33041). Set provision.gpu_tuning.iommu to off, or to pt."
        )
    if wanted["registry"] and acs and not wanted["disable_acs"]:
        notes["force-p2p-acs"] = (
            f"force_p2p is on and {', '.join(acs)} redirects it through the root complex. "
            "Set provision.gpu_tuning.disable_acs, or switch ACS off in the BIOS."
        )
    other = _other_options(host) if wanted["registry"] else ""
    if other:
        notes["registry"] = f"{other} sets NVreg_RegistryDwords too, and only one of both counts."
    if wanted["power_limit"] and not wanted["persistence"]:
        notes["power-limit"] = (
            "power_limit is lost whenever the driver unloads: "
            "set provision.nvidia_driver.persistence."
        )
    virtual = [p.name for p in host.path("/sys/bus/pci/drivers/vfio-pci").glob("*:*")]
    if virtual and (wanted["iommu"] == "off" or wanted["disable_acs"]):
        notes["vfio"] = (
            f"{', '.join(sorted(virtual))} belongs to a virtual machine, which needs the IOMMU and "
            "ACS: set provision.gpu_tuning.iommu to pt and leave disable_acs off."
        )
    return notes


def _translating(host: Host) -> bool:
    groups = (f"/sys/bus/pci/devices/{gpu.address}/iommu_group/type" for gpu in host.gpus())
    return any(host.read(group).startswith("DMA") for group in groups)


def _other_options(host: Host) -> str:
    folders = ("/etc/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")
    files = [f"{folder}/{f.name}" for folder in folders for f in host.path(folder).glob("*.conf")]
    lines = ((file, line) for file in files for line in host.read(file).splitlines())
    return next(
        (
            file
            for file, line in lines
            if file != MODPROBE and line.startswith("options") and "NVreg_RegistryDwords" in line
        ),
        "",
    )


if __name__ == "__main__":
    answer("gpu_tuning", OPTIONS, see)
