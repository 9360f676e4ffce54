"""Where an interpreter keeps its packages."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

DEADLINE = 5.0
_ASK = "import sysconfig as s; print(s.get_path('purelib'), s.get_path('platlib'), sep='\\n')"


def site_packages_of(python: str) -> Path | None:
    """Return the `site-packages` of an interpreter, or of a virtual environment's folder.

    The one that holds SGLang is preferred. The interpreter is run without its site packages, so
    nothing installed there is imported. None where it cannot be told.
    """
    folder = Path(python).expanduser()
    if folder.is_dir():
        return _preferred(sorted(folder.glob("lib/python3*/site-packages"))) or (
            folder if (folder / "sglang").is_dir() else None
        )
    interpreter = shutil.which(str(folder))
    if interpreter is None:
        return None
    beside = _preferred(sorted(Path(interpreter).parent.parent.glob("lib/python3*/site-packages")))
    if beside is not None and (beside / "sglang").is_dir():
        return beside
    return _preferred(_asked(interpreter))


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
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return []
    return [path for line in done.stdout.splitlines() if (path := Path(line)).is_dir()]


def _preferred(folders: list[Path]) -> Path | None:
    return next((f for f in folders if (f / "sglang").is_dir()), folders[0] if folders else None)
