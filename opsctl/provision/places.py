"""Where provisioning leaves its traces."""

from __future__ import annotations

from pathlib import Path

ON_HOST = "/var/lib/opsctl-provision"
PENDING = f"{ON_HOST}/pending.d"
"""On the host: one file for each thing that is left to a person."""
VERDICT = f"{ON_HOST}/verdict.json"
"""On the host: what the last verification found."""
_MOST = 100


def pending(folder: Path | None = None) -> tuple[str, ...]:
    """Return what the last provisioning of this host left to a person; nothing where none was."""
    try:
        notes = sorted((folder or Path(PENDING)).iterdir())[:_MOST]
        return tuple(line for note in notes if (line := note.read_text(errors="replace").strip()))
    except OSError:
        return ()


def runs(state_dir: Path) -> Path:
    """Where runs are recorded on the machine that provisions, a folder each."""
    return state_dir / "provision"
