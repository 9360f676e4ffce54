#!/usr/bin/python3
"""Ansible module: what a host has of a CUDA toolkit."""

from __future__ import annotations

import os
import re
from typing import Any

from ansible.module_utils.opsctl_system import Host, Seen, answer, natural

DOCUMENTATION = r"""
module: opsctl_see_toolkit
short_description: What a host has of a CUDA toolkit
description: Changes nothing but the notes of what a person must do.
options:
  state: {type: str, choices: [present, absent], default: present}
  pending: {type: path, required: true, description: Folder of notes.}
  version: {type: str, required: true, description: Release, as in 13.0.}
"""
OPTIONS = {"version": {"type": "str", "required": True}}
OF_A_DRIVER = re.compile(r"\b\d{3}(?:\.\d+)+")
LINK = "/usr/local/cuda"
MARKER = "/var/lib/opsctl-provision/installed.d/cuda_toolkit"


def see(host: Host, wanted: dict[str, Any]) -> Seen:
    """Compare the host with what is wanted of it."""
    release = wanted["version"]
    package = "cuda-toolkit-" + release.replace(".", "-")
    there = sorted(name for name in host.installed() if _of(name, release))
    known = host.available(package)
    facts: dict[str, Any] = {
        "package": package,
        "installed": there,
        "ours": [name for name in host.read(MARKER).splitlines() if name in there],
        "available": bool(known),
    }
    if wanted["state"] == "absent":
        return Seen(facts)
    complete = package in there
    folder = f"{LINK}-{release}"
    compiler = host.has("g++") or host.has("c++")
    facts |= {
        "change": not complete,
        "compiler": [] if compiler or not host.available("g++") else ["g++"],
        "folder": folder,
        "linked": os.path.realpath(host.path(LINK)) == str(host.path(folder)),
        "link_is_folder": host.path(LINK).is_dir() and not host.path(LINK).is_symlink(),
        "broken": _broken(host, folder, release) if complete else "",
    }
    return Seen(facts, {**_compat(host), **_no_compiler(compiler)})


def _of(name: str, release: str) -> bool:
    """Whether a package is of this release; each of its packages has it in its name."""
    suffix = release.replace(".", "-")
    return name.endswith("-" + suffix) or name == f"cuda-toolkit-{suffix}-config-common"


def _broken(host: Host, folder: str, release: str) -> str:
    """Return what is wrong with the compiler of an installed toolkit; empty when nothing is."""
    ran = host.run(f"{folder}/bin/nvcc", "--version")
    found = re.search(r"release (\d+\.\d+)", ran.out)
    if ran.code == 0 and found and found[1] == release:
        return ""
    last = ran.out.splitlines()[-1:] or [f"exit {ran.code}"]
    return f"{folder}/bin/nvcc does not say that it is of release {release}: {last[0]}"


def _compat(host: Host) -> dict[str, str]:
    """Report libraries for older drivers: wherever they are found first they hide a newer one."""
    driver = host.read("/sys/module/nvidia/version") or _installed_driver(host)
    found = []
    for folder in sorted(host.path("/usr/local").glob("cuda-*/compat")):
        names = [file.name.removeprefix("libcuda.so.") for file in folder.glob("libcuda.so.*")]
        versions = [name for name in names if OF_A_DRIVER.fullmatch(name)]
        if names and driver and not any(natural(v) > natural(driver) for v in versions):
            found.append(f"/{folder.relative_to(host.root)}")
    if not found:
        return {}
    return {
        "compat": f"{', '.join(found)}: libraries for drivers older than {driver} hide those of "
        "the driver wherever LD_LIBRARY_PATH or /etc/ld.so.conf.d names the folder. Remove the "
        "package cuda-compat; then run ldconfig."
    }


def _installed_driver(host: Host) -> str:
    packages = host.installed().items()
    libraries = [v for name, v in packages if re.match(r"libcuda1$|libnvidia-compute", name)]
    return next((match[0] for v in libraries if (match := OF_A_DRIVER.search(v))), "")


def _no_compiler(there: bool) -> dict[str, str]:
    if there:
        return {}
    return {"compiler": "nvcc needs a C++ compiler to build kernels: apt-get install g++."}


if __name__ == "__main__":
    answer("cuda_toolkit", OPTIONS, see)
