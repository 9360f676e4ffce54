"""The CUDA toolkit that builds kernels when the engine starts. Pure."""

from __future__ import annotations

import re

from opsctl.doctor.checks.driver import major
from opsctl.doctor.host import Facts
from opsctl.doctor.model import Verdict, check, fail, ok, unknown, warn

LEAST = (12, 9)
_FIX = "opsctl provision --tags cuda_toolkit"
_ISSUE = "https://github.com/vllm-project/vllm/issues/50705"


def dotted(release: tuple[int, int] | None) -> str:
    """Write a release as 13.0."""
    return "unknown" if release is None else f"{release[0]}.{release[1]}"


@check(
    "toolkit",
    "The CUDA toolkit fits torch",
    severity="fail",
    reads=("toolkit",),
    uses=("stacks",),
    wanted="12.9 or later for SM120, and of torch's CUDA major",
    why="kernels compiled at the start fail in the sampler, the MoE layers or the FP8 cache",
    source=f"nvcc --version; {_ISSUE}",
    fix=_FIX,
)
def toolkit(facts: Facts) -> Verdict:
    """Judge the nvcc that the engine would take, and whether the shell finds another one."""
    found = facts.toolkit
    if found.home is None:
        return fail("no nvcc: not in CUDA_HOME, not in PATH, not in /usr/local/cuda")
    if found.release is None:
        return unknown(f"{found.home}/bin/nvcc does not tell its version")
    value = f"{dotted(found.release)} in {found.home} ({found.origin})"
    if found.release < LEAST:
        return fail(value)
    wanted = {number for x in facts.stacks if (number := major(x.torch_cuda))}
    if wanted - {found.release[0]}:
        return fail(f"{value}, torch is built for CUDA {', '.join(map(str, sorted(wanted)))}")
    if found.first_in_path and found.first_release != found.release:
        other = f"PATH finds {found.first_in_path} ({dotted(found.first_release)})"
        return warn(f"{value}, but {other}", why="a build that asks PATH takes the other one")
    return ok(value)


@check(
    "ptxas",
    "An assembler for SM120 is there for Triton",
    severity="fail",
    reads=("toolkit", "stacks"),
    uses=("profiles",),
    wanted="ptxas of CUDA 12.9 or later in Triton, or TRITON_PTXAS_PATH to such a one",
    why="Triton's kernels fail with `sm_120a is not defined`",
    source="https://github.com/triton-lang/triton/issues/8539",
    fix="set TRITON_PTXAS_PATH to the toolkit's ptxas in the profile's environment",
)
def ptxas(facts: Facts) -> Verdict:
    """Compare the ptxas of Triton with what SM120 needs; the toolkit's may stand in."""
    bundled = [(stack.python, stack.ptxas) for stack in facts.stacks]
    value = ", ".join(f"Triton {dotted(release)}" for _, release in bundled)
    value += f", toolkit {dotted(facts.toolkit.ptxas)}"
    unset = [p.name for p in facts.profiles if "TRITON_PTXAS_PATH" not in p.environment]
    replaced = bool(facts.profiles) and not unset
    if replaced and (facts.toolkit.ptxas or (0, 0)) >= LEAST:
        return ok(f"{value}, TRITON_PTXAS_PATH is set")
    old = [python for python, release in bundled if release is not None and release < LEAST]
    if old:
        return fail(value)
    if not bundled or any(release is None for _, release in bundled):
        return unknown("Triton's ptxas is not there, or does not tell its version", value)
    return ok(value)


@check(
    "build-tools",
    "What builds kernels is there",
    severity="fail",
    reads=("toolkit",),
    wanted="ninja, gcc and g++ where the engine looks",
    why="FlashInfer and torch call them by name when they compile kernels",
    source="PATH of the engine: its own bin first",
    fix="apt install build-essential ninja-build",
)
def build_tools(facts: Facts) -> Verdict:
    """Look for each tool."""
    lacking = [name for name, path in facts.toolkit.tools.items() if path is None]
    if not facts.toolkit.tools:
        return unknown("nothing was looked for")
    if lacking:
        return fail(f"not found: {', '.join(lacking)}")
    return ok(", ".join(str(path) for path in facts.toolkit.tools.values()))


@check(
    "cuda-compat",
    "No old compatibility libcuda stands before the driver's",
    severity="fail",
    reads=("toolkit",),
    uses=("driver",),
    wanted="no libcuda of /usr/local/cuda*/compat on the loader's path",
    why="an older libcuda than the kernel module fails, or reports an older CUDA",
    source="/usr/local/cuda*/compat, the loader's cache, LD_LIBRARY_PATH",
    fix="apt remove the cuda-compat package, or take the folder from the loader's path; ldconfig",
)
def cuda_compat(facts: Facts) -> Verdict:
    """Judge the copies of libcuda that are not the driver's own."""
    found = facts.toolkit
    if not found.compat_active:
        there = f"{', '.join(found.compat)}, not on the loader's path" if found.compat else "none"
        return ok(there)
    value = ", ".join(found.compat_active)
    driver, newest = _numbers(facts.driver.driver), max(map(_numbers, found.compat_active))
    if driver and newest and newest > driver:
        text = "forward compatibility is for data centre GPUs only"
        return warn(value, why=text)
    return fail(value)


def _numbers(text: str | None) -> tuple[int, ...]:
    found = re.search(r"\d{3}(?:\.\d+)+", text or "")
    return tuple(map(int, found.group().split("."))) if found else ()


CHECKS = (toolkit, ptxas, build_tools, cuda_compat)
