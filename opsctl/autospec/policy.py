"""Policies: what decides which profile should serve.

A policy is told every sample of load once, in order of time, and asked for a decision after each.
It reads no clock and does no I/O, so that the same samples always lead to the same decisions:
`opsctl autospec replay` rests on that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from opsctl.autospec.load import LoadSample


@dataclass(frozen=True)
class Decision:
    """What a policy wants, in one plain sentence and in numbers.

    `change` says in words what would change it; empty when the reason says so already. `urgent`:
    more comes than can be served, so the gate closes at once, even where the next engine could
    first be prepared beside the one that serves.
    """

    action: Literal["stay", "switch"]
    profile: str
    reason: str
    numbers: Mapping[str, float | int | None] = field(default_factory=dict)
    change: str = ""
    urgent: bool = False


class Policy(Protocol):
    """Decides which profile should serve."""

    @property
    def name(self) -> str:
        """Name as the configuration writes it."""
        ...

    def see(self, sample: LoadSample, serving: str | None) -> None:
        """Take in one sample, newer than all before.

        `serving` is the profile that answers requests; None while a switch, a start or a drain
        keeps them waiting.
        """
        ...

    def decide(self, serving: str, now: float) -> Decision:
        """Decide for `now` (monotonic seconds, of the newest sample or a little later)."""
        ...


@dataclass(frozen=True)
class Always:
    """One profile, whatever the load."""

    profile: str
    name: str = "always"

    def see(self, sample: LoadSample, serving: str | None) -> None:
        """See `Policy.see`: nothing is remembered."""

    def decide(self, serving: str, now: float) -> Decision:
        """See `Policy.decide`."""
        if serving == self.profile:
            return Decision("stay", serving, f"policy always: {serving} serves at any load")
        return Decision("switch", self.profile, f"policy always: {self.profile} is to serve")
