"""Each honesty check fails a cell whose fault it is there for, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from opsctl.bench.checks import comparable, reasons
from opsctl.bench.counters import Counters
from tests.support.bench import cell, facts, outcome


def test_a_sound_cell_has_no_reason() -> None:
    assert reasons(facts()) == []


def counted(**changes: float) -> Counters:
    known = {"generation_tokens": 20.0, "num_requests": 2.0, "num_aborted_requests": 0.0}
    return Counters(**(known | changes))


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "fewer run than were asked for": (
        {"concurrency": 64, "effective": 58.0}, "N/A (58/64)",
    ),
    "a little fewer run": ({"concurrency": 2, "effective": 1.8}, "N/A (1.8/2)"),
    "more run than were asked for": ({"effective": 4.0}, "N/A (4/2)"),
    "the client has no core left": (
        {"client_cpu": 0.97}, "the client was the bottleneck: it used 97% of a core",
    ),
    "the client gets no core": (
        {"client_late": 0.21}, "the client was starved: it was behind 21% of the time",
    ),
    "a request failed": (
        {"outcomes": [outcome(), outcome(ok=False, why="finish_reason 'abort'")],
         "counted": Counters()},
        "1 request failed: finish_reason 'abort'",
    ),
    "the engine aborted others": (
        {"counted": counted(num_aborted_requests=3.0)},
        "the engine aborted 3 requests meanwhile",
    ),
    "the counters tell of more": (
        {"counted": counted(generation_tokens=24.0)},
        "counters disagree: usage says 20 tokens, the engine counted 24",
    ),
    "the counters tell of less": (
        {"counted": counted(generation_tokens=16.0)},
        "counters disagree: usage says 20 tokens, the engine counted 16",
    ),
    "somebody else sent requests": (
        {"counted": counted(num_requests=5.0)},
        "somebody else used the engine: it had 5 requests, 2 of them ours",
    ),
    "an answer ended early": (
        {"outcomes": [outcome(), outcome(asked=64)]},
        "1 of 2 answers ended early, in spite of ignore_eos (10 of 64 tokens)",
    ),
    "an answer is longer than it may be": (
        {"outcomes": [outcome(), outcome(asked=4)]},
        "an answer has 10 tokens where 4 were the most",
    ),
    "the prefix cache answered": (
        {"cache_hits": 0.4}, "the prefix cache answered 40% of the prompts' own tokens",
    ),
    "hardly anything was measured": (
        {"tokens": 3.0}, "only 3 tokens in the steady window",
    ),
    "requests of an open loop were late": (
        {"concurrency": None, "delays": [0.0, 0.2]}, "1 of 2 requests were sent late",
    ),
    "it was given up": (
        {"stopped": "3 of 8 streams had begun after 900 s"},
        "3 of 8 streams had begun after 900 s",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "reason"), FAULTS.values(), ids=list(FAULTS))
def test_a_fault_fails_the_cell_with_its_reason_alone(changes: dict[str, Any], reason: str) -> None:
    assert reasons(facts(**changes)) == [reason]


ALLOWED: dict[str, dict[str, Any]] = {
    "a concurrency within five per cent": {"concurrency": 64, "effective": 61.0},
    "one look between two requests": {
        "concurrency": 1, "effective": 0.875, "effective_error": 0.125,
        "outcomes": [outcome(), outcome()],
    },
    "an engine that does not tell its load": {"effective": None},
    "an engine without counters": {"counted": Counters()},
    "natural ends": {"outcomes": [outcome(), outcome(asked=64)], "fixed_length": False},
    "a warm cache that was asked for": {"cache_hits": 0.9, "salted": False},
    "counters of a cell that was cut": {"counted": counted(generation_tokens=90.0),
                                        "drained": False},
}  # fmt: skip


@pytest.mark.parametrize("changes", ALLOWED.values(), ids=list(ALLOWED))
def test_no_reason_is_made_of(changes: dict[str, Any]) -> None:
    assert reasons(facts(**changes)) == []


def test_several_faults_are_all_told_a_failed_request_first() -> None:
    failed = [outcome(ok=False, why="status 500")]
    told = reasons(facts(outcomes=failed, cache_hits=0.5, counted=Counters()))
    assert told == ["1 request failed: status 500",
                    "the prefix cache answered 50% of the prompts' own tokens"]  # fmt: skip


def test_answers_of_unlike_length_fail_the_cells_of_both_profiles() -> None:
    one = cell(profile="baseline", output_tokens_mean=200.0)
    other = cell(profile="eagle3", output_tokens_mean=260.0)
    elsewhere = cell(profile="eagle3", concurrency=1, output_tokens_mean=200.0)
    changed = comparable([one, other, elsewhere])
    assert {(each.profile, each.concurrency) for each in changed} == {
        ("baseline", 8),
        ("eagle3", 8),
    }
    assert all(not each.valid for each in changed)
    assert changed[0].reason == (
        "answers differ in length between profiles: baseline 200, eagle3 260 tokens"
    )


def test_answers_of_like_length_stay_valid() -> None:
    pair = [cell(profile="a", output_tokens_mean=200.0), cell(profile="b", output_tokens_mean=204)]
    assert comparable(pair) == []


def test_a_cell_that_is_not_valid_fails_no_other() -> None:
    bad = cell(profile="a", valid=False, output_tokens_mean=20.0)
    assert comparable([bad, cell(profile="b")]) == []
