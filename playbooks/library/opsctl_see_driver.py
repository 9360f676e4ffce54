#!/usr/bin/python3
"""Ansible module: what a host has of NVIDIA's driver, and what has to be done about it.

Which version: the exact one where one is named, else what is installed as long as it is of the
branch, else the newest of the branch. So a second run never moves a driver.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch
from typing import Any

from ansible.module_utils.opsctl_system import Host, Seen, answer, natural

DOCUMENTATION = r"""
module: opsctl_see_driver
short_description: What a host has of NVIDIA's driver
description: Changes nothing but the notes of what a person must do.
options:
  state: {type: str, choices: [present, absent], default: present}
  pending: {type: path, required: true, description: Folder of notes.}
  branch: {type: str, required: true}
  version: {type: str, default: "", description: Exact version; empty for one of the branch.}
  names: {type: list, elements: str, required: true, description: Packages of the driver, as globs.}
  modprobe: {type: path, required: true, description: Our file that keeps nouveau out.}
"""
OPTIONS = {
    "branch": {"type": "str", "required": True},
    "version": {"type": "str", "default": ""},
    "names": {"type": "list", "elements": "str", "required": True},
    "modprobe": {"type": "path", "required": True},
}
# Debian: the compute-only set, without a display server. Ubuntu's names carry the branch up to 580
# and not from 590 on (driver installation guide, Recent Updates); this metapackage leads to both.
PACKAGES = {
    "debian": ("nvidia-driver-cuda", "nvidia-kernel-open-dkms"),
    "ubuntu": ("nvidia-open",),
}
OF_A_DRIVER = re.compile(r"(?:\d+:)?(\d{3}\.\d+(?:\.\d+)*)")
UNIT = "nvidia-persistenced.service"
MARKER = "/var/lib/opsctl-provision/installed.d/nvidia_driver"


def see(host: Host, wanted: dict[str, Any]) -> Seen:
    """Compare the host with what is wanted of it."""
    every = host.installed()
    there = {
        name: version
        for name, version in every.items()
        if OF_A_DRIVER.match(version) and any(fnmatch(name, glob) for glob in wanted["names"])
    }
    held = set(host.run("apt-mark", "showhold").out.split())
    facts: dict[str, Any] = {
        "installed": sorted(there),
        "held": sorted(held & set(there)),
        "unheld": sorted(set(there) - held),
        "ours": [name for name in host.read(MARKER).splitlines() if name in there],
        "unit": _unit(host) != "",
        "initramfs": host.has("update-initramfs"),
    }
    if wanted["state"] == "absent":
        return Seen(facts, _left_loaded(host, there))
    target = _target(host, wanted, there)
    complete = _complete(target["packages"], there, target["version"])
    bare = [kernel for kernel in host.kernels() if complete and not _module(host, kernel)]
    loaded = "" if host.container() else host.read("/sys/module/nvidia/version")
    facts |= target | {
        "change": not complete or bool(target["install"] or target["headers"]),
        "build": [kernel for kernel in bare if host.headers(kernel) and host.has("dkms")],
        "initramfs_stale": _initramfs_stale(host, wanted["modprobe"]),
        "persistence_exec": _persistent(_unit(host)),
        "startable": _startable(host, loaded, target["version"], complete),
    }
    return Seen(facts, _notes(host, bare, loaded, target["version"] if complete else ""))


def _target(host: Host, wanted: dict[str, Any], there: dict[str, str]) -> dict[str, Any]:
    """Return the version to have, and what to ask of apt for it; an empty version is unknown."""
    packages = list(PACKAGES.get(host.release()[0], PACKAGES["ubuntu"]))
    known = {name: host.available(name) for name in packages}
    mine = [there.get(name, "") for name in packages]
    chosen = _fitting(wanted, [*mine, *known[packages[0]]])
    versions = {
        name: _of(upstream(chosen), [there.get(name, ""), *known[name]]) for name in packages
    }
    # What another branch left behind: on Debian the packages of a branch accept newer ones of
    # another (forums.developer.nvidia.com/t/353805), so they are named one by one.
    strays = [name for name in there if chosen and upstream(there[name]) != upstream(chosen)]
    versions |= {name: _of(upstream(chosen), host.available(name)) for name in strays}
    asked = {name: version for name, version in versions.items() if version}
    return {
        "packages": packages,
        "version": upstream(chosen) if all(versions[name] for name in packages) else "",
        "available": sorted({upstream(v) for v in known[packages[0]]}, key=natural),
        "install": [f"{n}={v}" for n, v in sorted(asked.items()) if there.get(n) != v],
        "headers": _headers(host),
    }


def _fitting(wanted: dict[str, Any], versions: list[str]) -> str:
    exact = wanted["version"]
    for version in versions:
        if exact and exact in {version, upstream(version)}:
            return version
        if not exact and version and upstream(version).split(".")[0] == wanted["branch"]:
            return version
    return ""


def _of(wanted: str, versions: list[str]) -> str:
    return next((v for v in versions if wanted and v and upstream(v) == wanted), "")


def upstream(version: str) -> str:
    """Return NVIDIA's own number in a package version: 580.95.05 of 580.95.05-1ubuntu1."""
    match = OF_A_DRIVER.match(version)
    return match[1] if match else ""


def _complete(packages: list[str], there: dict[str, str], version: str) -> bool:
    return bool(version) and all(upstream(there.get(name, "")) == version for name in packages)


def _headers(host: Host) -> list[str]:
    """Return packages of kernel headers that are missing and that apt knows.

    Besides those of the kernels at hand, the one that brings them along with each new kernel.
    """
    lacking = [kernel for kernel in host.kernels() if not host.headers(kernel)]
    names = ["linux-headers-" + kernel for kernel in lacking]
    there = host.installed()
    metas = [name for name in there if re.fullmatch(r"linux-image-[a-z-]+[a-z0-9.-]*", name)]
    names += [name.replace("-image-", "-headers-") for name in metas]
    return sorted({name for name in names if name not in there and host.available(name)})


def _module(host: Host, kernel: str) -> bool:
    tree = host.path("/lib/modules/" + kernel)
    return next(tree.rglob("nvidia.ko*"), None) is not None


def _initramfs_stale(host: Host, modprobe: str) -> bool:
    """Whether an image for booting is older than our file, so that nouveau still starts from it."""
    file = host.path(modprobe)
    images = list(host.path("/boot").glob("initrd.img-*"))
    return file.exists() and any(i.stat().st_mtime < file.stat().st_mtime for i in images)


def _unit(host: Host) -> str:
    for folder in ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"):
        text = host.read(f"{folder}/{UNIT}")
        if text:
            return text
    return ""


def _persistent(unit: str) -> str:
    """Return the daemon's command with persistence on, where the package has it off (Ubuntu)."""
    for line in unit.splitlines():
        if line.startswith("ExecStart=") and "--no-persistence-mode" in line:
            return " ".join(line.replace("--no-persistence-mode", "").split())
    return ""


def _startable(host: Host, loaded: str, version: str, complete: bool) -> bool:
    """Whether the persistence daemon can start now; it fails on another driver than its own."""
    if not complete or not host.gpus() or host.container():
        return False
    if loaded:
        return loaded == version
    free = not host.path("/sys/module/nouveau").exists()
    return free and _module(host, host.running_kernel())


def _notes(host: Host, bare: list[str], loaded: str, version: str) -> dict[str, str]:
    notes = {}
    if bare:
        need = f"apt-get install linux-headers-{bare[-1]}, then "
        notes["kernel"] = (
            f"The driver is not built for kernel {', '.join(bare)}, which would boot without GPUs: "
            f"{'' if host.headers(bare[-1]) else need}dkms autoinstall -k {bare[-1]}; what a "
            "build said is in /var/lib/dkms/nvidia/*/build/make.log."
        )
    if loaded and version and loaded != version:
        notes["reboot"] = f"reboot: driver {loaded} is loaded, {version} is installed."
    elif version and not loaded and host.gpus() and not host.container():
        notes["reboot"] = f"reboot: driver {version} is installed, none is loaded."
    return notes


def _left_loaded(host: Host, there: dict[str, str]) -> dict[str, str]:
    loaded = "" if host.container() else host.read("/sys/module/nvidia/version")
    if loaded and not there:
        return {"reboot": f"reboot: driver {loaded} is removed, and still loaded."}
    return {}


if __name__ == "__main__":
    answer("nvidia_driver", OPTIONS, see)
