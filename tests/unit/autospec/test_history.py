from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.autospec.cost import Costs, SwitchCost
from opsctl.autospec.history import (
    Decided,
    Record,
    Seen,
    SetUp,
    Switched,
    carried_over,
    header,
    line,
    parse,
)
from opsctl.autospec.load import LoadSample
from opsctl.autospec.plan import Guarding, Marks, Plan, PlannedCosts
from opsctl.autospec.policy import Decision
from opsctl.autospec.surface import Point, Surface

counts = st.integers(0, 10**12)
maybe = st.none() | counts
seconds = st.floats(0, 1e12)
names = st.text(min_size=1, max_size=20)
samples = st.builds(
    LoadSample,
    time=seconds,
    running=maybe,
    queued=maybe,
    held=counts,
    in_flight=counts,
    arrived=counts,
    used_tokens=maybe,
    accept_length=st.none() | seconds,
    completed=counts,
    generated=maybe,
    stalled=counts,
)


def surface(profile: str, speculative: bool) -> Surface:
    point = Point(concurrency=1, context=0, tok_s=50.1, low=49.9, high=50.3, repeats=3)
    return Surface(
        schema="opsctl/surface/v1",
        profile=profile,
        fingerprint="f-1",
        speculative=speculative,
        versions={"sglang": "0.5.23", "flashinfer": None},
        environment={"driver": "580.1", "gpus": [{"name": "RTX PRO 6000"}]},
        points=(point,),
    )


PLAN = Plan(
    policy="cost_aware",
    speculative="eagle3",
    baseline="baseline",
    marks=Marks(high=8, high_for=30, low=3, low_for=60),
    surfaces=(surface("eagle3", True), surface("baseline", False)),
    costs=PlannedCosts.of(Costs("restart").with_switch("eagle3", prepare=0.0, closed=211.4)),
    guards=Guarding(dwell=300, switches_per_hour=6),
)
SETUP = SetUp(100.5, 1764455692.25, "boot-a", "start", PLAN, restored=7)
SEEN = Seen(LoadSample(101.5, 3, 0, accept_length=2.71, generated=12), "eagle3", 1764455693.25)
SWITCHED = Switched(200.0, 1764455800.0, "done", "eagle3", "baseline", "policy", 0, 1.5, 2.5, 60)
DECIDED = Decided(
    150.0,
    1764455750.0,
    Decision("switch", "baseline", "it costs less", {"cost": 9.25, "n": None}, "nothing", True),
    ("dwell: 7 s left of 60 s",),
)


@given(samples, st.none() | names, seconds, st.booleans())
def test_a_sample_comes_back_to_the_last_digit(
    sample: LoadSample, serving: str | None, wall: float, asked: bool
) -> None:
    seen = Seen(sample, serving, wall, asked and serving is not None)
    assert list(parse([line(seen)])) == [seen]


@pytest.mark.parametrize(
    "record",
    [
        SETUP,
        SEEN,
        SWITCHED,
        Switched(1.0, 2.0, "begun", "a", "b", "operator"),
        Switched(1.0, 2.0, "ended", "a", "b", "policy"),
        DECIDED,
    ],
    ids=lambda record: type(record).__name__,
)
def test_every_kind_of_record_comes_back(record: Record) -> None:
    assert list(parse([header("1.0"), line(record)])) == [record]


def test_a_line_is_one_line_and_short() -> None:
    text = line(SEEN)
    assert text.endswith("\n")
    assert text.count("\n") == 1
    assert len(text) < 120, "a day of them is 10 MB"


@given(st.lists(st.sampled_from([SETUP, SEEN, SWITCHED, DECIDED])), st.data())
def test_a_journal_that_a_crash_cut_short_loses_one_record(
    records: list[Record], data: st.DataObject
) -> None:
    text = "".join(line(record) for record in records)
    cut = data.draw(st.integers(0, len(text)))
    found = list(parse(text[:cut].splitlines()))
    assert found == records[: len(found)]
    assert len(found) >= text[:cut].count("\n")


HOSTILE: list[Any] = [
    None,
    [],
    "text",
    {},
    {"t": 1.0},
    {"t": "1", "w": 2.0},
    {"t": True, "w": 2.0, "h": 0, "f": 0, "a": 0, "c": 0},
    {"t": 10**400, "w": 2.0, "h": 0, "f": 0, "a": 0, "c": 0},
    {"t": 1.0, "w": 2.0, "h": -1, "f": 0, "a": 0, "c": 0},
    {"t": 1.0, "w": 2.0, "h": 1.5, "f": 0, "a": 0, "c": 0},
    {"t": 1.0, "w": 2.0, "h": 0, "f": 0, "a": 0, "c": 0, "r": "3"},
    {"t": 1.0, "w": 2.0, "h": 0, "f": 0, "a": 0, "c": 0, "p": 7},
    {"t": 1.0, "w": 2.0, "setup": {"why": "start", "boot": "b", "plan": {}}},
    {"t": 1.0, "w": 2.0, "setup": 3},
    {"t": 1.0, "w": 2.0, "switch": {"stage": "novel", "source": "a", "target": "b", "by": ""}},
    {"t": 1.0, "w": 2.0, "switch": {"stage": "done", "source": "a", "target": "b", "by": ""}},
    {"t": 1.0, "w": 2.0, "decision": {"action": "explode"}},
    {"t": 1.0, "w": 2.0, "decision": {"action": ["stay"], "numbers": {}, "vetoes": []}},
]


@pytest.mark.parametrize("document", HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_no_record_is_passed_over(document: object) -> None:
    assert list(parse([json.dumps(document), line(SEEN)])) == [SEEN]


@pytest.mark.parametrize(
    "text", ["", "{", '{"t": NaN, "w": 1}', "[" * 100_000, '{"t": Infinity}', "\x00\xff", "\ud800"]
)
def test_junk_is_passed_over(text: str) -> None:
    assert list(parse([text, line(SEEN)])) == [SEEN]


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    list(parse(text.splitlines()))


def test_times_of_the_same_boot_stay() -> None:
    set_since = replace(SEEN, wall=SEEN.wall - 77.0)
    assert carried_over(set_since, SETUP, "boot-a") == set_since, "whatever the clock was set to"


def test_times_of_another_boot_are_carried_over_by_wall_time() -> None:
    before = Seen(LoadSample(99_999.0, 1, 0, generated=5), "eagle3", SETUP.wall - 40.0)
    moved = carried_over(before, SETUP, "boot-b")
    assert moved.sample.time == SETUP.time - 40.0
    assert (moved.sample.running, moved.sample.generated) == (1, 5)
    assert (moved.serving, moved.wall) == (before.serving, before.wall)


def test_costs_and_guards_make_no_other_policy_but_surfaces_and_marks_do() -> None:
    costs = PlannedCosts.of(Costs("restart", SwitchCost(closed=3.0)))
    same = PLAN.model_copy(update={"costs": costs, "guards": Guarding(dwell=5)})
    assert PLAN.same_policy(same)
    assert not PLAN.same_policy(PLAN.model_copy(update={"noise": 0.05}))
    other = surface("eagle3", True).model_copy(update={"fingerprint": "f-2"})
    surfaces = (other, surface("baseline", False))
    assert not PLAN.same_policy(PLAN.model_copy(update={"surfaces": surfaces}))
    gated = PlannedCosts(mechanism="gated_restart")
    assert not PLAN.same_policy(PLAN.model_copy(update={"costs": gated}))


def test_a_surface_that_was_used_is_still_the_same_one() -> None:
    used = PLAN.model_copy(deep=True)
    assert used.surfaces is not None
    used.surfaces[0].tok_s(4, 100)
    assert PLAN.same_policy(used)
