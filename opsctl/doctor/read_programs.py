"""Reads the CUDA toolkit and the tools that build kernels, by asking the programs themselves."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from opsctl.doctor.host import Toolkit
from opsctl.doctor.sources import Sources, Subject

TOOLS = ("ninja", "gcc", "g++")
_SECONDS = 10.0
_CACHED = re.compile(r"=> (\S+)$", re.MULTILINE)


def release_of(program: Path | str) -> tuple[int, int] | None:
    """Ask nvcc or ptxas for its CUDA release; None when it does not tell."""
    output = _output([str(program), "--version"])
    return parse_release(output)


def parse_release(output: str) -> tuple[int, int] | None:
    """Find the release in what `nvcc --version` or `ptxas --version` prints."""
    found = re.search(r"\brelease (\d{1,4})\.(\d{1,4})\b", output, re.ASCII)
    return (int(found[1]), int(found[2])) if found else None


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"},
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def toolkit(sources: Sources, subject: Subject, pythons: tuple[str, ...]) -> Toolkit:
    """Find the toolkit in the order that FlashInfer and torch use, and the tools beside it."""
    search = _search_path(sources.environment, pythons)
    home, origin = _home(sources, subject, search)
    nvcc = None if home is None else home / "bin/nvcc"
    first = shutil.which("nvcc", path=search)
    other = first if first and nvcc and os.path.realpath(first) != os.path.realpath(nvcc) else None
    copies = _compat(sources.local)
    return Toolkit(
        home=None if home is None else str(home),
        origin=origin,
        release=None if nvcc is None else release_of(nvcc),
        ptxas=None if home is None else release_of(home / "bin/ptxas"),
        first_in_path=other,
        first_release=release_of(other) if other else None,
        tools={name: shutil.which(name, path=search) for name in TOOLS},
        compat=copies,
        compat_active=_active(sources, copies),
    )


def _search_path(environment: Mapping[str, str], pythons: tuple[str, ...]) -> str:
    """Return the PATH of an engine: its interpreter's own folder first, as `serve` sets it."""
    own = [str(Path(python).parent) for python in pythons if os.sep in python]
    return os.pathsep.join([*own, environment.get("PATH", os.defpath)])


def _home(sources: Sources, subject: Subject, search: str) -> tuple[Path | None, str]:
    profiles = tuple(subject.config.profiles.values()) if subject.config else ()
    named = [value for p in profiles if isinstance(value := p.environment.get("CUDA_HOME"), str)]
    if named:
        return Path(named[0]), "CUDA_HOME of the profile"
    # `serve` does not hand its own CUDA_HOME on to an engine, so it counts without profiles only.
    if not profiles and (own := sources.environment.get("CUDA_HOME")):
        return Path(own), "CUDA_HOME"
    if found := shutil.which("nvcc", path=search):
        return Path(os.path.realpath(found)).parent.parent, "PATH"
    usual = sources.local / "cuda"
    return (usual, "the usual place") if (usual / "bin/nvcc").exists() else (None, "")


def _compat(local: Path) -> tuple[str, ...]:
    """Real paths of the copies of libcuda that toolkits bring along, each once."""
    found = {os.path.realpath(x) for x in local.glob("cuda*/compat/libcuda.so*")}
    return tuple(sorted(found))


def _active(sources: Sources, copies: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the copies that the loader's cache or LD_LIBRARY_PATH leads to."""
    if not copies:
        return ()
    ask = sources.loader_cache or (lambda: _output(["/sbin/ldconfig", "-p"]))
    cached = {os.path.realpath(path) for path in _CACHED.findall(ask())}
    folders = sources.environment.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    named = {os.path.realpath(folder) for folder in folders if folder}
    return tuple(x for x in copies if x in cached or os.path.dirname(x) in named)  # noqa: PTH120
