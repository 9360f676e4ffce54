"""Make the shipped catalogue from wheels: `python -m opsctl.profiles.catalogue_build WHEEL...`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from packaging.version import Version

from opsctl.profiles.catalogue import DATA, installed
from opsctl.profiles.catalogue_model import Catalogue
from opsctl.profiles.catalogue_shipped import encode


def unpack(wheel: Path, folder: Path) -> None:
    """Unpack the sources and the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith((".py", ".dist-info/METADATA")):
                archive.extract(name, folder)


def of_wheel(wheel: Path) -> Catalogue:
    """Read a wheel's catalogue."""
    with tempfile.TemporaryDirectory(prefix="opsctl-catalogue-") as folder:
        unpack(wheel, Path(folder))
        return installed(Path(folder))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the data of all wheels named; returns 0."""
    parser = argparse.ArgumentParser(prog="catalogue_build", description=__doc__)
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL")
    parser.add_argument("--output", type=Path, default=DATA)
    options = parser.parse_args(arguments)
    catalogues = sorted(map(of_wheel, options.wheels), key=lambda c: Version(c.version))
    for catalogue in catalogues:
        for what in catalogue.unread:
            sys.stderr.write(f"{catalogue.version}: not read: {what}\n")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(encode(catalogues), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
