"""Where serving stands: everything the next step of the lifecycle depends on. Pure data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from opsctl.serve.failures import Failures, RestartRules


class Phase(StrEnum):
    """One word that `opsctl status` shows as `state`."""

    STARTING = "starting"
    """An engine is being started; the gate is closed, requests wait."""
    SERVING = "serving"
    """The gate is open."""
    PREPARING = "preparing"
    """The engine of the next profile comes up beside, without GPU memory; the gate is open, but
    for an urgent switch."""
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


@dataclass(frozen=True)
class Rules:
    """What the configuration says about the life of the engine."""

    restart: RestartRules
    drain: Callable[[str], float]
    cut_on_drain_timeout: bool = False
    gated: Callable[[str], bool] = lambda name: False
    """Whether a switch to this profile prepares its engine while the old one still serves."""
    fallbacks: tuple[str, ...] = ()
    """Profiles that may be started unasked when the wanted one fails, best first."""


@dataclass(frozen=True)
class Switching:
    """A switch under way, and when each part of it was done (monotonic seconds)."""

    source: str
    target: str
    by: str
    begun: float
    drained: float | None = None
    released: float | None = None
    standby: int | None = None
    """Number of the engine that waits at its own gate for the GPU memory (gated restart)."""
    prepared_at: float | None = None
    """When the standby reached its gate."""
    urgent: bool = False
    """Whether the gate was closed before the standby was there."""

    def took(self, now: float) -> dict[str, float]:
        """Seconds of the whole switch and of its parts, ending `now`."""
        prepared = self.begun if self.prepared_at is None else self.prepared_at
        drained = prepared if self.drained is None else self.drained
        released = drained if self.released is None else self.released
        parts = {"prepare_s": prepared - self.begun, "drain_s": drained - prepared}
        parts |= {"stop_s": released - drained, "start_s": now - released}
        parts |= {"seconds": now - self.begun}
        return {name: round(value, 3) for name, value in parts.items()}


@dataclass(frozen=True)
class State:
    """Everything the next step depends on."""

    phase: Phase = Phase.STOPPED
    since: float = 0.0
    reason: str = "looking for an engine of an earlier opsctl"
    generation: int = 0
    profile: str = ""
    """Profile of the engine that exists, or of the one about to be started."""
    switching: Switching | None = None
    """The switch under way."""
    last_good: str | None = None
    """Profile that was ready last."""
    ready_at: float | None = None
    until: float | None = None
    """When the phase runs out: drain deadline, end of the backoff."""
    stopping_for_good: bool = False
    drain_asked: bool = False
    after_failure: bool = False
    """Whether the engine being stopped failed, rather than being asked to go."""
    standbys: int = 0
    """Standbys begun so far: the number of the last one."""
    ungated: frozenset[str] = frozenset()
    """Profiles whose engine knows no gated launch."""
    cancelled_at: float | None = None
    """When the last switch was given up because requests outlasted the drain deadline."""
    cancellations: int = 0
    """Switches given up so in a row."""
    switches: int = 0
    switch_times: tuple[float, ...] = ()
    release_tries: int = 0
    failures: Failures = field(default_factory=Failures)
    exit_code: int | None = None

    @property
    def gate_open(self) -> bool:
        """Whether requests are let through."""
        if self.phase is Phase.PREPARING:
            return self.switching is None or not self.switching.urgent
        return self.phase is Phase.SERVING

    @property
    def target(self) -> str | None:
        """Where a switch is going; None when none is under way."""
        return None if self.switching is None else self.switching.target
