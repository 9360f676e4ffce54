"""The engine's environment: packages that must fit each other, and its patches. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from opsctl.doctor.checks.driver import major
from opsctl.doctor.host import Facts, Stack
from opsctl.doctor.model import Check, Verdict, check, fail, ok, unknown, warn

FLASHINFER = ("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache")
KERNELS = ("sgl-kernel", "sglang-kernel")
_ENVIRONMENT = "opsctl provision --tags engine_env"
_SUFFIX = re.compile(r"^nvidia-.*-cu(1[0-9])$")
_BY_VERSION = re.compile(r"^(nvidia-cuda-[a-z-]+|cuda-bindings|cuda-python)$")
_BINDINGS = frozenset({"cuda-python", "cuda-bindings"})
_SATISFIED = frozenset({"applied", "not needed", "superseded"})

Found = tuple[str, str]
"""Status and text of one environment."""


def cuda_majors(stack: Stack) -> dict[str, int]:
    """Return the CUDA major of each package that is built for one, torch included.

    The Python bindings do not count where SGLang itself wants those: 0.5.9 pins cuda-python 12.9
    whatever torch is built for.
    """
    found = {}
    for name, version in stack.packages.items():
        if name in _BINDINGS and _fits(stack, "cuda-python", version):
            continue
        if suffix := _SUFFIX.match(name):
            found[name] = int(suffix[1])
        elif _BY_VERSION.match(name) and (number := major(version)):
            found[name] = number
    if number := major(stack.torch_cuda):
        found["torch"] = number
    return found


def public(version: str) -> Version | None:
    """Return a version without its local part, such as +cu130; None for what is none."""
    try:
        return Version(Version(version).public)
    except InvalidVersion:
        return None


def cuda_tag(version: str) -> str | None:
    """Return the CUDA a wheel was built for, as in 0.7.2+cu130."""
    found = re.search(r"\+cu(\d{2})\d", version)
    return found[1] if found else None


def _of_each(
    name: str, title: str, *, wanted: str, why: str, source: str, fix: str = _ENVIRONMENT
) -> Callable[[Callable[[Stack], Iterator[Found]]], Check]:
    """Make a check of a function that judges one environment."""

    def make(judge: Callable[[Stack], Iterator[Found]]) -> Check:
        return check(
            name, title, severity="fail", reads=("stacks",), wanted=wanted, why=why,
            source=source, fix=fix,
        )(lambda facts: _each(facts, judge))  # fmt: skip

    return make


def _each(facts: Facts, judge: Callable[[Stack], Iterator[Found]]) -> Verdict:
    """Join what is found in every environment; the worst counts."""
    found = [(stack, status, text) for stack in facts.stacks for status, text in _one(stack, judge)]
    if not found:
        return unknown("no profile runs SGLang; name an interpreter with --python")
    several = len(facts.stacks) > 1
    texts = [f"{stack.python}: {text}" if several else text for stack, _, text in found if text]
    value = "; ".join(texts)
    for status, say in (("fail", fail), ("warn", warn)):
        if any(x == status for _, x, _ in found):
            return say(value)
    if any(status == "unknown" for _, status, _ in found):
        return unknown(value)
    return ok(value)


def _one(stack: Stack, judge: Callable[[Stack], Iterator[Found]]) -> list[Found]:
    if stack.trouble is not None:
        return [("unknown", stack.trouble)]
    return list(judge(stack))


@_of_each(
    "torch-cuda",
    "torch is built for CUDA 13",
    wanted="CUDA 13",
    why="SM120 kernels of SGLang's wheels are built against CUDA 13's libraries",
    source="torch/version.py of the environment, read without importing it",
)
def torch_cuda(stack: Stack) -> Iterator[Found]:
    """Read the CUDA version torch was built for."""
    if stack.torch_cuda is None:
        yield "unknown", "no torch, or its version.py does not tell"
    elif stack.torch_cuda == "":
        yield "fail", "torch is built without CUDA"
    else:
        good = major(stack.torch_cuda) == 13
        yield "ok" if good else "fail", f"CUDA {stack.torch_cuda}"


@_of_each(
    "cuda-packages",
    "All packages are of one CUDA major",
    wanted="one CUDA major",
    why="a library of another major is not found, or two are loaded: sglang#18203",
    source="metadata of the installed packages",
)
def cuda_packages(stack: Stack) -> Iterator[Found]:
    """Collect the CUDA majors of torch and NVIDIA's packages."""
    found = cuda_majors(stack)
    counts: dict[int, list[str]] = {}
    for name, number in sorted(found.items()):
        counts.setdefault(number, []).append(name)
    if not counts:
        yield "unknown", "no package there tells its CUDA"
    elif len(counts) == 1:
        yield "ok", f"CUDA {next(iter(counts))} ({len(found)} packages)"
    else:
        fewest = min(counts, key=lambda number: len(counts[number]))
        rest = ", ".join(f"CUDA {n}: {len(x)} packages" for n, x in counts.items() if n != fewest)
        yield "fail", f"CUDA {fewest}: {', '.join(counts[fewest])}; {rest}"


@_of_each(
    "nvrtc",
    "The runtime compiler is complete",
    wanted="libnvrtc and libnvrtc-builtins of torch's CUDA major",
    why="the first kernel compiled at run time fails, long after the start",
    source="nvidia/*/lib of the environment; https://github.com/cupy/cupy/issues/9318",
)
def nvrtc(stack: Stack) -> Iterator[Found]:
    """Look for both libraries by their file names."""
    wanted = major(stack.torch_cuda)
    if wanted is None:
        yield "unknown", "torch does not tell its CUDA"
        return
    names = (f"libnvrtc.so.{wanted}", f"libnvrtc-builtins.so.{wanted}.")
    lacking = [n for n in names if not any(file.startswith(n) for file in stack.nvrtc)]
    if lacking:
        yield "fail", f"no {' and no '.join(name.rstrip('.') for name in lacking)}"
    else:
        yield "ok", f"CUDA {wanted}"


@_of_each(
    "flashinfer",
    "FlashInfer's packages are in step with each other and with SGLang",
    wanted="flashinfer-python as SGLang pins it; cubin and jit-cache of its version, or absent",
    why="a mismatch fails at import, or at worst gives illegal memory accesses under load",
    source="metadata of the installed packages; flashinfer-ai/flashinfer issue 4337",
)
def flashinfer(stack: Stack) -> Iterator[Found]:
    """Compare public versions by PEP 440, and CUDA tags with torch's."""
    main = stack.packages.get(FLASHINFER[0])
    if main is None:
        yield "fail" if FLASHINFER[0] in stack.pins else "unknown", f"no {FLASHINFER[0]}"
        return
    shown = ", ".join(f"{n} {stack.packages[n]}" for n in FLASHINFER if n in stack.packages)
    problems = []
    if (fits := _fits(stack, FLASHINFER[0])) is False:
        problems.append(f"SGLang {stack.sglang} pins {stack.pins[FLASHINFER[0]]}")
    for name in FLASHINFER[1:]:
        version = stack.packages.get(name)
        if version is None and name in stack.pins:
            problems.append(f"SGLang {stack.sglang} requires {name}")
        if version is not None and public(version) != public(main):
            problems.append(f"{name} is of another version")
        tag = cuda_tag(version or "")
        if tag is not None and stack.torch_cuda and tag != str(major(stack.torch_cuda)):
            problems.append(f"{name} is built for CUDA {tag}")
    if problems:
        yield "fail", f"{shown}: {'; '.join(problems)}"
    elif public(main) is None or fits is None:
        yield "unknown", f"{shown}: it cannot be told what SGLang pins"
    else:
        yield "ok", shown


def _fits(stack: Stack, name: str, version: str | None = None) -> bool | None:
    """Whether a package, as installed or of a version, is what SGLang requires.

    None when that is not known.
    """
    pin, found = stack.pins.get(name), public(version or stack.packages.get(name, ""))
    if pin is None or found is None:
        return None
    try:
        # cuda-bindings 12.9.4 belongs to cuda-python 12.9, which is what is pinned.
        short = Version(".".join(map(str, found.release[:2])))
        asked = short if name == "cuda-python" else found
        return SpecifierSet(pin).contains(asked, prereleases=True)
    except InvalidSpecifier:
        return None


@_of_each(
    "kernel-package",
    "SGLang's kernels are of the version it requires",
    wanted="sgl-kernel or sglang-kernel as SGLang pins it",
    why="the engine refuses to start, or calls a kernel that is not there",
    source="metadata of the installed packages",
)
def kernel_package(stack: Stack) -> Iterator[Found]:
    """Compare the kernels' version with the pin."""
    wanted = [name for name in KERNELS if name in stack.pins]
    if not wanted:
        yield "unknown", "this SGLang pins no kernel package"
    for name in wanted:
        version = stack.packages.get(name)
        if version is None:
            yield "fail", f"{name} is not installed"
        elif (fits := _fits(stack, name)) is None:
            yield "unknown", f"{name} {version}: {stack.pins[name]} cannot be compared"
        else:
            pin = "" if fits else f", SGLang {stack.sglang} pins {stack.pins[name]}"
            yield "ok" if fits else "fail", f"{name} {version}{pin}"


@_of_each(
    "patches",
    "The patches that profiles require are applied",
    wanted="required ones applied or not needed, none drifted",
    why="`opsctl serve` refuses a profile without its patches; a drifted file is in no known state",
    source="digests of the installed files; `opsctl patch status`",
    fix="opsctl patch apply --required",
)
def patches(stack: Stack) -> Iterator[Found]:
    """Judge the state of every patch of this opsctl."""
    states = stack.patches
    missing = [n for n in sorted(stack.required) if states.get(n) not in _SATISFIED]
    drifted = [name for name, state in states.items() if state == "drifted"]
    applied = [name for name, state in states.items() if state == "applied"]
    if missing:
        told = ", ".join(f"{name}: {states.get(name, 'no such patch')}" for name in missing)
        yield "fail", f"required, but {told}"
    elif drifted:
        yield "warn", f"drifted: {', '.join(drifted)}"
    elif not states:
        yield "unknown", "neither SGLang nor FlashInfer is there"
    else:
        yield "ok", f"applied: {', '.join(applied) or 'none'}"


CHECKS = (torch_cuda, cuda_packages, nvrtc, flashinfer, kernel_package, patches)
