from __future__ import annotations

from dataclasses import replace

import pytest

from opsctl.autospec.arrivals import synthetic
from opsctl.autospec.patterns import PATTERNS
from opsctl.autospec.reference import reference_pair
from opsctl.autospec.suite import SUSTAINED, Case, play
from opsctl.autospec.suite_report import Result, markdown, result, verdict

CASE = Case("conversation", "bursts", "restart", "reference", "right")
HELD = Result(
    case=CASE,
    best_fixed="plain",
    fixed=10.0,
    policy=9.0,
    policy_p99=30.0,
    fixed_p99=40.0,
    switches=2,
    hindsight=8.0,
    hindsight_switches=4,
    one_switch=1.0,
    sustained=(50.0, 20.0),
    other_fixed=30.0,
)
HARM = replace(HELD, policy=12.0)
TIMID = replace(HELD, policy=9.5)
LITTLE = replace(HELD, hindsight=9.6, policy=9.9)


def test_r1_allows_five_percent_and_one_switch() -> None:
    assert HELD.r1_held
    assert replace(HELD, policy=11.5).r1_held
    assert not replace(HELD, policy=11.51).r1_held
    assert replace(HELD, policy=10.5, one_switch=0.0).r1_held
    assert not replace(HELD, policy=10.51, one_switch=0.0).r1_held


def test_r2_wants_half_of_what_hindsight_gains_where_that_is_more_than_five_percent() -> None:
    assert (HELD.share, HELD.r2_held) == (0.5, True)
    assert (TIMID.share, TIMID.r2_held) == (0.25, False)
    assert (HARM.share, HARM.r2_held) == (-1.0, False)
    assert (LITTLE.share, LITTLE.r2_held) == (None, None)
    assert replace(HELD, hindsight=9.5).share is None
    assert replace(HELD, hindsight=9.49).share is not None


def test_a_case_in_words_names_what_it_missed() -> None:
    assert "missed" not in HELD.words()
    assert HELD.words().startswith("reference/conversation/bursts/restart/right: 9.00 s, 0.90 of")
    assert HARM.words().endswith("R1 missed; R2 missed")
    assert TIMID.words().endswith("R2 missed")
    assert "share" not in LITTLE.words()
    assert "share 0.50" in HELD.words()


def test_the_count_leaves_out_cases_with_little_to_gain() -> None:
    assert verdict([HELD, HARM, TIMID, LITTLE]) == (
        "R1 held in 3 of 4 cases, R2 in 1 of 3 where hindsight gains more than 5 %."
    )


def test_what_missed_is_named_before_every_case() -> None:
    text = markdown([HELD, HARM, TIMID, LITTLE])
    missed, _, table = text.partition("## Every case")
    assert missed.count("\n- ") == 2
    assert f"- {HARM.words()}" in missed
    assert f"- {TIMID.words()}" in missed
    rows = [line for line in table.splitlines() if line.startswith("| reference")]
    assert len(rows) == 4
    assert "No case missed" in markdown([HELD, LITTLE])


def test_every_row_has_as_many_cells_as_the_head() -> None:
    lines = [line for line in markdown([HELD, LITTLE]).splitlines() if line.startswith("|")]
    every = lines[-4:]
    assert len({line.count("|") for line in every}) == 1
    assert every[0].count("|") == every[1].count("|")
    for name in SUSTAINED:
        assert name in every[0]
    assert "| held | 8.00 | 0.50 | 50.00 | 20.00 |" in every[2]
    assert "| held | 9.60 |  | 50.00 | 20.00 |" in every[3]


def test_the_worst_and_the_middle_of_each_policy_are_told() -> None:
    text = markdown([HELD, HARM, TIMID])
    assert "| cost_aware | 0.950 | 1.20 |" in text
    for name, worst in zip(SUSTAINED, (5.0, 2.0), strict=True):
        assert f"| {name} | {worst:.3f} | {worst:.2f} |" in text
    assert "| the worse fixed profile | 3.000 | 3.00 |" in text


def test_a_result_holds_the_numbers_of_its_verdict() -> None:
    pair = reference_pair()
    requests = PATTERNS["flapping"].requests(synthetic(1000, 1), pair, hours=0.2)
    played = play(Case("s", "flapping", "in_engine", "r", "right"), requests, pair)
    found = result(played)
    ours, fixed = played.row("cost_aware"), played.row(f"always:{played.best_fixed}")
    assert (found.policy, found.fixed) == (ours.mean, fixed.mean)
    assert (found.policy_p99, found.fixed_p99) == (ours.quantile(0.99), fixed.quantile(0.99))
    assert found.switches == len(ours.switches) > 0
    assert found.hindsight == played.hindsight.outcome.mean
    assert found.one_switch == played.one_switch / len(requests) == 0.0
    assert found.sustained == tuple(played.row(name).mean for name in SUSTAINED)
    assert found.other_fixed == max(played.row(f"always:{name}").mean for name in pair.names)
    assert found.ratio == pytest.approx(played.ratio())
    assert found.share == (None if played.share() is None else pytest.approx(played.share()))
