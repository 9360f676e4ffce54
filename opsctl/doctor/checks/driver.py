"""Driver and kernel module. Pure."""

from __future__ import annotations

import re

from opsctl.doctor.host import Facts
from opsctl.doctor.model import Verdict, check, fail, ok, unknown, warn

VERSION_FILE = "/proc/driver/nvidia/version"
LEAST_BRANCH = 580
"""CUDA 13 needs it (CUDA 13 release notes, table of driver versions)."""
_KINDS = {
    "open": re.compile(r"NVRM version:.*Open Kernel Module"),
    "closed": re.compile(r"NVRM version: NVIDIA UNIX \S+ Kernel Module"),
}


def kernel_module_kind(text: str) -> str | None:
    """Tell from /proc/driver/nvidia/version whether the module is `open` or `closed`."""
    return next((kind for kind, pattern in _KINDS.items() if pattern.search(text)), None)


def major(version: str | None) -> int | None:
    """Return the first number of a version."""
    found = re.match(r"\d+", version or "")
    return int(found.group()) if found else None


@check(
    "driver-loaded",
    "The NVIDIA driver is loaded and answers",
    severity="fail",
    reads=("driver", "pci"),
    wanted="every GPU on the PCI bus answers the driver",
    why="without the driver nothing runs; one that hangs hangs every engine, too",
    source="NVML, /sys/bus/pci/devices",
    fix="opsctl provision --tags nvidia_driver",
)
def driver_loaded(facts: Facts) -> Verdict:
    """Compare what NVML says with the GPUs on the PCI bus."""
    on_bus, seen = len(facts.pci), len(facts.driver.gpus)
    if facts.driver.state in {"fault", "unresponsive"}:
        return fail(f"{facts.driver.state}: {facts.driver.why}", fix="manual: reboot the host")
    if facts.driver.state == "absent":
        if on_bus == 0:
            return unknown(f"this host has no NVIDIA GPU on its PCI bus ({facts.driver.why})")
        return fail(f"{facts.driver.why}; GPUs on the bus: {on_bus}")
    broken = [f"GPU {gpu.index}: {gpu.fault}" for gpu in facts.driver.gpus if gpu.fault]
    if broken:
        return fail("; ".join(broken), fix="manual: drain, then reset the GPU or reboot")
    if on_bus > seen:
        return fail(f"{seen} of {on_bus} GPUs on the PCI bus", fix="manual: reboot the host")
    return ok(f"driver {facts.driver.driver}, GPUs: {seen}")


@check(
    "driver-branch",
    "The driver is new enough for CUDA 13",
    severity="fail",
    reads=("driver", "gpus"),
    uses=("stacks",),
    wanted="R580 or later, and CUDA no older than torch's",
    why="an older driver cannot load what CUDA 13 builds",
    source="CUDA 13 release notes",
    fix="opsctl provision --tags nvidia_driver",
)
def driver_branch(facts: Facts) -> Verdict:
    """Compare the driver's branch and CUDA version with what torch was built for."""
    branch, cuda = major(facts.driver.driver), major(facts.driver.cuda)
    value = f"driver {facts.driver.driver}, CUDA {facts.driver.cuda}"
    if branch is None or cuda is None:
        return unknown("NVML does not tell the driver's version", value)
    if branch < LEAST_BRANCH:
        return fail(value)
    needed = max((major(stack.torch_cuda) or 0 for stack in facts.stacks), default=0)
    if cuda < needed:
        return fail(f"{value}, torch needs CUDA {needed}")
    return ok(value)


@check(
    "open-kernel-module",
    "The open kernel modules are loaded",
    severity="fail",
    reads=("gpus", "texts"),
    wanted="NVIDIA open kernel module",
    why="Blackwell GPUs work with the open kernel modules only",
    source=VERSION_FILE,
    fix="opsctl provision --tags nvidia_driver",
)
def open_kernel_module(facts: Facts) -> Verdict:
    """Read which flavour of the kernel module is loaded."""
    text = facts.text(VERSION_FILE)
    if text is None:
        return unknown(f"{VERSION_FILE} cannot be read")
    kind = kernel_module_kind(text)
    if kind is None:
        return unknown(f"{VERSION_FILE} names no known kind of module")
    if kind == "open":
        return ok("open")
    blackwell = any((gpu.compute_capability or (0, 0))[0] >= 10 for gpu in facts.gpus)
    return fail("closed") if blackwell else warn("closed", why="GPUs before Blackwell work with it")


@check(
    "xid",
    "The driver reported no errors since boot",
    severity="fail",
    reads=("gpus", "xids"),
    wanted="no Xid that asks for a reset or a restart",
    why="a GPU with a fatal Xid fails at the next start, or gives wrong results",
    source="kernel log, NVIDIA's Xid catalogue",
    fix="manual: drain, then reset the GPU or reboot; see `opsctl gpu ps`",
)
def xid(facts: Facts) -> Verdict:
    """Judge the Xids by what NVIDIA's catalogue says to do."""
    shown = [f"{x.code} on {x.bus_id or '?'}" for x in facts.xids]
    value = ", ".join(dict.fromkeys(shown)) or "none"
    remedies = {x.remedy for x in facts.xids}
    if remedies & {"reset", "reboot"}:
        return fail(value, fix="manual: reboot the host" if "reboot" in remedies else None)
    if "restart engine" in remedies:
        return warn(value, why="an engine was hit; one started since then is not concerned")
    return ok(value)


CHECKS = (driver_loaded, driver_branch, open_kernel_module, xid)
