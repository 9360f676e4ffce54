"""Build, once, an environment that runs a real SGLang server (0.5.23 or 0.5.9) on CPU.

It lies outside the checkout, in `$OPSCTL_TEST_CACHE`, `$XDG_CACHE_HOME/opsctl-tests` or
`~/.cache/opsctl-tests`, in a folder named by a hash of the pins. `UnavailableError` says why it
cannot be had here; tests are then skipped with that reason, never passed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock

HERE = Path(__file__).resolve().parent
REQUIREMENTS = {
    "0.5.23": HERE / "requirements.txt",
    "0.5.9": HERE / "requirements-0.5.9.txt",
}
STUBS = HERE / "stubs"
MODELS = HERE / "models.py"
TORCH = "torch==2.13.0"
PYTHON = (3, 11)
DISK = 3 * 2**30
MEMORY = 4 * 2**30
BUILD_TIMEOUT = 900.0


class UnavailableError(Exception):
    """Real SGLang cannot be had here; the text says what is missing."""


@dataclass(frozen=True)
class SglangEnvironment:
    """Everything a launch profile needs to start a real server.

    `environment` and the flags are in the form of a profile's keys of the same names.
    """

    python: Path
    pythonpath: Path
    target_model: Path
    draft_model: Path
    environment: Mapping[str, str]
    base_flags: Mapping[str, bool | int | float | str] = field(
        default_factory=lambda: {
            "device": "cpu",
            "attention-backend": "intel_amx",
            "disable-cuda-graph": True,
            # Without a limit the cache takes 15 GB and 42 s.
            "max-total-tokens": 8192,
            "max-running-requests": 8,
            # Without it an idle scheduler keeps one core busy.
            "sleep-on-idle": True,
        }
    )
    eagle3_flags: Mapping[str, bool | int | float | str] = field(
        default_factory=lambda: {
            "speculative-algorithm": "EAGLE3",
            "speculative-num-steps": 3,
            "speculative-eagle-topk": 1,
            "speculative-num-draft-tokens": 4,
        }
    )
    # SGLang's own switches: the draft counts as right often enough for this accept length.
    eagle3_environment: Mapping[str, str] = field(
        default_factory=lambda: {
            "SGLANG_SIMULATE_ACC_LEN": "2.5",
            "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token",
        }
    )


def cache_folder(variables: Mapping[str, str]) -> Path:
    """Return where environments are kept between runs."""
    if chosen := variables.get("OPSCTL_TEST_CACHE"):
        return Path(chosen)
    base = variables.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "opsctl-tests"


def provide(version: str = "0.5.23") -> SglangEnvironment:
    """Return the environment of one SGLang, building what is missing; raises UnavailableError."""
    interpreter = _suitable_python()
    requirements = REQUIREMENTS[version]
    pins = requirements.read_text() + TORCH
    root = cache_folder(os.environ) / f"sglang-cpu-{_digest(pins)}"
    root.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{root}.lock"):
        # The interpreter is asked for too: its own base may have gone since.
        if not ((root / "complete").exists() and (root / "venv/bin/python").exists()):
            _build(root, interpreter, requirements)
        models = root / f"models-{_digest(MODELS.read_text())}"
        if not models.exists():
            _make_models(root / "venv/bin/python", models)
    return SglangEnvironment(
        python=root / "venv/bin/python",
        pythonpath=STUBS,
        target_model=models / "target",
        draft_model=models / "draft",
        environment={
            "PYTHONPATH": str(STUBS),
            "SGLANG_USE_CPU_ENGINE": "1",
            "HF_HUB_OFFLINE": "1",
            # The stand-in for triton cannot be compiled through.
            "TORCHDYNAMO_DISABLE": "1",
            # Dying takes SGLang up to 65 s when it collects what is only of use on a GPU.
            "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
        },
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _suitable_python() -> str:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise UnavailableError(f"SGLang's wheel is for Linux on x86-64, not {platform.platform()}")
    libc, version = platform.libc_ver()
    if libc != "glibc" or tuple(map(int, version.split("."))) < (2, 34):
        raise UnavailableError(f"SGLang's wheel needs glibc 2.34 or newer, not {libc} {version}")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if memory < MEMORY:
        raise UnavailableError(f"a server needs a host with {MEMORY >> 30} GiB of memory")
    if sys.version_info[:2] == PYTHON:
        return sys.executable
    found = shutil.which("python3.11")
    if found is None:
        raise UnavailableError("the pins are for Python 3.11 and python3.11 is not on PATH")
    return found


def _build(root: Path, interpreter: str, requirements: Path) -> None:
    """Make `root`; it counts as made only once the file `complete` is in it."""
    _require_cpu_torch(interpreter)
    if root.exists():
        shutil.rmtree(root)
    root.mkdir()
    free = shutil.disk_usage(root).free
    if free < DISK:
        raise UnavailableError(f"{root} needs {DISK >> 30} GiB of disk, {free >> 30} are free")
    venv = root / "venv"
    python = str(venv / "bin/python")
    _run([interpreter, "-m", "venv", str(venv)])
    install = [python, "-m", "pip", "install", "-qq"]
    _run([*install, TORCH, "--constraint", str(_constraints(root, requirements))])
    _run([*install, "--no-deps", "--require-hashes", "-r", str(requirements)])
    _run([python, "-c", "import torch, transformers, tokenizers"])
    (root / "complete").touch()


def _constraints(root: Path, requirements: Path) -> Path:
    """Keep what torch brings at the versions that are pinned anyway, so nothing comes twice."""
    pins = [line.split(" ")[0] for line in requirements.read_text().splitlines() if "==" in line]
    path = root / "constraints.txt"
    path.write_text("\n".join(pins) + "\n")
    return path


def _require_cpu_torch(interpreter: str) -> None:
    """Look before leaping: the usual build of torch for Linux brings gigabytes of CUDA."""
    plan = _run(
        [interpreter, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps"]
        + ["--quiet", "--retries", "1", "--report", "-", TORCH]
    )
    metadata = json.loads(plan)["install"][0]["metadata"]
    cuda = [
        requirement
        for requirement in metadata.get("requires_dist", [])
        if requirement.lower().startswith(("nvidia", "cuda")) and "extra ==" not in requirement
    ]
    if cuda:
        raise UnavailableError(
            f"pip would fetch a CUDA build of {TORCH} ({len(cuda)} CUDA packages, gigabytes); "
            "point pip at a CPU build (find-links or an extra index) to run these tests"
        )


def _make_models(python: Path, models: Path) -> None:
    unfinished = models.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    _run([str(python), str(MODELS), str(unfinished)])
    unfinished.rename(models)


def _run(argv: list[str]) -> str:
    """Return the standard output of `argv`; its failure becomes the reason to skip."""
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT,
            check=True,
            stdin=subprocess.DEVNULL,
            env=variables,
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"{' '.join(argv[1:4])} took over {BUILD_TIMEOUT:.0f} s") from error
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.splitlines() if line.strip()] or ["nothing said"]
        errors = [line for line in said if "ERROR" in line] or said
        raise UnavailableError(f"{' '.join(argv[1:4])} failed: {errors[-1].strip()}") from error
    return done.stdout
