"""SGLang's adaptive files in the state directory: `adaptive/PROFILE-MARK.json`.

The mark is of the content: an engine that runs keeps the file that it was started with.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from opsctl.autospec.adaptive import Adaptive, AdaptiveError, Slot, read_slots
from opsctl.system.files import write_atomic

FOLDER = "adaptive"


def path_of(state_dir: Path, profile: str, slots: Adaptive) -> Path:
    """Where the file with these slots for a profile lies, whether it exists or not."""
    mark = hashlib.sha256(slots.text().encode()).hexdigest()[:8]
    return state_dir / FOLDER / f"{profile}-{mark}.json"


def save(state_dir: Path, profile: str, slots: Adaptive) -> Path:
    """Write the slots for a profile, where they are not there yet; raises OSError."""
    path = path_of(state_dir, profile, slots)
    if not path.exists() or path.read_text(encoding="utf-8", errors="replace") != slots.text():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, slots.text(), mode=0o644)
    return path


def read(path: Path) -> tuple[Slot, ...]:
    """Read the slots of any adaptive file, opsctl's or another; raises AdaptiveError naming it."""
    try:
        return read_slots(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AdaptiveError(f"{path}: not an adaptive configuration: {error}") from error
