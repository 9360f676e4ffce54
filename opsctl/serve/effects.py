"""What serving does to the world: the effects of the state machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Start:
    """Start an engine; answered by Ready or StartFailed of this generation."""

    profile: str
    generation: int


@dataclass(frozen=True)
class StopEngine:
    """End the engine (or the start under way) and observe its release.

    Answered by Released or NotReleased. `force` skips the polite signal.
    """

    generation: int
    force: bool


@dataclass(frozen=True)
class Prepare:
    """Bring an engine of this profile up to its own gate; StandbyReady or StandbyFailed follows."""

    profile: str
    standby: int


@dataclass(frozen=True)
class Activate:
    """Let the standby take GPU memory and become the engine of this generation.

    Answered by Ready or StartFailed, as Start is.
    """

    profile: str
    generation: int
    standby: int


@dataclass(frozen=True)
class DropStandby:
    """End the standby; it never held GPU memory."""

    standby: int


@dataclass(frozen=True)
class OpenGate:
    """Let requests through to the engine of this generation."""

    generation: int


@dataclass(frozen=True)
class CloseGate:
    """Let nothing through; `admit` says whether new requests may wait."""

    reason: str
    admit: bool


@dataclass(frozen=True)
class AwaitIdle:
    """Post Idle once nothing is in flight."""

    generation: int


@dataclass(frozen=True)
class Cut:
    """End every stream in flight with an error event."""

    reason: str


class Record:
    """Write an event to the journal."""

    def __init__(self, event: str, **facts: object) -> None:
        self.event = event
        self.facts: Mapping[str, object] = facts

    def __repr__(self) -> str:
        return f"Record({self.event!r}, {dict(self.facts)!r})"


@dataclass(frozen=True)
class Exit:
    """End the owner loop with this exit code."""

    code: int


Effect = (
    Start
    | StopEngine
    | Prepare
    | Activate
    | DropStandby
    | OpenGate
    | CloseGate
    | AwaitIdle
    | Cut
    | Record
    | Exit
)
