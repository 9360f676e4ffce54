"""The plan: everything a policy is built from, as data. Pure.

It is what the load journal keeps of a policy, so that `opsctl autospec replay` builds the same
one, and what tells at a reload whether anything about the policy has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from opsctl.autospec.cost import Costs, Estimate, Mechanism, SwitchCost
from opsctl.autospec.surface import Surface

PolicyName = Literal["cost_aware", "sustained_load", "always"]


class _Model(BaseModel):
    """What an older opsctl does not know of a newer one's journal, it leaves out."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Marks(_Model):
    """Water marks of `sustained_load`: requests, and the seconds each is to be held."""

    high: float
    high_for: float
    low: float
    low_for: float


class SeenCost(_Model):
    """A running estimate of the switches to one profile, in seconds."""

    prepare: float = Field(ge=0)
    closed: float = Field(ge=0)
    count: int = Field(ge=0)


class PlannedCosts(_Model):
    """`Costs` as they were when the policy was built."""

    mechanism: Mechanism = "restart"
    assumed: SwitchCost | None = None
    seen: Mapping[str, SeenCost] = Field(default_factory=dict)

    def costs(self) -> Costs:
        """Return them as the policy takes them."""
        seen = {
            name: Estimate(SwitchCost(cost.prepare, cost.closed), cost.count)
            for name, cost in self.seen.items()
        }
        return Costs(self.mechanism, self.assumed, seen)

    @classmethod
    def of(cls, costs: Costs) -> PlannedCosts:
        """Return `costs` as data."""
        seen = {
            name: SeenCost(prepare=found.cost.prepare, closed=found.cost.closed, count=found.count)
            for name, found in costs.seen.items()
        }
        return cls(mechanism=costs.mechanism, assumed=costs.assumed, seen=seen)


class Guarding(_Model):
    """The guards' limits at the time, in seconds; for people who read a journal."""

    dwell: float = 0.0
    cooldown: float = 0.0
    switches_per_hour: int = 0
    observe: bool = False
    maintenance: tuple[str, ...] = ()


class Plan(_Model):
    """A policy and its parameters; `surfaces` of the speculative and of the baseline profile.

    `blind` says why a `cost_aware` policy has no surfaces that it may use; it then never switches.
    """

    policy: PolicyName
    speculative: str
    baseline: str
    always: str = ""
    marks: Marks | None = None
    noise: float = 0.03
    surfaces: tuple[Surface, Surface] | None = None
    blind: str = ""
    costs: PlannedCosts = Field(default_factory=PlannedCosts)
    guards: Guarding = Field(default_factory=Guarding)

    def same_policy(self, other: Plan) -> bool:
        """Whether both make the same policy: what it has learnt then stays true.

        Costs are told to a living policy when they change, and guards stand around it.
        """
        apart = {"costs": PlannedCosts(mechanism=self.costs.mechanism), "guards": Guarding()}
        ours = self.model_copy(update=apart)
        apart["costs"] = PlannedCosts(mechanism=other.costs.mechanism)
        return ours == other.model_copy(update=apart)

    def document(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return self.model_dump(mode="json", by_alias=True)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Plan:
        """Read what `document` returns; raises ValueError."""
        return cls.model_validate(document)
