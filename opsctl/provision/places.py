"""Where provisioning leaves its traces."""

from __future__ import annotations

from pathlib import Path

ON_HOST = "/var/lib/opsctl-provision"
PENDING = f"{ON_HOST}/pending.d"
"""On the host: one file for each thing that is left to a person."""
VERDICT = f"{ON_HOST}/verdict.json"
"""On the host: what the last verification found."""


def runs(state_dir: Path) -> Path:
    """Where runs are recorded on the machine that provisions, a folder each."""
    return state_dir / "provision"
