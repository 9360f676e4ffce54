"""What a switch costs on this host: seconds, learnt from its own switches. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Mechanism = Literal["restart", "gated_restart", "in_engine"]

_WEIGHT = 0.3
"""Of a new switch in the running estimate: a few switches make the old hardware forgotten."""


@dataclass(frozen=True)
class SwitchCost:
    """Seconds of one switch, the drain left out: that depends on what is in flight.

    `prepare`: the old engine still serves. `closed`: nobody serves, requests wait (stop, verified
    release, start). Both 0 for a move inside the engine, which does not wait for a drain either.
    """

    prepare: float = 0.0
    closed: float = 0.0

    @property
    def free(self) -> bool:
        """Whether nobody waits for it."""
        return self.closed <= 0.0 and self.prepare <= 0.0


ASSUMED: Mapping[Mechanism, SwitchCost] = {
    "restart": SwitchCost(closed=240.0),
    "gated_restart": SwitchCost(prepare=45.0, closed=60.0),
    "in_engine": SwitchCost(),
}
"""Before a host's first own switch: eight GPUs loading 547 GB from a warm page cache."""


@dataclass(frozen=True)
class Estimate:
    """A running estimate of the switches to one profile; `count` of them were seen."""

    cost: SwitchCost
    count: int = 0

    def updated(self, prepare: float, closed: float) -> Estimate:
        """Return the estimate with one more switch in it."""
        if self.count == 0:
            return Estimate(SwitchCost(prepare, closed), 1)
        old = self.cost
        mixed = SwitchCost(
            old.prepare + _WEIGHT * (prepare - old.prepare),
            old.closed + _WEIGHT * (closed - old.closed),
        )
        return Estimate(mixed, self.count + 1)


@dataclass(frozen=True)
class Costs:
    """Costs of switching to each profile, measured or (before the first switch) assumed."""

    mechanism: Mechanism = "restart"
    assumed: SwitchCost | None = None
    """In place of the mechanism's own assumption."""
    seen: Mapping[str, Estimate] = field(default_factory=dict)

    def to(self, profile: str) -> SwitchCost:
        """Return what a switch to `profile` is expected to cost."""
        found = self.seen.get(profile)
        if found is not None and found.count:
            return found.cost
        return self.assumed if self.assumed is not None else ASSUMED[self.mechanism]

    def with_switch(self, profile: str, *, prepare: float, closed: float) -> Costs:
        """Return the costs with one more switch to `profile` in them, in seconds."""
        before = self.seen.get(profile, Estimate(SwitchCost()))
        after = before.updated(max(prepare, 0.0), max(closed, 0.0))
        return Costs(self.mechanism, self.assumed, {**self.seen, profile: after})
