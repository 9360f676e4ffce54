"""A policy's memory, told to it again from the load journal when opsctl starts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from opsctl.autospec.built import build
from opsctl.autospec.history import Seen, SetUp, parse
from opsctl.autospec.plan import Plan
from opsctl.autospec.policy import Policy
from opsctl.autospec.retrace import MOST, memory, remind, with_boots
from opsctl.serve.load_journal import tail
from opsctl.system.threads import aside

READ_LIMIT = 10.0
"""Seconds for reading a day of samples; a disk that takes longer costs the memory."""
TELL_LIMIT = 3.0
"""Seconds for telling them to the policy; a slow one is told the newest only."""
_CHUNK = 100
"""Samples told at once, in a few milliseconds: streams go through the same loop."""

Past = Sequence[tuple[str, Seen]]


async def past(path: Path) -> Past:
    """Return the newest samples of the journal, with their boots; empty when it cannot be read."""
    read = aside(lambda: list(with_boots(parse(tail(path)))), key=("restore", str(path)))
    try:
        return await asyncio.wait_for(read, READ_LIMIT)
    except (OSError, TimeoutError):
        return []


async def reminded(
    setup: SetUp, past: Past, clock: Callable[[], float] = time.perf_counter
) -> tuple[Policy, int]:
    """Return the policy of a set-up that has been told the past, and how many samples of it."""
    plan = setup.plan
    told = memory(past, setup)
    told = told[len(told) - _affordable(plan, told, clock) :]
    policy = build(plan)
    for begin in range(0, len(told), _CHUNK):
        remind(policy, plan, told[begin : begin + _CHUNK])
        await asyncio.sleep(0)
    return policy, len(told)


def _affordable(plan: Plan, told: Sequence[Seen], clock: Callable[[], float]) -> int:
    """How many samples can be told in time, by the speed of the first few."""
    some = told[:_CHUNK]
    before = clock()
    remind(build(plan), plan, some)
    each = (clock() - before) / max(len(some), 1)
    return min(len(told), MOST, int(TELL_LIMIT / max(each, 1e-9)))
