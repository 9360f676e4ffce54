"""A release of SGLang in a folder of its own, for tests that import it or add to it."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.released import released

PARSERS = Path(__file__).parent / "sglang_parsers.py"


def sources(version: str, folder: Path) -> Path:
    """Copy a release's Python sources and metadata into a folder; raises UnavailableError."""
    shutil.copytree(released("sglang", version), folder, dirs_exist_ok=True)
    return folder
