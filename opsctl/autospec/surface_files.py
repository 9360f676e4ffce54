"""Surfaces in the state directory: `surfaces/PROFILE.json`, one for each profile."""

from __future__ import annotations

from pathlib import Path

from opsctl.autospec.surface import Surface, SurfaceError, dump, parse
from opsctl.system.files import write_atomic

FOLDER = "surfaces"


def path_of(state_dir: Path, profile: str) -> Path:
    """Where the surface of a profile lies, whether it exists or not."""
    return state_dir / FOLDER / f"{profile}.json"


def read(path: Path) -> Surface:
    """Read one file; raises SurfaceError naming it."""
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise SurfaceError(
            f"{path}: {error.strerror}", hint="measure with `opsctl bench`"
        ) from error


def load(state_dir: Path, profile: str) -> Surface | None:
    """Return the surface of a profile; None when it was never measured.

    Raises SurfaceError when there is a file that cannot be used: silence would look like "never
    measured".
    """
    path = path_of(state_dir, profile)
    return read(path) if path.exists() else None


def save(state_dir: Path, surface: Surface) -> Path:
    """Write the surface of its profile in place of the last one; raises OSError."""
    path = path_of(state_dir, surface.profile)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, dump(surface), mode=0o644)
    return path
