"""Policies from plans: the one way in which `serve` and replay build them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.autospec.cost import Costs
from opsctl.autospec.cost_aware import CostAware
from opsctl.autospec.history import Seen
from opsctl.autospec.load import LoadSample
from opsctl.autospec.pair import Pair
from opsctl.autospec.plan import Marks, Plan
from opsctl.autospec.policy import Always, Decision, Policy
from opsctl.autospec.sustained_load import SustainedLoad


@dataclass(frozen=True)
class Blind:
    """`cost_aware` without a surface that it may use: it stays, and says what is missing."""

    why: str
    change: str = ""
    name: str = "cost_aware"

    def see(self, sample: LoadSample, serving: str | None) -> None:
        """See `Policy.see`: nothing is remembered; the load journal keeps the samples."""

    def decide(self, serving: str, now: float) -> Decision:
        """See `Policy.decide`."""
        reason = f"no decision without a surface: {self.why}"
        return Decision("stay", serving, reason, change=self.change)


@dataclass(frozen=True)
class InEngine:
    """Speculation is turned on and off inside the engine; there is nothing to switch."""

    name: str
    start: str
    """The speculative profile, whose engine it is."""

    def see(self, sample: LoadSample, serving: str | None) -> None:
        """See `Policy.see`: nothing is remembered."""

    def decide(self, serving: str, now: float) -> Decision:
        """See `Policy.decide`."""
        return Decision("stay", serving, "the engine moves its draft steps with the load itself")


def build(plan: Plan) -> Policy:
    """Return the policy of a plan, without a memory."""
    if plan.policy == "always":
        return Always(plan.always)
    if plan.costs.mechanism == "in_engine":
        return InEngine(plan.policy, plan.speculative)
    if plan.policy == "sustained_load":
        marks = plan.marks or Marks(high=8, high_for=30, low=3, low_for=60)
        return SustainedLoad(plan.speculative, plan.baseline, **marks.model_dump())
    if plan.surfaces is None:
        return Blind(plan.blind, to_measure(plan))
    return CostAware(Pair(*plan.surfaces), plan.costs.costs(), noise=plan.noise)


def first_profile(plan: Plan) -> str | None:
    """Return the profile that a policy would start with; None when it has no opinion."""
    if plan.policy == "always":
        return plan.always
    policy = build(plan)
    return policy.start if isinstance(policy, CostAware | InEngine) else None


def to_measure(plan: Plan) -> str:
    """Return the commands that make the surfaces of a plan's pair."""
    pair = f"--profile {plan.speculative} --profile {plan.baseline}"
    return f"`opsctl bench run {pair}`, then `opsctl tune` and `opsctl reload`"


def learn(policy: Policy, costs: Costs) -> None:
    """Tell a policy new costs of switches, if it asks for them."""
    if isinstance(policy, CostAware):
        policy.learn(costs)


def tell(policy: Policy, plan: Plan, seen: Seen) -> Decision | None:
    """Tell a policy one sample and return its decision, if it was asked for one.

    A profile that an operator chose outside the pair is the operator's affair: the policy is not
    told what happens there, and not asked.
    """
    if not judges(plan, seen.serving):
        return None
    policy.see(seen.sample, seen.serving)
    if not seen.asked or seen.serving is None:
        return None
    return policy.decide(seen.serving, seen.sample.time)


def judges(plan: Plan, serving: str | None) -> bool:
    """Whether the policy has a say while `serving` answers requests (None: nobody does)."""
    if serving is None or plan.policy == "always":
        return True
    return serving in (plan.speculative, plan.baseline)
