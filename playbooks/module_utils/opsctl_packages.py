"""What is installed in a Python environment, read without importing anything of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ansible.module_utils.opsctl_host import HostError, last, run

TOOLS = frozenset({"pip", "setuptools", "wheel", "uv"})
"""Installers, whose own upgrade does not make another stack."""
OF_CUDA = re.compile(r"nvidia-cuda-[a-z]+|cuda-(bindings|python|toolkit)")
"""Packages whose own version begins with the CUDA release that they are of."""
PROBE = """
import importlib.metadata as m, json, pathlib, re, sys, sysconfig
found = {}
for d in m.distributions():
    name = d.metadata["Name"] if d.metadata else None
    if name:
        found[re.sub(r"[-_.]+", "-", name).lower()] = d.version
try:
    text = pathlib.Path(sysconfig.get_path("purelib"), "torch/version.py").read_text()
except OSError:
    text = ""
cuda = re.search(r"^cuda\\b[^=]*=\\s*['\\"]([0-9.]+)", text, re.M)
print(json.dumps({"installed": found, "torch_cuda": cuda[1] if cuda else None}))
"""
"""Asks an environment for its versions; imports nothing of it, so no CUDA is touched."""


def conflicts(installed: dict[str, str], torch_cuda: str | None, cuda: str) -> list[str]:
    """Packages of another CUDA major than `cuda` (cu130) asks for.

    Two majors in one environment load two CUDA runtimes, or none that fits:
    https://github.com/sgl-project/sglang/issues/18203.
    """
    wanted = re.fullmatch(r"cu(\d{2})\d", cuda)
    if wanted is None:
        return []
    found = [
        f"{name} {version}"
        for name, version in sorted(installed.items())
        if any(major != wanted[1] for major in _majors(name, version))
    ]
    if torch_cuda is not None and torch_cuda.split(".")[0] != wanted[1]:
        found.append(f"torch, which is built for CUDA {torch_cuda}")
    return found


def _majors(name: str, version: str) -> list[str]:
    """CUDA majors that a package's name and version speak of."""
    told = [re.search(r"-cu(\d{2})$", name), re.search(r"\+cu(\d{2})", version)]
    if OF_CUDA.fullmatch(name):
        told.append(re.match(r"(\d{2})\.", version))
    return [match[1] for match in told if match is not None]


def differences(wanted: dict[str, str], there: dict[str, str]) -> list[str]:
    """Packages that are gone or of another version. What somebody added is no difference."""
    return [
        f"{name} {version} is now {there.get(name, 'missing')}"
        for name, version in wanted.items()
        if name not in TOOLS and there.get(name) != version
    ]


def probe(folder: Path) -> dict[str, Any]:
    """Ask the environment in a folder; raises HostError when its interpreter does not run."""
    done = run([str(folder / "bin/python"), "-I", "-c", PROBE], timeout=120)
    if done.returncode:
        raise HostError(f"{folder}/bin/python does not run: {last(done.stderr)}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
