"""Finding and loading the configuration for a command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from opsctl.cli.output import message

if TYPE_CHECKING:
    from opsctl.config.load import Loaded


def load_config(explicit: str | None, *, warn: bool = True) -> Loaded:
    """The configuration that `--config`, OPSCTL_CONFIG or the usual places give.

    Warnings go to stderr. Raises ConfigError with every problem.
    """
    from opsctl.config.load import load

    loaded = load(paths(explicit), environment=os.environ)
    if warn:
        for problem in loaded.warnings:
            message(f"warning: {problem}")
    return loaded


def paths(explicit: str | None) -> tuple[Path, ...]:
    """The files that make up the configuration; raises ConfigError when there is none."""
    from opsctl.config.locate import locate

    return locate(explicit, environment=os.environ, cwd=Path.cwd())
