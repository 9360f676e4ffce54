"""A load journal played again: what the policy that wrote it says now, beside what it said. Pure.

`serve` builds its policy from a plan that the journal holds, so the same samples must lead to the
same decisions. Another policy may be asked instead, to see where it would have decided otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, get_args

from opsctl.autospec.history import Record, SetUp
from opsctl.autospec.pair import Pair
from opsctl.autospec.plan import Marks, Plan, PolicyName
from opsctl.autospec.retrace import Step, retrace
from opsctl.errors import UsageError

SCHEMA = "opsctl/replay-journal/v1"
MOST = 200
"""Changes and differences that a document lists."""


@dataclass(frozen=True)
class Other:
    """Another policy than the recorded one: its name, and what it takes."""

    policy: str
    marks: Marks
    pair: Pair | None = None


def recount(records: Iterable[Record], where: str, other: Other | None = None) -> dict[str, Any]:
    """Return what came out, as JSON can hold it; raises UsageError naming `where`."""
    setups: list[SetUp] = []
    steps = list(retrace(_with(records, other, where, setups)))
    if not setups:
        what = f"{where}: no set-up in it, so nothing tells which policy wrote it"
        raise UsageError(what, hint="`opsctl serve --auto-spec` writes load journals")
    different = [step for step in steps if step.difference]
    begin = steps[0].seen.wall if steps else 0.0
    return {
        "journal": where,
        "policies": list(dict.fromkeys(setup.plan.policy for setup in setups)),
        "recorded": other is None,
        "whole": _whole(setups, steps),
        "samples": len(steps),
        "asked": sum(step.decision is not None for step in steps),
        "compared": sum(step.recorded is not None for step in steps),
        "differences": len(different),
        "first_difference": _difference(different[0], begin) if different else None,
        "changes": [_change(step, begin) for step in _changes(steps)][:MOST],
    }


def _whole(setups: list[SetUp], steps: list[Step]) -> bool:
    """Whether the policy that was told the first sample knew of none before it.

    Each file begins with the set-up in force, as `again`; a policy that is new has one more.
    """
    begin = steps[0].seen.sample.time if steps else math.inf
    first = [setup for setup in setups if setup.time <= begin] or setups[:1]
    return first[-1].why != "again" and not first[-1].restored


def _with(
    records: Iterable[Record], other: Other | None, where: str, setups: list[SetUp]
) -> Iterator[Record]:
    """The records with the other policy in their set-ups, which are also put into `setups`."""
    for record in records:
        if isinstance(record, SetUp):
            plan = record.plan if other is None else _planned(record.plan, other, where)
            setups.append(replace(record, plan=plan))
            yield setups[-1]
        else:
            yield record


def _planned(plan: Plan, other: Other, where: str) -> Plan:
    """The plan with another policy in it."""
    profile = other.policy.removeprefix("always:")
    if other.policy not in get_args(PolicyName) or other.policy == "always":
        if profile not in (plan.speculative, plan.baseline):
            hint = f"cost_aware, sustained_load, {plan.speculative} or {plan.baseline}"
            raise UsageError(f"--policy {other.policy}: not a policy of {where}", hint=hint)
        return plan.model_copy(update={"policy": "always", "always": profile})
    surfaces = plan.surfaces
    if other.pair is not None:
        surfaces = (other.pair.speculative, other.pair.baseline)
        if other.pair.names != (plan.speculative, plan.baseline):
            names = f"{plan.speculative} and {plan.baseline}"
            raise UsageError(f"the surfaces are not of {names}, which {where} is about")
    if other.policy == "cost_aware" and surfaces is None:
        what = f"{where} holds no surfaces, which cost_aware needs"
        raise UsageError(what, hint="name them with --surface")
    update = {"policy": other.policy, "surfaces": surfaces, "marks": plan.marks or other.marks}
    return plan.model_copy(update=update)


def _changes(steps: list[Step]) -> Iterator[Step]:
    """Where the policy's wish changed."""
    last: tuple[str, str] | None = None
    for step in steps:
        if step.decision is None:
            continue
        wish = step.decision.action, step.decision.profile
        if wish != last:
            yield step
        last = wish


def _change(step: Step, begin: float) -> dict[str, Any]:
    assert step.decision is not None  # noqa: S101 - only those are changes
    decision = step.decision
    return {
        "at_s": round(step.seen.wall - begin, 3),
        "serving": step.seen.serving,
        "action": decision.action,
        "profile": decision.profile,
        "reason": decision.reason,
    }


def _difference(step: Step, begin: float) -> dict[str, Any]:
    return {
        "at_s": round(step.seen.wall - begin, 3),
        "time": step.seen.sample.time,
        "wall": step.seen.wall,
        "words": step.difference,
    }
