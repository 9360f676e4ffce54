"""Where an interpreter keeps its packages, and where an SGLang installed for development lies."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit

DEADLINE = 5.0
_ASK = "import sysconfig as s; print(s.get_path('purelib'), s.get_path('platlib'), sep='\\n')"
_DIST_INFO = re.compile(r"sglang-[0-9][^-]*\.dist-info")


def site_packages_of(python: str) -> Path | None:
    """Return the `site-packages` of an interpreter, or of a virtual environment's folder.

    The one that holds SGLang is preferred; a folder that holds it is taken as it is. The
    interpreter is run without its site packages, so that nothing installed there is imported.
    None where it cannot be told.
    """
    given = Path(python).expanduser()
    if given.is_dir():
        if dist_infos(given) or (given / "sglang").is_dir():
            return given
        return _preferred(_below(given))
    interpreter = shutil.which(str(given))
    if interpreter is None:
        return None
    prefix = Path(interpreter).parent.parent
    beside = _below(prefix)
    found = next(filter(dist_infos, beside), None)
    if found is None and not (prefix / "pyvenv.cfg").is_file():
        # Without `site` an interpreter does not know that it belongs to a virtual environment.
        beside = _asked(interpreter) + beside
    return found or _preferred(beside)


def dist_infos(folder: Path) -> list[Path]:
    """Return the metadata folders of SGLang in a `site-packages`; one, if all is well."""
    try:
        return sorted(path for path in folder.iterdir() if _DIST_INFO.fullmatch(path.name))
    except OSError:
        return []


def sources_root(site_packages: Path) -> Path | None:
    """Return the folder that SGLang's package is in: this, or a checkout installed with `-e`."""
    if (site_packages / "sglang").is_dir():
        return site_packages
    for info in dist_infos(site_packages):
        try:
            direct = json.loads((info / "direct_url.json").read_text(encoding="utf-8"))
            url = urlsplit(str(direct["url"]))
        except (OSError, ValueError, TypeError, KeyError):
            continue
        if url.scheme == "file":
            checkout = Path(unquote(url.path))
            for root in (checkout, checkout / str(direct.get("subdirectory", "python"))):
                if (root / "sglang").is_dir():
                    return root
    return None


def _below(prefix: Path) -> list[Path]:
    return sorted(prefix.glob("lib/python3*/site-packages"))


def _asked(interpreter: str) -> list[Path]:
    try:
        done = subprocess.run(
            [interpreter, "-I", "-S", "-c", _ASK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=True,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    return [path for line in done.stdout.splitlines() if (path := Path(line)).is_dir()]


def _preferred(folders: list[Path]) -> Path | None:
    return next(filter(dist_infos, folders), folders[0] if folders else None)
