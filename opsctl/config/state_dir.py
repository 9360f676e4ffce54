"""Where a running opsctl keeps its state, socket, logs and events."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from opsctl.config.schema import Config


def state_dir(explicit: str | None, config: Config | None, environment: Mapping[str, str]) -> Path:
    """The state directory, not created.

    In order: `--state-dir`, `OPSCTL_STATE_DIR`, `state_dir` of the configuration,
    `/var/lib/opsctl` for root, else `$XDG_STATE_HOME/opsctl` or `~/.local/state/opsctl`.
    """
    configured = config.state_dir if config is not None else None
    chosen = explicit or environment.get("OPSCTL_STATE_DIR") or configured
    if chosen:
        return Path(chosen).expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/opsctl")
    home = Path(environment.get("HOME") or Path.home())
    base = environment.get("XDG_STATE_HOME") or home / ".local/state"
    return Path(base).absolute() / "opsctl"
