"""What an SGLang understands, without running it: of an installation, or as shipped with opsctl.

installed(site_packages)     read from its files, in under half a second
shipped("0.5.23")            from opsctl's own data, for KNOWN_VERSIONS
site_packages_of("/opt/sglang/bin/python")
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from opsctl.profiles.catalogue_locate import site_packages_of
from opsctl.profiles.catalogue_model import Catalogue, CatalogueError, Flag, Kind, Resolution

__all__ = [
    "KNOWN_VERSIONS",
    "Catalogue",
    "CatalogueError",
    "Flag",
    "Kind",
    "Resolution",
    "installed",
    "shipped",
    "site_packages_of",
]

DATA = Path(__file__).parent / "catalogue_data" / "sglang.json"
KNOWN_VERSIONS: tuple[str, ...] = tuple(f"0.5.{patch}" for patch in range(9, 24))


def installed(site_packages: Path) -> Catalogue:
    """Read the SGLang in a `site-packages` folder; raises CatalogueError."""
    from opsctl.profiles.catalogue_installed import read  # noqa: PLC0415 - only where it is needed

    return read(site_packages)


@cache
def shipped(version: str) -> Catalogue:
    """Return the catalogue of a release; raises CatalogueError naming the known ones."""
    from opsctl.profiles.catalogue_shipped import decode  # noqa: PLC0415 - only where it is needed

    return decode(DATA.read_text(encoding="utf-8"), version)
