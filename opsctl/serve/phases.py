"""Phases of serving, each one word that `opsctl status` shows as `state`."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """Where serving stands."""

    STARTING = "starting"
    """An engine is being started; the gate is closed, requests wait."""
    SERVING = "serving"
    """The gate is open."""
    DRAINING = "draining"
    """The gate is closed; requests in flight finish."""
    DRAINED = "drained"
    """The operator's drain is complete; the engine is up, nothing reaches it."""
    STOPPING = "stopping"
    """The engine is being ended and its release observed."""
    BACKOFF = "backoff"
    """No engine; the next start waits."""
    STOPPED = "stopped"
    """Ended because somebody asked for it."""
    FAILED = "failed"
    """Ended because it could not go on."""
