"""For maintainers: make the shipped catalogue anew from SGLang's wheels (`make catalogue`).

    python -m opsctl.profiles.catalogue_build [--wheels FOLDER] [VERSION ...]

Wheels are fetched with pip, one after the other, and kept only where a folder is given.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from packaging.version import Version

from opsctl.profiles.catalogue import DATA, KNOWN_VERSIONS, installed
from opsctl.profiles.catalogue_model import Catalogue
from opsctl.profiles.catalogue_shipped import encode

# SGLang's wheels differ only in compiled parts, which are not read; this one is always there.
_PLATFORM = ("--python-version", "3.11", "--platform", "manylinux_2_34_x86_64")
_UNREAD = ("sglang/multimodal_gen/", "sglang/test/")


def download(package: str, version: str, folder: Path, *, sha256: str | None = None) -> Path:
    """Fetch a release's wheel into a folder, unless it is there; raises CalledProcessError."""
    names = f"{package.replace('-', '_')}-{version}-*.whl"
    found = sorted(folder.glob(names))
    if not found:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as wanted:
            wanted.write(f"{package}=={version}" + (f" --hash=sha256:{sha256}" if sha256 else ""))
            wanted.flush()
            subprocess.run(
                [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
                + ["--only-binary", ":all:", *_PLATFORM, "--dest", str(folder)]
                + ["--requirement", wanted.name],
                check=True,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
            )
        found = sorted(folder.glob(names))
    return found[0]


def read_by_a_server(archive: zipfile.ZipFile) -> Iterable[str]:
    """Return the names of a wheel's metadata and of those sources that a server reads."""
    return (
        name
        for name in archive.namelist()
        if name.endswith((".py", ".dist-info/METADATA")) and not name.startswith(_UNREAD)
    )


def unpack(
    wheel: Path,
    folder: Path,
    chosen: Callable[[zipfile.ZipFile], Iterable[str]] = read_by_a_server,
) -> None:
    """Unpack the chosen files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, chosen(archive))


def digest(wheel: Path) -> str:
    """Return a wheel's SHA-256."""
    with wheel.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(versions: Sequence[str], kept: Path | None) -> Iterator[tuple[Catalogue, str]]:
    for version in versions:
        with tempfile.TemporaryDirectory(prefix="opsctl-catalogue-") as name:
            temporary = Path(name)
            wheel = download("sglang", version, kept or temporary)
            unpack(wheel, temporary / "unpacked")
            catalogue = installed(temporary / "unpacked")
            for what in catalogue.unread:
                sys.stderr.write(f"{version}: cannot be told: {what}\n")
            yield catalogue, digest(wheel)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the data; returns 0, or 1 where a wheel could not be had."""
    parser = argparse.ArgumentParser(prog="catalogue_build", description=__doc__)
    parser.add_argument("versions", nargs="*", default=KNOWN_VERSIONS, metavar="VERSION")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER")
    parser.add_argument("--output", type=Path, default=DATA)
    options = parser.parse_args(arguments)
    try:
        read = list(_read(sorted(options.versions, key=Version), options.wheels))
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"pip could not fetch a wheel:\n{error.stderr}\n")
        return 1
    text = encode([catalogue for catalogue, _ in read], wheels=[wheel for _, wheel in read])
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
