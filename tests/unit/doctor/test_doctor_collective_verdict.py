"""What tries of two ranks mean: hang, wrong sum, failure and impossibility are told apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opsctl.doctor.collective_verdict import Rank, Run, RunOutcome, needs_second, outcome, verdict

WHOLE = (
    "opsctl-stage importing\nopsctl-stage imported 2.9.1\nopsctl-stage device cuda:0\n"
    "opsctl-stage joined\nopsctl-stage reduced 4096\nopsctl-stage done\n"
)
JOINED = WHOLE.partition("opsctl-stage reduced")[0]
DIRECT = "host:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
SHARED = "host:1:2 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct\n"


def run(*ranks: Rank, peer_to_peer: bool = True) -> Run:
    return outcome(ranks, 60.0, peer_to_peer=peer_to_peer)


def test_two_ranks_that_end_well_are_ok() -> None:
    found = run(Rank(0, WHOLE + DIRECT), Rank(0, WHOLE + DIRECT))
    assert (found.outcome, found.stage, found.transport) == ("ok", "done", "P2P")
    assert verdict(found).verdict == "ok"


def test_nccl_that_avoids_peer_to_peer_by_itself_is_not_simply_ok() -> None:
    found = run(Rank(0, WHOLE + SHARED), Rank(0, WHOLE + SHARED))
    assert verdict(found).verdict == "ok without peer-to-peer"
    assert "SHM" in verdict(found).why


def test_a_rank_that_had_to_be_killed_after_the_import_hung() -> None:
    found = run(Rank(None, JOINED), Rank(None, JOINED))
    assert (found.outcome, found.stage) == ("hang", "joined")
    assert needs_second(found)


@pytest.mark.parametrize("log", ["", "opsctl-stage importing\n"])
def test_a_slow_import_is_no_hang_of_the_gpus(log: str) -> None:
    found = run(Rank(None, JOINED), Rank(None, log))
    assert found.outcome == "impossible"
    assert verdict(found).verdict == "not possible"
    assert not needs_second(found)


def test_a_failing_rank_counts_more_than_the_one_that_waits_for_it() -> None:
    found = run(Rank(1, JOINED + "RuntimeError: NCCL error\n"), Rank(None, JOINED))
    assert found.outcome == "error"
    assert found.detail == "exit code 1: RuntimeError: NCCL error"


def test_a_crash_names_its_signal_as_a_negative_code() -> None:
    assert run(Rank(-11, JOINED), Rank(0, WHOLE)).detail.startswith("exit code -11")


def test_what_keeps_it_from_being_tried_is_said() -> None:
    text = "opsctl-stage importing\nopsctl-stage impossible torch cannot be imported: no module\n"
    found = run(Rank(10, text), Rank(None, ""))
    assert verdict(found).why == "torch cannot be imported: no module"


def test_a_wrong_sum_is_said_with_its_extent() -> None:
    found = run(Rank(20, JOINED + "opsctl-stage wrong 12 of 1024 sums\n"), Rank(0, WHOLE))
    assert (found.outcome, found.detail) == ("wrong sum", "12 of 1024 sums")


FIRST = run(Rank(None, JOINED), Rank(None, JOINED))
SECOND = run(Rank(0, WHOLE + SHARED), Rank(0, WHOLE + SHARED), peer_to_peer=False)


@pytest.mark.parametrize("first", ["hang", "wrong sum", "error"])
def test_what_works_without_peer_to_peer_only_is_said(first: RunOutcome) -> None:
    found = verdict(replace(FIRST, outcome=first), SECOND)
    assert found.verdict == "ok without peer-to-peer"
    assert "NCCL_P2P_DISABLE=1 works" in found.why
    assert found.good


@pytest.mark.parametrize(
    ("first", "second", "name"),
    [
        ("hang", "hang", "hangs"),
        ("hang", "error", "hangs"),
        ("error", "hang", "hangs"),
        ("error", "error", "fails"),
        ("wrong sum", "wrong sum", "fails"),
        ("error", "impossible", "fails"),
    ],
)
def test_what_works_neither_way_is_bad(first: RunOutcome, second: RunOutcome, name: str) -> None:
    found = verdict(replace(FIRST, outcome=first), replace(SECOND, outcome=second))
    assert found.verdict == name
    assert not found.good


def test_a_hang_without_a_second_try_hangs() -> None:
    assert verdict(FIRST).verdict == "hangs"
