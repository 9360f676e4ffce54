"""The way to each GPU: PCIe link, BAR1, IOMMU, ACS, power saving. Pure."""

from __future__ import annotations

import re

from opsctl.doctor.checks.words import silent, told
from opsctl.doctor.host import Bridge, Facts
from opsctl.doctor.model import Verdict, check, ok, unknown, warn

CMDLINE = "/proc/cmdline"
ASPM = "/sys/module/pcie_aspm/parameters/policy"
HMM = "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm"
_TUNING = "opsctl provision --tags gpu_tuning"
_REDIRECTS = {0x04: "ReqRedir", 0x08: "CmpltRedir"}
_SOURCE_VALIDATION = 0x01
_MANY_ERRORS = 100
"""Corrected link errors since boot that opsctl takes for more than noise; its own figure."""
_OFF = re.compile(r"\b(?:(?:amd|intel)_)?iommu=off\b")
_CC = "https://github.com/vllm-project/vllm/issues/33041"


def active_choice(text: str) -> str | None:
    """Return the word in brackets, as in `[default] performance powersave`."""
    found = re.search(r"\[(\w+)\]", text)
    return found[1] if found else None


@check(
    "pcie-link",
    "Every GPU has a full PCIe link",
    severity="warn",
    reads=("gpus",),
    wanted="generation 5, 16 lanes",
    why="without NVLink every collective passes these links; a narrow one slows all ranks",
    source="NVML; an idle link shows a lower generation, so the possible one is judged",
    fix="manual: reseat the card or riser; look at slot and bifurcation in the BIOS",
)
def pcie_link(facts: Facts) -> Verdict:
    """Judge the possible generation, and the lanes that are in use."""
    gpus = facts.gpus
    if any(g.pcie_generation_max is None or g.pcie_width is None for g in gpus):
        return unknown("NVML does not tell the PCIe link of every GPU")
    value = told(f"Gen{g.pcie_generation_max} x{g.pcie_width}" for g in gpus)
    slow = any((g.pcie_generation_max or 0) < 5 or (g.pcie_width or 0) < 16 for g in gpus)
    return warn(value) if slow else ok(value)


@check(
    "pcie-errors",
    "The PCIe links are free of errors",
    severity="warn",
    reads=("gpus", "pci"),
    uses=("details",),
    wanted=f"no fatal error, at most {_MANY_ERRORS} corrected ones since boot",
    why="a link that repeats itself is slow, and the next step is a GPU that falls off the bus",
    source="/sys/bus/pci/devices/*/aer_dev_*, NVML replay counter",
    fix="manual: reseat card and riser, clean contacts; a lower link speed in the BIOS as a test",
)
def pcie_errors(facts: Facts) -> Verdict:
    """Count errors of the links since boot."""
    bad = [f"{x.address}: {x.fatal} uncorrected" for x in facts.pci if x.fatal]
    noisy = [x for x in facts.pci if (x.correctable or 0) > _MANY_ERRORS]
    bad += [f"{x.address}: {x.correctable} corrected" for x in noisy]
    repeats = [x for x in facts.details.gpus if (x.replays or 0) > _MANY_ERRORS]
    bad += [f"GPU {x.index}: {x.replays} replays" for x in repeats]
    if bad:
        return warn("; ".join(bad))
    counted = [x.fatal is not None for x in facts.pci]
    if not all(counted) or not counted:
        dumb = silent(facts, "replays", "the replay counter")
        return dumb or unknown("the kernel counts no errors here (AER is off)", "no replays")
    return ok("none")


@check(
    "bar1",
    "All GPU memory can be reached over PCIe",
    severity="warn",
    reads=("gpus", "details"),
    wanted="BAR1 at least as large as the GPU's memory",
    why="peers reach only what the window shows: with a small one there is no peer-to-peer access",
    source="NVML",
    fix="manual: BIOS: Above 4G Decoding and Resizable BAR on; on boards with a display mode, "
    "the headless one",
)
def bar1(facts: Facts) -> Verdict:
    """Compare the size of BAR1 with the memory."""
    if lacking := silent(facts, "bar1_total", "the size of BAR1"):
        return lacking
    sizes = {x.index: x.bar1_total or 0 for x in facts.details.gpus}
    value = told(f"{size >> 20} MiB" for size in sizes.values())
    if any(gpu.memory_total is None for gpu in facts.gpus):
        return unknown("NVML does not tell the memory of every GPU", value)
    small = any(sizes[gpu.index] < (gpu.memory_total or 0) for gpu in facts.gpus)
    return warn(value) if small else ok(value)


@check(
    "iommu",
    "The IOMMU does not translate for the GPUs",
    severity="warn",
    reads=("pci", "texts"),
    wanted="off, or pass-through (identity)",
    why="with translation, peer-to-peer over PCIe hangs or corrupts on many boards; hosts of "
    "virtual machines need it",
    source=f"{_CC}; /proc/cmdline, /sys/kernel/iommu_groups",
    fix=f"{_TUNING}  # gpu_tuning.iommu: off or pt",
)
def iommu(facts: Facts) -> Verdict:
    """Judge the IOMMU groups of the GPUs, and without any the kernel line."""
    cmdline = facts.text(CMDLINE)
    kinds = [gpu.iommu for gpu in facts.pci]
    translated = [kind for kind in kinds if kind and kind != "identity"]
    if not facts.pci:
        return unknown("this host has no NVIDIA GPU on its PCI bus")
    if translated:
        return warn(told(translated))
    if "identity" in kinds:
        return ok("pass-through")
    off = cmdline is not None and _OFF.search(cmdline)
    return ok("off by the kernel line" if off else "no IOMMU")


@check(
    "acs",
    "ACS does not redirect peer-to-peer traffic",
    severity="warn",
    reads=("pci",),
    wanted="no ReqRedir or CmpltRedir on bridges above GPUs",
    why="redirected traffic takes the way through the root complex: slow, and NCCL may hang",
    source=f"{_CC}; PCI configuration space",
    fix="manual: BIOS: ACS off; or gpu_tuning.disable_acs and `opsctl provision --tags gpu_tuning`",
)
def acs(facts: Facts) -> Verdict:
    """Read ACS control of every bridge above a GPU."""
    if not facts.pci:
        return unknown("this host has no NVIDIA GPU on its PCI bus")
    bridges = {bridge.address: bridge for gpu in facts.pci for bridge in gpu.bridges}
    redirecting = [text for x in bridges.values() if (text := _redirects(x))]
    if redirecting:
        return warn("; ".join(redirecting))
    hidden = [x.address for x in bridges.values() if not x.readable]
    if hidden:
        return unknown(f"configuration space of {', '.join(hidden)} cannot be read; ask as root")
    validated = [x.address for x in bridges.values() if (x.acs or 0) & _SOURCE_VALIDATION]
    return ok("no redirection" + (f"; SrcValid on {', '.join(validated)}" if validated else ""))


def _redirects(bridge: Bridge) -> str:
    names = [name for bit, name in _REDIRECTS.items() if (bridge.acs or 0) & bit]
    return f"{bridge.address}: {', '.join(names)}" if names else ""


@check(
    "aspm",
    "PCIe links are not put to sleep where they go down",
    severity="warn",
    reads=("gpus", "xids", "texts"),
    wanted="pcie_aspm=off pcie_port_pm=off, once a GPU has fallen off the bus",
    why="some boards lose a link when it wakes up",
    source="rtx6kpro wiki; /sys/module/pcie_aspm, /proc/cmdline, Xid 79",
    fix=f"{_TUNING}  # gpu_tuning.aspm: off",
)
def aspm(facts: Facts) -> Verdict:
    """Ask for ASPM off only where links went down since boot."""
    cmdline = facts.text(CMDLINE)
    if cmdline is not None and "pcie_aspm=off" in cmdline.split():
        return ok("off by the kernel line")
    policy = active_choice(facts.text(ASPM) or "")
    lost = any(x.code == 79 for x in facts.xids)
    if policy == "performance" and not lost:
        return ok("performance")
    value = policy or "no policy"
    return (
        warn(f"{value}; a GPU fell off the bus (Xid 79)") if lost else ok(f"{value}; no link lost")
    )


@check(
    "hmm",
    "uvm_disable_hmm is recorded",
    severity="warn",
    reads=("gpus", "texts"),
    wanted="Y where NCCL locks up, else as it is",
    why="some hosts report NCCL lock-ups that end with uvm_disable_hmm=1",
    source="rtx6kpro wiki",
    fix=f"{_TUNING}  # gpu_tuning.disable_hmm",
)
def hmm(facts: Facts) -> Verdict:
    """Show the parameter; only a lock-up, which cannot be read, would make it wrong."""
    value = facts.text(HMM)
    if value is None:
        return unknown(f"{HMM} is not there: nvidia_uvm is not loaded, or has no such parameter")
    return ok(value)


CHECKS = (pcie_link, pcie_errors, bar1, iommu, acs, aspm, hmm)
