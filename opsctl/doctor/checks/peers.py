"""From GPU to GPU: peer-to-peer access, shared memory handles, topology. Pure."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence

from opsctl.doctor.checks.words import told
from opsctl.doctor.host import Facts, GpuPair
from opsctl.doctor.model import Verdict, check, fail, ok, unknown, warn

PARAMS = "/proc/driver/nvidia/params"
_LEVELS = {0: "one board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_ACROSS_ROOT_PORTS = 30
_STATUSES = {
    1: "chipset not supported",
    2: "GPU not supported",
    3: "topology not supported",
    4: "disabled by registry key",
    5: "not supported",
    6: "unknown",
}
_TUNING = "opsctl provision --tags gpu_tuning"


def registry_dwords(text: str) -> dict[str, str]:
    """Read the keys of `RegistryDwords` in /proc/driver/nvidia/params."""
    found = re.search(r'^RegistryDwords:\s*"?([^"\n]*)"?\s*$', text, re.MULTILINE)
    pairs = (entry.partition("=") for entry in (found[1] if found else "").split(";"))
    return {key.strip(): value.strip() for key, _, value in pairs if key.strip()}


@check(
    "p2p",
    "Every GPU can read and write every other",
    severity="fail",
    reads=("gpus", "details"),
    uses=("cuda", "profiles"),
    wanted="read and write OK for all pairs",
    why="without it NCCL goes through memory, and fast collectives cannot be used at all",
    source="NVML, libcuda; capability is no proof, `opsctl doctor collective` is",
    fix="manual: BIOS: IOMMU and ACS off, Resizable BAR on; then gpu_tuning.force_p2p",
)
def p2p(facts: Facts) -> Verdict:
    """Judge the pairs; what a profile cannot do without turns a warning into a failure."""
    if len(facts.gpus) == 1:
        return ok("one GPU")
    pairs = facts.details.pairs
    wanted = len(facts.gpus) * (len(facts.gpus) - 1) // 2
    broken = [_status(pair) for pair in pairs if pair.read or pair.write]
    broken += [f"{x.first}-{x.second}: CUDA says no" for x in facts.cuda.pairs if x.access == 0]
    if broken:
        value = f"{len(broken)} of {wanted} pairs not: {', '.join(sorted(set(broken))[:3])}"
        needs = [f"{p.name} ({p.peer_access})" for p in facts.profiles if p.peer_access]
        if needs:
            return fail(value, why=f"profiles that cannot do without: {', '.join(needs)}")
        return warn(value)
    whole = [pair for pair in pairs if pair.read == 0 and pair.write == 0]
    if len(whole) < wanted:
        return unknown(f"NVML does not tell {wanted - len(whole)} of {wanted} pairs")
    atomics = Counter("yes" if x.native_atomics else "no" for x in facts.cuda.pairs)
    told_of = f"; native atomics: {told(atomics.elements())}" if atomics else ""
    return ok(f"{wanted} pairs{told_of}")


def _status(pair: GpuPair) -> str:
    code = pair.read or pair.write or 0
    return f"{pair.first}-{pair.second}: {_STATUSES.get(code, code)}"


@check(
    "p2p-direct",
    "Peer-to-peer access is not staged through memory",
    severity="warn",
    reads=("gpus", "details", "texts"),
    wanted="ForceP2P among the driver's registry keys where GPUs hang on different root ports",
    why="across root ports the driver may copy through memory and still say that access is OK; "
    "reported as 15 times slower",
    source=f"rtx6kpro wiki; {PARAMS}",
    fix=f"{_TUNING}  # gpu_tuning.force_p2p; check with `opsctl doctor collective`",
)
def p2p_direct(facts: Facts) -> Verdict:
    """Ask for the registry keys where the topology makes them matter."""
    if len(facts.gpus) == 1:
        return ok("one GPU")
    text = facts.text(PARAMS)
    if text is None:
        return unknown(f"{PARAMS} cannot be read")
    keys = registry_dwords(text)
    forced = {key: value for key, value in keys.items() if "P2P" in key.upper()}
    if forced:
        return ok(";".join(f"{key}={value}" for key, value in forced.items()))
    levels = [pair.ancestor for pair in facts.details.pairs]
    if not levels or None in levels:
        return unknown("NVML does not tell the topology")
    far = any((level or 0) > _ACROSS_ROOT_PORTS for level in levels)
    return warn("not forced, GPUs on different root ports") if far else ok("not needed")


@check(
    "memory-handles",
    "GPU memory can be shared between processes",
    severity="fail",
    reads=("gpus", "cuda"),
    uses=("stacks",),
    wanted="POSIX handles 1; for allreduce-fusion GPUDirect RDMA with VMM 1; multicast 0 on PCIe",
    why="symmetric memory and fused collectives map each other's memory by file descriptors",
    source="libcuda device attributes 103, 110, 132, read without a context",
    fix="manual: do not use symmetric memory or allreduce-fusion on this host",
)
def memory_handles(facts: Facts) -> Verdict:
    """Judge the attributes of virtual memory; multicast is only shown."""
    devices = facts.cuda.devices
    if len(devices) < len(facts.gpus) or any(x.posix_handles is None for x in devices):
        return unknown("libcuda does not tell the attributes of every GPU")
    value = told(
        f"POSIX handles {x.posix_handles}, GPUDirect RDMA with VMM {_or_unknown(x.gpudirect_vmm)}, "
        f"multicast {_or_unknown(x.multicast)}"
        for x in devices
    )
    fused = any(x.patches.get("allreduce-fusion") == "applied" for x in facts.stacks)
    if not all(x.posix_handles for x in devices):
        return fail(value)
    if fused and any(x.gpudirect_vmm == 0 for x in devices):
        return fail(value, why="allreduce-fusion allocates memory that must be RDMA capable")
    return ok(value)


def _or_unknown(value: int | None) -> object:
    return "?" if value is None else value


@check(
    "topology",
    "GPUs in PCI order are grouped by NUMA node",
    severity="warn",
    reads=("gpus", "pci"),
    uses=("details",),
    wanted="neighbours in PCI order on one node, nodes equally full",
    why="ranks follow the PCI order, and hierarchical collectives take neighbours to be near",
    source="/sys/bus/pci/devices/*/numa_node",
    fix="manual: move cards, or order them with CUDA_VISIBLE_DEVICES in the profile",
)
def topology(facts: Facts) -> Verdict:
    """Judge the sequence of NUMA nodes in PCI order."""
    nodes = [gpu.numa_node for gpu in sorted(facts.pci, key=lambda gpu: gpu.address)]
    if not nodes or None in nodes:
        return unknown("the kernel does not tell the NUMA node of every GPU")
    levels = Counter(_LEVELS.get(p.ancestor or 0, "?") for p in facts.details.pairs)
    shown = " ".join(map(str, nodes)) + (f" ({told(levels.elements())})" if levels else "")
    sizes = set(Counter(nodes).values())
    grouped = _changes(nodes) == len(set(nodes)) - 1
    return ok(f"nodes {shown}") if grouped and len(sizes) == 1 else warn(f"nodes {shown}")


def _changes(nodes: Sequence[int | None]) -> int:
    return sum(first != second for first, second in itertools.pairwise(nodes))


CHECKS = (p2p, p2p_direct, memory_handles, topology)
