from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.autospec import retrace as module
from opsctl.autospec.built import build, first_profile, tell, to_measure
from opsctl.autospec.cost import Costs
from opsctl.autospec.history import Decided, Record, Seen, SetUp, Switched, line, parse
from opsctl.autospec.load import LoadSample
from opsctl.autospec.plan import Marks, Plan, PlannedCosts
from opsctl.autospec.policy import Decision
from opsctl.autospec.retrace import DAY, memory, remind, retrace, with_boots
from opsctl.autospec.surface import Surface
from tests.support.surfaces import surface


def rising(profile: str, base: float, rise: float) -> Surface:
    row = {n: base * (1 + (n - 1) / 63 * rise) for n in (1, 8, 64)}
    return surface({0: row}, profile=profile, speculative=profile == "eagle3")


MARKS = Plan(
    policy="sustained_load",
    speculative="eagle3",
    baseline="baseline",
    marks=Marks(high=8, high_for=3, low=3, low_for=3),
)
AWARE = Plan(
    policy="cost_aware",
    speculative="eagle3",
    baseline="baseline",
    surfaces=(rising("eagle3", 100.0, 2.0), rising("baseline", 60.0, 10.0)),
)
loads = st.lists(st.none() | st.integers(0, 40), min_size=1, max_size=60)
plans = st.sampled_from([MARKS, AWARE, MARKS.model_copy(update={"policy": "always"})])


def sample(time: float, running: int | None) -> LoadSample:
    queued = None if running is None else 0
    return LoadSample(time, running, queued, in_flight=running or 0, arrived=int(time) * 2)


def setup(plan: Plan, time: float = 0.0, boot: str = "a", restored: int = 0) -> SetUp:
    return SetUp(time, 1e9 + time, boot, "start", plan, restored)


def recorded(plan: Plan, running: list[int | None]) -> Iterator[Record]:
    """What `serve` would have written of this load, with every decision that was news."""
    yield setup(plan)
    policy = build(plan)
    last: tuple[str, str] | None = None
    for number, load in enumerate(running):
        seen = Seen(sample(number + 1.0, load), "eagle3", 1e9 + number + 1.0)
        yield seen
        decision = tell(policy, plan, seen)
        if decision is not None and (decision.action, decision.profile) != last:
            last = (decision.action, decision.profile)
            yield Decided(seen.sample.time, seen.wall, decision)


def through_a_file(records: list[Record]) -> list[Record]:
    return list(parse([line(record) for record in records]))


@given(plans, loads)
def test_the_same_samples_lead_to_the_same_decisions(plan: Plan, running: list[int | None]) -> None:
    steps = list(retrace(through_a_file(list(recorded(plan, running)))))
    assert [step.difference for step in steps] == [""] * len(running)
    assert any(step.recorded is not None for step in steps)


def test_a_decision_that_was_not_made_so_is_found() -> None:
    records = list(recorded(MARKS, [20] * 10))
    place = max(n for n, record in enumerate(records) if isinstance(record, Decided))
    told = records[place]
    assert isinstance(told, Decided)
    changed = Decision(
        told.decision.action, told.decision.profile, told.decision.reason, {"demand": 19}
    )
    records[place] = Decided(told.time, told.wall, changed)
    assert [step.difference for step in retrace(records) if step.difference]


def test_a_change_that_was_not_recorded_is_found() -> None:
    records = list(recorded(MARKS, [0] * 3 + [20] * 6))
    late = max(n for n, record in enumerate(records) if isinstance(record, Decided))
    del records[late]
    different = [step.difference for step in retrace(records) if step.difference]
    assert different
    assert "switch (baseline), and stay (eagle3) was recorded" in different[0]


def test_no_decision_where_one_was_recorded_is_found() -> None:
    seen = Seen(sample(1.0, 3), "eagle3", 1.0, asked=False)
    told = Decided(1.0, 1.0, Decision("stay", "eagle3", "because"))
    [step] = retrace([setup(MARKS), seen, told])
    assert step.difference == "no decision, and recorded was stay (eagle3): because"


def test_what_a_profile_outside_the_pair_did_is_not_told() -> None:
    seen = [Seen(sample(t, 30), "third", t) for t in (1.0, 2.0, 3.0)]
    assert [step.decision for step in retrace([setup(MARKS), *seen])] == [None] * 3


def test_a_restart_goes_on_from_what_was_seen_before() -> None:
    before = [Seen(sample(float(t), 20), "eagle3", 1e9 + t) for t in range(1, 4)]
    after = Seen(sample(5.0, 20), "eagle3", 1e9 + 5)
    reminded = [setup(MARKS), *before, setup(MARKS, 4.5, restored=3), after]
    forgotten = [setup(MARKS), *before, setup(MARKS, 4.5), after]
    *_, with_memory = retrace(reminded)
    *_, without = retrace(forgotten)
    assert with_memory.decision is not None
    assert without.decision is not None
    assert with_memory.decision.action == "switch", "the load was high for three seconds before"
    assert without.decision.action == "stay"


def test_times_of_another_boot_are_carried_over() -> None:
    old = SetUp(90_000.0, 1e9, "old", "start", MARKS)
    before = [Seen(sample(90_000.0 + t, 20), "eagle3", 1e9 + t) for t in range(1, 4)]
    reboot = SetUp(4.5, 1e9 + 4.5, "new", "start", MARKS, restored=3)
    after = Seen(sample(5.0, 20), "eagle3", 1e9 + 5)
    *_, last = retrace([old, *before, reboot, after])
    assert last.decision is not None
    assert last.decision.action == "switch"


def test_a_new_file_that_says_again_which_policy_it_is_changes_nothing() -> None:
    records = list(recorded(MARKS, [20] * 6))
    again = SetUp(3.0, 3.0, "a", "again", MARKS)
    records.insert(4, again)
    assert not any(step.difference for step in retrace(records))


def test_a_switch_teaches_the_replayed_policy_too(monkeypatch: pytest.MonkeyPatch) -> None:
    learnt: list[Costs] = []
    monkeypatch.setattr(module, "learn", lambda policy, costs: learnt.append(costs))
    done = Switched(2.0, 2.0, "done", "baseline", "eagle3", "policy", 3.0, 1.0, 2.0, 5.0)
    begun = Switched(1.5, 1.5, "begun", "baseline", "eagle3", "policy")
    list(retrace([setup(AWARE), begun, done]))
    [costs] = learnt
    assert (costs.to("eagle3").prepare, costs.to("eagle3").closed) == (3.0, 7.0)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(-2 * DAY, 2 * DAY)), max_size=30),
    st.integers(0, 5),
)
def test_a_memory_is_in_order_of_the_past_day_and_bounded(
    times: list[tuple[str, float]], most: int
) -> None:
    begin = SetUp(1000.0, 1e9, "a", "start", MARKS)
    past = [(boot, Seen(sample(time, 1), None, 1e9 + time)) for boot, time in times]
    told = memory(past, begin, most)
    at = [seen.sample.time for seen in told]
    assert at == sorted(set(at))
    assert all(1000.0 - DAY < time < 1000.0 for time in at)
    assert len(told) <= most


def test_samples_have_the_boot_of_the_set_up_before_them() -> None:
    seen = Seen(sample(1.0, 1), None, 1.0)
    other = SetUp(1.0, 1.0, "b", "again", MARKS)
    assert list(with_boots([seen, setup(MARKS), seen, other, seen])) == [
        ("", seen),
        ("a", seen),
        ("b", seen),
    ]


def test_a_reminded_policy_is_asked_for_nothing() -> None:
    class Silent:
        name = "silent"

        def __init__(self) -> None:
            self.seen: list[LoadSample] = []

        def see(self, sample: LoadSample, serving: str | None) -> None:
            self.seen.append(sample)

        def decide(self, serving: str, now: float) -> Decision:
            raise AssertionError

    policy = Silent()
    remind(policy, MARKS, [Seen(sample(1.0, 1), "eagle3", 1.0)])
    assert policy.seen == [sample(1.0, 1)]


@pytest.mark.parametrize(
    ("plan", "first"),
    [
        (MARKS, None),
        (MARKS.model_copy(update={"policy": "always", "always": "baseline"}), "baseline"),
        (AWARE, "baseline"),
        (AWARE.model_copy(update={"surfaces": None, "blind": "x"}), None),
        (AWARE.model_copy(update={"costs": PlannedCosts.of(Costs("in_engine"))}), "eagle3"),
    ],
)
def test_a_policy_may_say_which_profile_to_start(plan: Plan, first: str | None) -> None:
    assert first_profile(plan) == first


def test_the_way_to_a_surface_names_both_profiles() -> None:
    assert to_measure(MARKS).startswith(
        "`opsctl bench run --profile eagle3 --profile baseline`, then `opsctl tune`"
    )
