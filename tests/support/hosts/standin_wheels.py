"""Stand-in wheels of the engine: real names, versions and Python sources, nothing compiled.

Each depends on the other stand-ins alone, so a host without network can install them. They cannot
be run as an engine; they can be installed, patched, and read.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.released import released

CUDA = ("cu130", "13.0")
"""The CUDA build that the stand-in for torch claims to be: local version, release."""
SUMMARY = "TEST STAND-IN: nothing compiled is inside"
LEFT_OUT = re.compile(r"sglang/(kernels|benchmark)/|flashinfer/(?!comm/|jit/|data/)[^/]+/")
"""Half of the files, which nothing of opsctl reads: pip compiles each that it installs."""
_PIN = re.compile(
    r"^Requires-Dist: (?P<name>torch|flashinfer_python)(\[\w+\])?==(?P<pin>\S+)$", re.MULTILINE
)
_METADATA = ("METADATA", "RECORD", "WHEEL")


@dataclass(frozen=True)
class Wheel:
    """A pure Python wheel of `files` by their path in site-packages."""

    name: str
    version: str
    files: Mapping[str, bytes]
    requires: Sequence[str] = ()

    def write(self, folder: Path) -> Path:
        """Write the wheel into a folder."""
        stem = f"{self.name.replace('-', '_')}-{self.version}"
        information = f"{stem}.dist-info"
        files = {**self.files, **self._information(information)}
        record = "".join(f"{path},{_digest(data)},{len(data)}\n" for path, data in files.items())
        target = folder / f"{stem}-py3-none-any.whl"
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for path, data in files.items():
                archive.writestr(path, data)
            archive.writestr(f"{information}/RECORD", f"{record}{information}/RECORD,,\n")
        return target

    def _information(self, folder: str) -> dict[str, bytes]:
        requires = "".join(f"Requires-Dist: {text}\n" for text in self.requires)
        metadata = (
            f"Metadata-Version: 2.1\nName: {self.name}\nVersion: {self.version}\n"
            f"Summary: {SUMMARY}\n{requires}"
        )
        wheel = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        return {f"{folder}/METADATA": metadata.encode(), f"{folder}/WHEEL": wheel.encode()}


def engine_wheels(sglang: str) -> Iterable[Wheel]:
    """Yield what an environment with one release of SGLang holds.

    That is SGLang, the FlashInfer that it pins with its two companions, and torch.
    Raises UnavailableError where the sources cannot be had, KeyError for an unknown release.
    """
    sources = released("sglang", sglang)
    metadata = (sources / f"sglang-{sglang}.dist-info/METADATA").read_text()
    pins = {found["name"]: found["pin"] for found in _PIN.finditer(metadata)}
    flashinfer, torch = pins["flashinfer_python"], f"{pins['torch']}+{CUDA[0]}"
    requires = [f"flashinfer-python=={flashinfer}", f"torch=={torch}"]
    yield Wheel("sglang", sglang, _contents(sources), requires)
    yield Wheel(
        "flashinfer-python",
        flashinfer,
        _contents(released("flashinfer-python", flashinfer)),
        [f"flashinfer-cubin=={flashinfer}"],
    )
    yield Wheel("flashinfer-cubin", flashinfer, {"flashinfer_cubin/__init__.py": b""})
    yield Wheel("flashinfer-jit-cache", flashinfer, {"flashinfer_jit_cache/__init__.py": b""})
    about = f"__version__ = '{torch}'\ncuda = '{CUDA[1]}'\n".encode()
    yield Wheel("torch", torch, {"torch/__init__.py": b"", "torch/version.py": about})


def _contents(folder: Path) -> dict[str, bytes]:
    """Read a release without LEFT_OUT and without what says how it was packed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        packing = name.parent.suffix == ".dist-info" and name.name in _METADATA
        left_out = LEFT_OUT.match(name.as_posix()) or "__pycache__" in name.parts
        if path.is_file() and not packing and not left_out:
            found[name.as_posix()] = path.read_bytes()
    return found


def _digest(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"
