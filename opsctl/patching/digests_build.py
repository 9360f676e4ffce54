"""For maintainers: record what every patch makes of every release (`make patches`).

    python -m opsctl.patching.digests_build [--wheels FOLDER]

Writes `patches/<package>/digests.json`. It fails where a patch does not apply strictly, does not
come back to the byte, or changes other symbols than its header names.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from opsctl.patching.diff import DoesNotApplyError, apply_strictly
from opsctl.patching.record import digest
from opsctl.patching.series import DIGESTS, Patch, Series, load
from opsctl.patching.verify import wrong_symbols
from opsctl.profiles.catalogue_build import download
from opsctl.system import resources

Recorded = dict[str, dict[str, dict[str, list[str]]]]


def recorded(patches: Sequence[Patch], version: str, wheel: zipfile.ZipFile) -> Recorded:
    """Return released and patched digests by patch, release and file; raises ValueError."""
    found: Recorded = {}
    for patch in patches:
        file = patch.file_for(version)
        for change in file.changes if file is not None else ():
            before = wheel.read(change.path)
            after = apply_strictly(before, change)
            if apply_strictly(after, change, reverse=True) != before:
                raise ValueError(f"{patch.name} {version}: {change.path} does not come back")
            wanted = file.symbols[change.path] if file is not None else frozenset()
            for what in wrong_symbols(before, after, wanted):
                raise ValueError(f"{patch.name} {version}: {change.path}: {what}")
            files = found.setdefault(patch.name, {}).setdefault(version, {})
            files[change.path] = [digest(before), digest(after)]
    return found


def _package(series: Series, package: str, kept: Path | None) -> Recorded:
    whole: Recorded = {}
    patches = [patch for patch in series.patches if patch.package == package]
    for version in series.releases[package]:
        with tempfile.TemporaryDirectory(prefix="opsctl-patches-") as name:
            wheel = download(package, version, kept or Path(name))
            with zipfile.ZipFile(wheel) as archive:
                for patch, releases in recorded(patches, version, archive).items():
                    whole.setdefault(patch, {}).update(releases)
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files; returns 0, or 1 where a wheel cannot be had or a patch is wrong."""
    parser = argparse.ArgumentParser(prog="digests_build", description=__doc__)
    parser.add_argument("--wheels", type=Path, metavar="FOLDER")
    options = parser.parse_args(arguments)
    series = load()
    try:
        found = {x: _package(series, x, options.wheels) for x in series.releases}
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"pip could not fetch a wheel:\n{error.stderr}\n")
        return 1
    except (DoesNotApplyError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    for package, whole in found.items():
        target = Path(str(resources.tree("patches"))) / package / DIGESTS
        target.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
