"""The GPUs themselves: model, number, settings, memory errors, who holds them. Pure."""

from __future__ import annotations

from opsctl.doctor.checks.words import silent, told
from opsctl.doctor.host import Facts, GpuDetail
from opsctl.doctor.model import Verdict, check, fail, ok, unknown, warn
from opsctl.gpu.model import Verdict as Held

SM120 = (12, 0)
_TUNING = "opsctl provision --tags gpu_tuning"
_LITTLE = 1 << 30
_LOST = frozenset({Held.ORPHAN, Held.STRAY, Held.ZOMBIE, Held.STUCK, Held.PHANTOM, Held.FAULT})
_SLOW = {
    0x08: "hardware slowdown",
    0x20: "too hot",
    0x40: "too hot (hardware)",
    0x80: "power brake",
}
_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}


@check(
    "gpu-model",
    "All GPUs are alike, and of SM120",
    severity="warn",
    reads=("gpus",),
    wanted="the same model everywhere, compute capability 12.0",
    why="tensor parallelism runs at the pace and memory of the smallest; presets are for SM120",
    source="NVML",
    fix="manual: give the engine GPUs of one kind (CUDA_VISIBLE_DEVICES in the profile)",
)
def gpu_model(facts: Facts) -> Verdict:
    """Compare names, memory and compute capability."""
    kinds = {(gpu.name, gpu.memory_total, gpu.compute_capability) for gpu in facts.gpus}
    value = told(gpu.name for gpu in facts.gpus)
    if any(gpu.name is None or gpu.compute_capability is None for gpu in facts.gpus):
        return unknown("NVML does not tell the model of every GPU", value)
    if len(kinds) > 1:
        return warn(value)
    [(_, _, capability)] = kinds
    if capability != SM120:
        text = "not SM120: opsctl's patches and presets are not for it"
        return warn(f"{value}, compute capability {_dotted(capability)}", why=text)
    return ok(f"{value}, compute capability 12.0")


def _dotted(capability: tuple[int, int] | None) -> str:
    return "?" if capability is None else f"{capability[0]}.{capability[1]}"


@check(
    "gpu-count",
    "There are as many GPUs as the profiles use",
    severity="fail",
    reads=("gpus", "profiles"),
    wanted="at least as many as every profile uses",
    why="an engine that finds too few dies after minutes of imports",
    source="NVML, the configuration",
    fix="manual: correct tp-size and CUDA_VISIBLE_DEVICES of the profile, or add GPUs",
)
def gpu_count(facts: Facts) -> Verdict:
    """Compare the number of GPUs with each profile's need."""
    there = len(facts.gpus)
    short = [f"{p.name} needs {p.gpus}" for p in facts.profiles if (p.gpus or 0) > there]
    if short:
        return fail(f"{there}; {', '.join(short)}")
    unclear = [p.name for p in facts.profiles if p.gpus is None]
    if unclear:
        return unknown(f"it cannot be told how many {', '.join(unclear)} needs", str(there))
    return ok(str(there))


@check(
    "gpu-free",
    "Nobody else holds the GPUs",
    severity="fail",
    reads=("gpus", "holders"),
    wanted="no memory in use but by a supervised engine",
    why="an engine sizes its cache by free memory: with less it fails, or serves little",
    source="NVML, /proc; `opsctl gpu ps` shows the evidence",
    fix="opsctl gpu ps; then opsctl gpu reap",
)
def gpu_free(facts: Facts) -> Verdict:
    """Judge holders of GPU memory by the census."""
    others = [holder for holder in facts.holders if holder.verdict is not Held.MANAGED]
    shown = [
        f"{x.verdict} pid {x.pid}: {(x.memory or 0) >> 20} MiB"
        if x.memory is not None
        else f"{x.verdict} pid {x.pid}"
        for x in others
    ]
    if any(x.verdict in _LOST or x.memory is None or x.memory >= _LITTLE for x in others):
        return fail("; ".join(shown))
    if others:
        return warn("; ".join(shown), fix="opsctl gpu ps")
    idle = len(facts.holders) == 0
    used = [g.index for g in facts.gpus if idle and (g.memory_used or 0) >= _LITTLE]
    if used:
        return warn(f"GPU {', '.join(map(str, used))}: 1 GiB or more in use by nobody seen")
    if any(gpu.memory_used is None for gpu in facts.gpus):
        return unknown("NVML does not tell the memory in use")
    return ok("free" if idle else f"supervised engine: {len(facts.holders)} processes")


@check(
    "persistence",
    "Persistence mode is on",
    severity="warn",
    reads=("gpus",),
    wanted="on",
    why="without it the driver is unloaded with the last client, and each start takes longer",
    source="NVML",
    fix="systemctl enable --now nvidia-persistenced",
)
def persistence(facts: Facts) -> Verdict:
    """Read persistence mode."""
    states = [gpu.persistence for gpu in facts.gpus]
    if False in states:
        return warn(
            f"off on GPU {', '.join(str(g.index) for g in facts.gpus if not g.persistence)}"
        )
    return ok("on") if None not in states else unknown("NVML does not tell persistence mode")


@check(
    "mig",
    "MIG is off",
    severity="fail",
    reads=("gpus",),
    wanted="off",
    why="an engine sees slices instead of GPUs, and slices have no peer-to-peer access",
    source="NVML",
    fix="nvidia-smi -mig 0  # on drained GPUs; takes effect at their next reset",
)
def mig(facts: Facts) -> Verdict:
    """Read MIG mode; a GPU without MIG counts as off."""
    on = [str(gpu.index) for gpu in facts.gpus if gpu.mig]
    if on:
        return fail(f"on for GPU {', '.join(on)}")
    return ok("off" if any(gpu.mig is False for gpu in facts.gpus) else "not supported")


@check(
    "compute-mode",
    "Compute mode is default",
    severity="fail",
    reads=("gpus", "details"),
    wanted="default",
    why="other modes keep a second process, such as the next engine of a switch, off the GPU",
    source="NVML",
    fix="nvidia-smi -c 0",
)
def compute_mode(facts: Facts) -> Verdict:
    """Read the compute mode."""
    if lacking := silent(facts, "compute_mode", "the compute mode"):
        return lacking
    modes = [detail.compute_mode or 0 for detail in facts.details.gpus]
    value = told(_COMPUTE_MODES.get(mode, mode) for mode in modes)
    if 2 in modes:
        return fail(value)
    return warn(value) if any(modes) else ok("default")


@check(
    "confidential-computing",
    "Confidential computing is off",
    severity="warn",
    reads=("gpus", "details"),
    wanted="off",
    why="it turns multicast off and slows every transfer",
    source="NVML; vllm-project/vllm issue 34891",
    fix="manual: turn confidential computing off for the GPUs",
)
def confidential(facts: Facts) -> Verdict:
    """Read whether confidential computing is on."""
    state = facts.details.confidential
    if state is None:
        return unknown("NVML does not tell; drivers of hosts without the feature do not")
    return warn("on") if state else ok("off")


@check(
    "power-limit",
    "The power limit is the same on all GPUs",
    severity="warn",
    reads=("gpus", "details"),
    wanted="equal",
    why="every step waits for the slowest rank",
    source="NVML",
    fix=f"{_TUNING}  # gpu_tuning.power_limit",
)
def power_limit(facts: Facts) -> Verdict:
    """Compare the power limits, in watts."""
    if lacking := silent(facts, "power_limit", "the power limit"):
        return lacking
    limits = [f"{detail.power_limit:g} W" for detail in facts.details.gpus]
    return ok(told(limits)) if len(set(limits)) == 1 else warn(told(limits))


@check(
    "throttling",
    "No GPU is slowed down by heat or power",
    severity="warn",
    reads=("gpus", "details"),
    wanted="no hardware slowdown now",
    why="every step waits for the slowest rank",
    source="NVML",
    fix="manual: look at fans, air flow and power cables",
)
def throttling(facts: Facts) -> Verdict:
    """Read why clocks are held down at this moment."""
    if lacking := silent(facts, "clock_reasons", "the reasons of its clocks"):
        return lacking
    slow = {x.index: _reasons(x) for x in facts.details.gpus if _reasons(x)}
    if not slow:
        return ok("none")
    return warn("; ".join(f"GPU {index}: {reasons}" for index, reasons in slow.items()))


def _reasons(detail: GpuDetail) -> str:
    bits = detail.clock_reasons or 0
    return ", ".join(text for bit, text in _SLOW.items() if bits & bit)


@check(
    "ecc",
    "ECC is the same everywhere and found nothing",
    severity="warn",
    reads=("gpus", "details"),
    wanted="the same on all GPUs, no uncorrected errors",
    why="an uncorrected error ends the engine that was hit",
    source="NVML",
    fix="manual: drain, reset the GPU; when it comes back, have the GPU replaced",
)
def ecc(facts: Facts) -> Verdict:
    """Compare ECC mode and count uncorrected errors."""
    details = facts.details.gpus
    if lacking := silent(facts, "ecc", "the ECC mode"):
        return lacking
    value = told("on" if detail.ecc else "off" for detail in details)
    errors = [f"GPU {x.index}: {x.uncorrected} uncorrected" for x in details if x.uncorrected]
    if errors:
        return warn(f"{value}; {', '.join(errors)}")
    if len({detail.ecc for detail in details}) > 1:
        return warn(value, fix="nvidia-smi -e 1  # takes effect at the next reset")
    if any(x.ecc and x.uncorrected is None for x in details):
        return unknown("NVML does not tell the error counts", value)
    changing = [str(x.index) for x in details if x.ecc_pending not in {None, x.ecc}]
    return ok(
        value + (f"; changes at the next reset: GPU {', '.join(changing)}" if changing else "")
    )


@check(
    "memory-rows",
    "No memory row waits for its replacement",
    severity="fail",
    reads=("gpus", "details"),
    wanted="no remapping pending or failed",
    why="a row that could not be remapped keeps failing; a pending one needs a reset",
    source="NVML; NVIDIA GPU memory error management",
    fix="manual: drain, then reset the GPU (nvidia-smi --gpu-reset -i N)",
)
def memory_rows(facts: Facts) -> Verdict:
    """Read the state of row remapping."""
    details = facts.details.gpus
    failed = [str(x.index) for x in details if x.rows_failed]
    if failed:
        return fail(f"failed: GPU {', '.join(failed)}", fix="manual: have the GPU replaced")
    if lacking := silent(facts, "rows_failed", "the remapped rows"):
        return lacking
    pending = [str(x.index) for x in details if x.rows_pending]
    return warn(f"pending: GPU {', '.join(pending)}") if pending else ok("none")


CHECKS = (
    gpu_model,
    gpu_count,
    gpu_free,
    persistence,
    mig,
    compute_mode,
    confidential,
    power_limit,
    throttling,
    ecc,
    memory_rows,
)
