"""A load journal played again: the same decisions, or the first that differs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from opsctl.autospec.history import Seen, SetUp, parse
from opsctl.autospec.journal_load import is_journal, requests
from opsctl.autospec.load import LoadSample
from opsctl.autospec.pair import Pair
from opsctl.autospec.recount import Other, recount
from opsctl.autospec.reference import reference_pair
from opsctl.errors import UsageError
from tests.support.load_journals import BEGIN, MARKS, journal
from tests.unit.autospec.test_closed_loop import Second, at_random, clients


def test_the_policy_that_wrote_a_journal_decides_the_same_again() -> None:
    found = recount(parse(journal().splitlines()), "j")
    assert (found["samples"], found["asked"], found["compared"]) == (30, 30, 2)
    assert (found["differences"], found["first_difference"]) == (0, None)
    assert [(x["at_s"], x["action"]) for x in found["changes"]] == [(0, "stay"), (15, "switch")]
    assert found["policies"] == ["sustained_load"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_a_decision_that_does_not_follow_from_the_samples_is_named() -> None:
    found = recount(parse(journal(lie=True).splitlines()), "j")
    assert found["differences"] >= 1
    first = found["first_difference"]
    assert first["at_s"] == 20
    assert first["time"] == BEGIN + 20
    assert "never said" in first["words"]


def test_another_policy_may_be_asked() -> None:
    other = Other("baseline", MARKS)
    found = recount(parse(journal().splitlines()), "j", other)
    assert (found["policies"], found["recorded"]) == (["always"], False)
    assert found["changes"][0]["action"] == "switch"
    assert found["differences"] > 0


def test_a_cost_aware_policy_needs_surfaces_of_the_same_profiles() -> None:
    records = lambda: parse(journal().splitlines())  # noqa: E731
    with pytest.raises(UsageError, match="holds no surfaces"):
        recount(records(), "j", Other("cost_aware", MARKS))
    pair = reference_pair()
    found = recount(records(), "j", Other("cost_aware", MARKS, pair))
    assert (found["policies"], found["samples"]) == (["cost_aware"], 30)
    renamed = pair.baseline.model_copy(update={"profile": "plain"})
    with pytest.raises(UsageError, match="not of eagle3 and baseline"):
        recount(records(), "j", Other("cost_aware", MARKS, Pair(pair.speculative, renamed)))


@pytest.mark.parametrize("policy", ["always", "x", "always:x", "sustained_load:8/3"])
def test_a_policy_that_the_journal_does_not_know_is_an_error(policy: str) -> None:
    with pytest.raises(UsageError, match="not a policy of j"):
        recount(parse(journal().splitlines()), "j", Other(policy, MARKS))


def test_a_journal_without_a_set_up_is_an_error() -> None:
    lines = journal().splitlines()[1:]
    with pytest.raises(UsageError, match="nothing tells which policy wrote it"):
        recount(parse(lines), "j")


def test_a_journal_that_begins_in_the_middle_says_so() -> None:
    lines = journal().splitlines()
    assert recount(parse(lines), "j")["whole"] is True
    [setup, *rest] = parse(lines)
    assert isinstance(setup, SetUp)
    again = replace(setup, why="again")
    for known in (again, replace(setup, restored=5)):
        assert recount([known, *rest], "j")["whole"] is False
    assert recount([again, setup, *rest], "j")["whole"] is True


def test_a_journal_lends_its_requests() -> None:
    trace = requests(parse(journal().splitlines()), "j")
    found = trace.requests
    assert len(found) == 58
    assert found.at[:2] == pytest.approx((0.25, 0.75))
    assert found.hours == pytest.approx(29 / 3600)
    assert set(found.output) == {50}
    assert set(found.prompt) == {375}
    assert trace.notes == ("each request is taken for 375 prompt and 50 output tokens, the mean",)


def test_a_counter_that_begins_again_loses_no_arrivals() -> None:
    samples = [LoadSample(t, arrived=n) for t, n in ((0.0, 10), (1.0, 12), (2.0, 3))]
    trace = requests([Seen(x, None, x.time) for x in samples], "j")
    assert len(trace.requests) == 2 + 3
    assert "output tokens are not told: assumed" in trace.notes


def test_counts_that_are_known_now_and_then_are_enough() -> None:
    told = [(0, 5, 900), (1, 5, None), (2, 8, 1200), (3, 9, None), (4, 10, 40), (5, 11, 140)]
    samples = [
        LoadSample(float(t), arrived=t, completed=done, generated=tokens)
        for t, done, tokens in told
    ]
    trace = requests([Seen(x, None, x.time) for x in samples], "j")
    assert set(trace.requests.output) == {(300 + 100) // (3 + 1)}


@pytest.mark.parametrize(
    ("samples", "wanted"),
    [
        ([], "fewer than two samples"),
        ([(0.0, 0), (5.0, 0)], "no request arrived"),
        ([(0.0, 0), (1e9, 5)], "more than 31 days"),
    ],
)
def test_a_journal_without_load_is_an_error(samples: list[tuple[float, int]], wanted: str) -> None:
    records = [Seen(LoadSample(time, arrived=n), None, time) for time, n in samples]
    with pytest.raises(UsageError, match=wanted):
        requests(records, "j")


def test_a_journal_is_known_by_its_first_line() -> None:
    assert is_journal('{"schema":"opsctl/load/v1","opsctl":"1"}\n{"t":1}')
    assert is_journal(journal())
    assert not is_journal('{"at": 1}\n')
    assert not is_journal("TIMESTAMP,ContextTokens\n")


@pytest.mark.parametrize(
    ("seconds", "wanted"), [(clients(40, 900), True), (at_random(4.0, 10.0, 900), False)]
)
def test_it_is_said_when_the_clients_of_a_journal_waited(
    seconds: Iterator[Second], wanted: bool
) -> None:
    records = [
        Seen(
            LoadSample(number, n, 0, in_flight=n, arrived=arrived, completed=completed),
            "plain",
            BEGIN + number,
        )
        for number, (n, arrived, completed) in enumerate(seconds)
    ]
    told = [note for note in requests(records, "j").notes if "clients waited" in note]
    assert [note.startswith("for 9") for note in told] == [True] * wanted
