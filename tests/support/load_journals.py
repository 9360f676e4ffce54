"""A load journal as `opsctl serve` records one."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.autospec.history import Decided, Record, Seen, SetUp, line
from opsctl.autospec.load import LoadSample
from opsctl.autospec.plan import Marks, Plan
from opsctl.autospec.policy import Decision
from opsctl.autospec.sustained_load import SustainedLoad

MARKS = Marks(high=8, high_for=5, low=3, low_for=5)
PLAN = Plan(policy="sustained_load", speculative="eagle3", baseline="baseline", marks=MARKS)
BEGIN = 1000.0
"""Monotonic seconds; the wall is a million seconds ahead."""


def demand(second: int) -> int:
    return 12 if second >= 10 else 1


def journal(plan: Plan = PLAN, *, lie: bool = False) -> str:
    """Thirty seconds as `serve` would have recorded them, made by the policy itself."""
    return "".join(line(record) for record in _records(plan, lie=lie))


def _records(plan: Plan, *, lie: bool) -> Iterator[Record]:
    yield SetUp(BEGIN, BEGIN + 1e6, "boot", "start", plan)
    policy = SustainedLoad("eagle3", "baseline", **MARKS.model_dump())
    last = None
    for second in range(30):
        time = BEGIN + second
        sample = LoadSample(
            time,
            running=demand(second),
            queued=0,
            arrived=2 * second,
            completed=second,
            generated=50 * second,
            used_tokens=400 * demand(second),
        )
        yield Seen(sample, "eagle3", time + 1e6)
        policy.see(sample, "eagle3")
        decision = policy.decide("eagle3", time)
        if lie and second == 20:
            decision = Decision("stay", "eagle3", "never said")
        if (decision.action, decision.profile) != last:
            yield Decided(time, time + 1e6, decision)
            last = decision.action, decision.profile
