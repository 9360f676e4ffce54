"""The CUDA compiler of the machine, and what is inside the code it makes. Needs no GPU."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

OLDEST = (12, 9)
"""The first nvcc that FlashInfer builds for SM120 with."""


@dataclass(frozen=True)
class Cubin:
    """Machine code for one GPU architecture: 120 for SM120, and bytes of code by kernel."""

    architecture: int
    kernels: dict[str, int]


@cache
def compiler() -> Path | None:
    """Return an nvcc that is new enough: of CUDA_HOME, of PATH, or of /usr/local/cuda*."""
    homes = [Path(home) for home in (os.environ.get("CUDA_HOME"),) if home]
    homes += sorted(Path("/usr/local").glob("cuda*"), reverse=True)
    found = [shutil.which("nvcc"), *(str(home / "bin" / "nvcc") for home in homes)]
    usable = (Path(name) for name in found if name and Path(name).is_file())
    return next((path for path in usable if _version(path) >= OLDEST), None)


def _version(path: Path) -> tuple[int, int]:
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"release (\d+)\.(\d+)", said)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def cubin(source: str, folder: Path, includes: Iterable[Path], architecture: str) -> Cubin:
    """Compile CUDA C++ for one architecture (`120a`); skips the test where there is no nvcc.

    Fails the test with the compiler's first words where the source does not compile.
    """
    nvcc = compiler()
    if nvcc is None:
        pytest.skip(f"no nvcc {OLDEST[0]}.{OLDEST[1]} or newer on this machine")
    file, made = folder / "kernels.cu", folder / f"sm_{architecture}.cubin"
    file.write_text(source)
    target = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    defined = ["-DFLASHINFER_ENABLE_FP8_E8M0", "-DFLASHINFER_ENABLE_FP4_E2M1"]
    paths = [f"-I{path}" for path in includes]
    language = ["-std=c++17", "--expt-relaxed-constexpr", "-use_fast_math"]
    command = [str(nvcc), *language, target, *defined, *paths, "-cubin", "-o", str(made)]
    run = subprocess.run([*command, str(file)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[:2000]
    return read(made.read_bytes())


def read(elf: bytes) -> Cubin:
    """Read the ELF file that nvcc makes for one architecture."""
    machine, flags = struct.unpack_from("<H", elf, 18)[0], struct.unpack_from("<I", elf, 48)[0]
    assert elf[:4] == b"\x7fELF" and machine == 190, "not machine code for NVIDIA GPUs"
    start = struct.unpack_from("<Q", elf, 40)[0]
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    sections = [struct.unpack_from("<IIQQQQ", elf, start + i * size) for i in range(count)]
    strings = sections[names][4]
    kernels = {}
    for name, *_, length in sections:
        end = elf.index(b"\0", strings + name)
        title = elf[strings + name : end].decode()
        if title.startswith(".text."):
            kernels[title.removeprefix(".text.")] = length
    return Cubin(flags >> 8 & 0xFF, kernels)
