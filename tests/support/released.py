"""What was released of SGLang and FlashInfer, for tests that read, patch and run their sources.

Every wheel is fetched once with pip's own configuration, checked against its SHA-256 and kept
outside the checkout, reduced to the part that tests read, in `cache_folder()/released-1`.
"""

from __future__ import annotations

import fnmatch
import functools
import json
import os
import posixpath
import re
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from filelock import FileLock

from opsctl.profiles.catalogue import DATA
from opsctl.profiles.catalogue_build import digest, download, read_by_a_server, unpack
from tests.support.sglang_cpu.environment import UnavailableError, cache_folder

SELECTION = 1
"""Counted up when other files of the wheels are kept."""

FLASHINFER = {
    "0.6.3": "0fe2de934a4b3690c543dafb03f38d7bb4a762431abe8ae4f7292d6fef10c65d",
    "0.6.7.post2": "71c435569bb7b2bb59f457a8e2bb8bc7bf0ca94535c1b3ce165bcfb176c18721",
    "0.6.8.post1": "818f9b8cc2fe66c42a1f6264be4841ac8821ada703685a02cfccb2b5124a710b",
    "0.6.11.post1": "52c6dbd1262ff0d46dce0253996108e0c55e86faa7c25a1bed7072b31d23551a",
    "0.6.12": "0c7a01e586b4796810d974cbf13a9c0eb2ade6a94d12e3220cf7782a1c09b8d3",
    "0.6.14": "d124369346a3d48eac67e31c42f7a3c813bcc0abc10e2e36db413b7b3dfd97df",
    "0.6.15.post1": "f2419fd2b77c2705816e8d0a31c784c6456b17f373f8494b5cfc3bdf434d5c44",
    "0.6.17": "ab7ce3aec42faf2f6079aa840c2407ac00ecd277a0524cdb708a8ff4a64dad90",
    "0.6.18": "d5d26edb48f8def0bf28b2c94415aef7f0754e2cd9e3cb3d6e7081262d068aad",
    "0.7.1": "69302ed6e91314a85a4392324becc194594a782ba181646d25d5c305e1b7e8c4",
    "0.7.2": "770550a0aa92b2f10e6c9a1f048dd43713f0f3bb6a12710186fcf8e4e9c99bd8",
}
"""SHA-256 of the FlashInfer wheels that SGLang's releases pin."""

KERNELS = (
    "flashinfer/data/include/flashinfer/comm/*",
    "flashinfer/data/csrc/trtllm_*allreduce*.cu",
    "flashinfer/data/csrc/vllm_custom_all_reduce.cu",
    "flashinfer/data/csrc/pcie_ipc_*.cu",
    "flashinfer/data/csrc/tvm_ffi_utils.h",
)
INCLUDED_FROM = (
    "flashinfer/data/include",
    "flashinfer/data/csrc",
    "flashinfer/data/csrc/nv_internal",
    "flashinfer/data/csrc/nv_internal/include",
)
GENERATED = 256 * 1024
"""Bytes from which a Python file of FlashInfer is taken for a generated kernel, and left out."""


def _digests() -> dict[str, dict[str, str]]:
    data = json.loads(DATA.read_text(encoding="utf-8"))
    sglang = dict(zip(data["versions"], data["wheels"], strict=True))
    return {"sglang": sglang, "flashinfer-python": FLASHINFER}


WHEELS = _digests()
RELEASES: dict[str, tuple[str, ...]] = {package: tuple(known) for package, known in WHEELS.items()}


@functools.cache
def released(package: str, version: str) -> Path:
    """Return a folder laid out as site-packages with one release in it; never write to it.

    It has the metadata whole. Of SGLang it has the Python sources without `multimodal_gen` and
    `test`, of FlashInfer the Python sources without generated kernels and vendored libraries, and
    the sources of the communication kernels with every header that they include.
    Raises UnavailableError where the wheel cannot be had, KeyError for an unknown release.
    """
    wanted = WHEELS[package][version]
    cache = cache_folder(os.environ) / f"released-{SELECTION}"
    folder = cache / f"{package}-{version}-{wanted[:16]}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                with tempfile.TemporaryDirectory(dir=cache, prefix="unfinished-") as name:
                    _make(package, version, folder, Path(name))
    return folder


def released_or_skip(package: str, version: str) -> Path:
    """Return `released(package, version)`, or skip the test with the reason."""
    try:
        return released(package, version)
    except UnavailableError as error:
        pytest.skip(f"no wheel of {package} {version} here: {error}")


def _make(package: str, version: str, folder: Path, temporary: Path) -> None:
    wanted = WHEELS[package][version]
    try:
        wheel = download(package, version, temporary, sha256=wanted)
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.splitlines() if line.strip()] or ["nothing said"]
        assert "DO NOT MATCH THE HASHES" not in error.stderr, error.stderr
        raise UnavailableError(f"pip download {package}=={version}: {said[-1].strip()}") from error
    assert digest(wheel) == wanted
    chosen = _of_sglang if package == "sglang" else _of_flashinfer
    unpack(wheel, temporary / "unpacked", chosen)
    (temporary / "unpacked").rename(folder)


def _of_sglang(archive: zipfile.ZipFile) -> Iterable[str]:
    return {*read_by_a_server(archive), *_metadata(archive)}


def _of_flashinfer(archive: zipfile.ZipFile) -> Iterable[str]:
    sources = {
        entry.filename
        for entry in archive.infolist()
        if entry.filename.endswith(".py")
        and not entry.filename.startswith("flashinfer/data/")
        and entry.file_size < GENERATED
    }
    return {*sources, *_kernels(archive), *_metadata(archive)}


def _metadata(archive: zipfile.ZipFile) -> Iterable[str]:
    return (name for name in archive.namelist() if name.split("/")[0].endswith(".dist-info"))


def _kernels(archive: zipfile.ZipFile) -> set[str]:
    """Return the communication kernels and, transitively, the headers they include by name."""
    known = {name for name in archive.namelist() if not name.endswith("/")}
    found: set[str] = set()
    open_ends = {name for glob in KERNELS for name in fnmatch.filter(known, glob)}
    while open_ends:
        found |= open_ends
        open_ends = {n for name in open_ends for n in _included(archive, name)} & known - found
    return found


def _included(archive: zipfile.ZipFile, name: str) -> Iterable[str]:
    text = archive.read(name).decode(errors="replace")
    for header in re.findall(r'^\s*#\s*include\s+["<]([^">]+)[">]', text, re.MULTILINE):
        for start in (posixpath.dirname(name), *INCLUDED_FROM):
            yield posixpath.normpath(f"{start}/{header}")
