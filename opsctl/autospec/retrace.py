"""A recorded history told to its policy once more: the same decisions must come out. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from opsctl.autospec.built import build, learn, tell
from opsctl.autospec.cost import Costs
from opsctl.autospec.history import (
    Decided,
    Record,
    Seen,
    SetUp,
    Switched,
    carried_over,
    finite,
)
from opsctl.autospec.plan import Plan
from opsctl.autospec.policy import Decision, Policy

DAY = 86_400.0
MOST = 90_000
"""Samples of the past that a new policy is told at most: a day, one a second, and some."""


@dataclass(frozen=True)
class Step:
    """One sample, what the policy says now, and what it had said when that was news.

    `difference` says in words how the two differ; empty when they do not.
    """

    seen: Seen
    decision: Decision | None
    recorded: Decision | None
    difference: str = ""


def memory(past: Iterable[tuple[str, Seen]], setup: SetUp, most: int = MOST) -> list[Seen]:
    """Return what a policy of `setup` is told of the past, oldest first: at most a day.

    `past`: samples with the boot they are of. Times of another boot are carried over by wall time;
    a clock that was set in between makes samples overlap, and those that do are left out.
    """
    kept: deque[Seen] = deque(maxlen=most)
    last = setup.time - DAY
    for boot, seen in past:
        moved = carried_over(seen, setup, boot)
        if last < moved.sample.time < setup.time:
            kept.append(moved)
            last = moved.sample.time
    return list(kept)


def with_boots(records: Iterable[Record]) -> Iterator[tuple[str, Seen]]:
    """Return the samples, each with the boot its time is of; empty when that is not known."""
    boot = ""
    for record in records:
        if isinstance(record, SetUp):
            boot = record.boot
        elif isinstance(record, Seen):
            yield boot, record


def remind(policy: Policy, plan: Plan, past: Iterable[Seen]) -> None:
    """Tell a new policy what `memory` returned; it is asked for nothing."""
    for seen in past:
        tell(policy, plan, Seen(seen.sample, seen.serving, seen.wall, asked=False))


def retrace(records: Iterable[Record]) -> Iterator[Step]:
    """Build the recorded policies again and compare, sample by sample.

    Samples before the first set-up are passed over. A policy whose memory reaches back beyond
    `records` may decide differently until it has seen enough.
    """
    driver = _Driver()
    pending: Seen | None = None
    recorded: list[Decision] = []
    for record in records:
        if isinstance(record, Decided):
            recorded.append(record.decision)
            continue
        if pending is not None:
            yield driver.step(pending, recorded)
        pending, recorded = None, []
        match record:
            case SetUp():
                driver.set_up(record)
            case Switched(stage="done"):
                driver.switched(record)
            case Seen() if driver.policy is not None:
                pending = record
    if pending is not None:
        yield driver.step(pending, recorded)


class _Driver:
    """Does to a policy what `serve` did."""

    def __init__(self) -> None:
        self.policy: Policy | None = None
        self.plan: Plan | None = None
        self._costs = Costs()
        self._boot = ""
        self._past: deque[tuple[str, Seen]] = deque(maxlen=MOST)
        self._standing: tuple[str, str] | None = None
        """Action and profile of the decision told last."""

    def set_up(self, setup: SetUp) -> None:
        """A policy was built; `again` only says which one goes on."""
        if setup.why == "again" and self.policy is not None:
            return
        self.plan, self._costs = setup.plan, setup.plan.costs.costs()
        self.policy = build(setup.plan)
        self._standing = None
        told = memory(self._past, setup) if setup.restored else []
        remind(self.policy, self.plan, told[-setup.restored :])
        self._boot = setup.boot

    def switched(self, record: Switched) -> None:
        """The policy was told what a switch had cost."""
        self._costs = self._costs.with_switch(
            record.target, prepare=record.prepare_s, closed=record.closed_s
        )
        if self.policy is not None:
            learn(self.policy, self._costs)

    def step(self, seen: Seen, recorded: Sequence[Decision]) -> Step:
        """Tell the policy one sample; `recorded` was told right after it."""
        assert self.policy is not None  # noqa: S101 - samples before are not stepped
        assert self.plan is not None  # noqa: S101
        self._past.append((self._boot, seen))
        decision = tell(self.policy, self.plan, seen)
        then = recorded[-1] if recorded else None
        return Step(seen, decision, then, self._compare(decision, then))

    def _compare(self, decision: Decision | None, recorded: Decision | None) -> str:
        if recorded is not None:
            self._standing = (recorded.action, recorded.profile)
            same = decision is not None and finite(decision) == recorded
            return "" if same else _difference(decision, recorded)
        if decision is None or self._standing is None:
            return ""
        if (decision.action, decision.profile) == self._standing:
            return ""
        action, profile = self._standing
        return f"{decision.action} ({decision.profile}), and {action} ({profile}) was recorded"


def _difference(decision: Decision | None, recorded: Decision) -> str:
    then = f"{recorded.action} ({recorded.profile}): {recorded.reason}"
    if decision is None:
        return f"no decision, and recorded was {then}"
    return f"{decision.action} ({decision.profile}): {decision.reason}; recorded was {then}"
