"""SGLang's released wheels, fetched once and kept outside the checkout, as their sources only.

They lie in `cache_folder()/sglang-sources`, one zip each (5 to 12 MB instead of up to 39), made
from the very wheels that the shipped catalogue names by their SHA-256.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import zipfile
from pathlib import Path

from filelock import FileLock

from opsctl.profiles.catalogue import DATA
from opsctl.profiles.catalogue_build import digest, download, unpack
from tests.support.sglang_cpu.environment import UnavailableError, cache_folder

PARSERS = Path(__file__).parent / "sglang_parsers.py"


def sources(version: str, folder: Path) -> Path:
    """Unpack a release's Python sources and metadata; raises UnavailableError."""
    with zipfile.ZipFile(_archive(version)) as archive:
        archive.extractall(folder)
    return folder


def sha256(version: str) -> str:
    """Return the digest of the wheel that the shipped facts were read from."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    return str(dict(zip(data["versions"], data["wheels"], strict=True))[version])


def _archive(version: str) -> Path:
    cache = cache_folder(os.environ) / "sglang-sources"
    cache.mkdir(parents=True, exist_ok=True)
    wanted = sha256(version)
    archive = cache / f"sglang-{version}-{wanted[:16]}.zip"
    with FileLock(f"{archive}.lock"):
        if not archive.exists():
            with tempfile.TemporaryDirectory(dir=cache, prefix="unfinished-") as name:
                _make(version, wanted, archive, Path(name))
    return archive


def _make(version: str, wanted: str, archive: Path, temporary: Path) -> None:
    try:
        wheel = download(version, temporary, sha256=wanted)
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.splitlines() if line.strip()] or ["nothing said"]
        raise UnavailableError(f"pip download sglang=={version}: {said[-1].strip()}") from error
    assert digest(wheel) == wanted
    unpack(wheel, temporary / "unpacked")
    unfinished = temporary / "sources.zip"
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted((temporary / "unpacked").rglob("*")):
            packed.write(path, path.relative_to(temporary / "unpacked"))
    unfinished.rename(archive)
