"""What can happen to serving: the events of the state machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Begin:
    """Start serving `profile`; nothing is running. `explicit`: the operator named it."""

    profile: str
    explicit: bool = False
    why: str = "opsctl serve"


@dataclass(frozen=True)
class Adopted:
    """An engine of an earlier opsctl is healthy and matches `profile`."""

    profile: str


@dataclass(frozen=True)
class Ready:
    """The engine has started, listed its model and generated a token."""

    generation: int


@dataclass(frozen=True)
class StartFailed:
    """The engine did not get ready; parts of it may still be alive."""

    generation: int
    kind: str
    why: str


@dataclass(frozen=True)
class EngineLost:
    """A ready engine is lost; `kind` is `exited`, `hang`, `child_lost` or what its log tells."""

    generation: int
    kind: str
    why: str


@dataclass(frozen=True)
class Idle:
    """The gate is closed and nothing is in flight any more."""

    generation: int


@dataclass(frozen=True)
class Released:
    """The stopped engine's processes, ports and memory were observed gone."""

    generation: int


@dataclass(frozen=True)
class NotReleased:
    """The stopped engine still holds something."""

    generation: int
    why: str


@dataclass(frozen=True)
class StandbyReady:
    """The standby waits at its own gate."""

    standby: int


@dataclass(frozen=True)
class StandbyFailed:
    """The standby ended or did not get to its gate; `unsupported` when its engine knows none."""

    standby: int
    kind: str
    why: str


@dataclass(frozen=True)
class SwitchAsked:
    """Serve another profile; `by` is `operator` or `policy`.

    `urgent`: the engine that serves cannot keep up, so the gate closes at once even where the next
    engine is first prepared beside it: what it would take in meanwhile had to be drained.
    """

    profile: str
    by: str
    why: str = ""
    urgent: bool = False


@dataclass(frozen=True)
class StopAsked:
    """End serving."""

    by: str


@dataclass(frozen=True)
class DrainAsked:
    """Take no new requests and let those in flight finish, but keep the engine."""


@dataclass(frozen=True)
class UndrainAsked:
    """Take requests again."""


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = (
    Begin
    | Adopted
    | Ready
    | StartFailed
    | EngineLost
    | Idle
    | Released
    | NotReleased
    | StandbyReady
    | StandbyFailed
    | SwitchAsked
    | StopAsked
    | DrainAsked
    | UndrainAsked
    | Tick
)
