from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from opsctl.autospec.history import Seen, SetUp, line
from opsctl.autospec.load import LoadSample
from opsctl.autospec.plan import Marks, Plan
from opsctl.autospec.policy import Decision
from opsctl.serve import restore

PLAN = Plan(
    policy="sustained_load",
    speculative="eagle3",
    baseline="baseline",
    marks=Marks(high=8, high_for=3, low=3, low_for=3),
)


def seen(time: float, running: int = 20) -> Seen:
    return Seen(LoadSample(time, running, 0), "eagle3", 1e9 + time)


def setup(time: float) -> SetUp:
    return SetUp(time, 1e9 + time, "boot", "start", PLAN)


async def decision(begin: SetUp, past: restore.Past) -> Decision:
    policy, _ = await restore.reminded(begin, past)
    policy.see(LoadSample(begin.time + 0.5, 20, 0), "eagle3")
    return policy.decide("eagle3", begin.time + 0.5)


async def test_a_policy_goes_on_from_what_the_last_opsctl_saw() -> None:
    past = [("boot", seen(float(time))) for time in range(1, 5)]
    assert (await decision(setup(4.5), past)).action == "switch"
    assert (await decision(setup(4.5), [])).action == "stay"


async def test_after_a_reboot_the_times_are_carried_over() -> None:
    past = [("before", seen(float(time))) for time in range(1, 5)]
    now = SetUp(0.5, 1e9 + 4.5, "boot", "start", PLAN)
    assert (await decision(now, past)).action == "switch"


async def test_the_number_of_samples_told_is_returned() -> None:
    past = [("boot", seen(float(time))) for time in range(1000)]
    _, told = await restore.reminded(setup(1000.0), past)
    assert told == 1000


async def test_a_slow_policy_is_told_the_newest_only(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    monkeypatch.setattr(
        restore, "remind", lambda policy, plan, past: told.extend(s.sample.time for s in past)
    )
    past = [("boot", seen(float(time))) for time in range(1000)]
    ticks: Iterator[float] = (float(n) for n in count(0, 1))  # the first 100 take a second
    _, number = await restore.reminded(setup(1000.0), past, clock=lambda: next(ticks))
    assert number == 300, "three seconds are spent on them"
    assert told[100:] == [float(time) for time in range(700, 1000)]


async def test_the_past_is_read_from_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "load.jsonl"
    path.write_text("junk\n" + line(setup(0.0)) + line(seen(1.0)) + line(seen(2.0))[:-9])
    assert list(await restore.past(path)) == [("boot", seen(1.0))]


async def test_no_journal_is_no_past(tmp_path: Path) -> None:
    assert list(await restore.past(tmp_path / "load.jsonl")) == []
