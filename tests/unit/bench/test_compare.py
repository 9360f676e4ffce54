from __future__ import annotations

import json

import pytest

from opsctl.bench.compare import compare
from opsctl.bench.compare_document import document
from opsctl.bench.compare_model import Comparison, Crossover, Pair
from opsctl.errors import UsageError
from tests.support.measured import (
    cell,
    cells,
    column,
    fixed_prompt,
    profile,
    reference_host,
    source,
)


def only(comparison: Comparison) -> Pair:
    [pair] = comparison.pairs
    return pair


def crossing(pair: Pair, context: int = 0) -> Crossover:
    return pair.crossovers[context]


def line(baseline: dict[int, float], other: dict[int, float], noise: float = 0.004) -> Pair:
    """Compare two profiles at context 0."""
    found = source(
        "run",
        *cells("baseline", {0: baseline}, noise=noise),
        *cells("draft", {0: other}, noise=noise),
    )
    return only(compare([found]))


# --- the reference host ------------------------------------------------------------------------


def test_on_the_reference_host_speculation_never_pays_on_diverse_prompts() -> None:
    pair = only(compare([reference_host()]))
    assert {cell.verdict for cell in pair.cells} == {"worse"}
    assert crossing(pair).kind == "never"
    assert pair.finding.startswith("never on these prompts, at best -16.")
    assert pair.finding.endswith("speculation does not pay on this host with these prompts")
    assert [round(cell.ratio, 2) for cell in pair.cells] == [0.84, 0.42, 0.44, 0.44]


def test_on_the_reference_host_the_fixed_prompt_pays_at_concurrency_1_only() -> None:
    pair = only(compare([fixed_prompt()]))
    found = crossing(pair)
    assert [cell.verdict for cell in pair.cells] == ["better", "worse", "worse", "worse"]
    assert (found.kind, found.wins, found.loses) == ("at", (1,), (30, 70, 250))
    assert pair.cells[0].ratio == pytest.approx(1.038, abs=0.006)
    gain = f"{(pair.cells[0].ratio - 1) * 100:+.1f} %"
    assert pair.finding == f"only at concurrency 1, {gain}"


def test_the_gain_is_the_tables_own_when_repeats_agree() -> None:
    rows = column("reference_host", "baseline")
    fixed = {0: {1: 96.1, 30: 299.5}}
    found = source("run", *cells("baseline", rows, noise=0.0), *cells("eagle3", fixed, noise=0.0))
    assert only(compare([found])).finding == "only at concurrency 1, +3.8 %"


def test_the_two_workloads_are_never_compared_with_each_other() -> None:
    comparison = compare([reference_host(), fixed_prompt()])
    assert [pair.workload for pair in comparison.pairs] == ["diverse", "fixed"]
    assert [crossing(pair).kind for pair in comparison.pairs] == ["never", "at"]
    assert any("several workloads" in note for note in comparison.notes)


# --- crossovers --------------------------------------------------------------------------------


def test_a_draft_that_breaks_even_at_7_and_a_half_is_seen_to() -> None:
    base = column("reference_host_draft14", "baseline")[0]
    pair = line(base, column("reference_host_draft14", "speculative")[0])
    found = crossing(pair)
    assert found.kind == "at"
    assert found.low is not None and found.high is not None
    assert found.low < 7.5 < found.high
    assert found.concurrency == pytest.approx(7.5, rel=0.1)
    assert found.high - found.low < 2
    assert pair.finding.startswith("up to concurrency 7.")


def test_every_context_has_a_crossover_of_its_own() -> None:
    found = source(
        "run",
        *cells("baseline", column("kimi_k26_dcp1", "baseline")),
        *cells("speculative", column("kimi_k26_dcp1", "speculative")),
    )
    pair = only(compare([found]))
    assert {context: pair.crossovers[context].kind for context in pair.crossovers} == {
        0: "at",
        16384: "at",
        32768: "mixed",
        65536: "at",
        131072: "at",
    }
    assert (pair.crossovers[65536].wins, pair.crossovers[65536].loses[0]) == ((1, 2), 4)
    assert pair.finding.count(";") == 4


def test_a_profile_that_wins_everywhere_always_wins() -> None:
    pair = line({1: 85.8, 32: 605.9}, {1: 130.0, 32: 922.6})
    assert crossing(pair).kind == "always"
    assert pair.finding.startswith("always: +5")


def test_profiles_that_do_not_differ_are_said_not_to() -> None:
    pair = line({1: 100.0, 8: 300.0}, {1: 100.1, 8: 299.0}, noise=0.03)
    assert {cell.verdict for cell in pair.cells} == {"no significant difference"}
    assert crossing(pair).kind == "no significant difference"


@pytest.mark.parametrize(
    ("noise", "kind", "words"),
    [
        (0.004, "never", "never: at best "),
        (0.02, "undecided", "not seen to be faster: slower at concurrency 8, no significant"),
    ],
)
def test_a_gain_that_is_not_excluded_is_not_called_never(
    noise: float, kind: str, words: str
) -> None:
    pair = line({1: 100.0, 8: 300.0}, {1: 100.0, 8: 200.0}, noise=noise)
    assert pair.cells[0].verdict == "no significant difference"
    assert crossing(pair).kind == kind
    assert crossing(pair).words.startswith(words)
    assert ("does not pay" in pair.finding) == (kind == "never")


def test_a_profile_that_wins_only_under_load_wins_from_there_up() -> None:
    pair = line({1: 100.0, 8: 300.0, 64: 600.0}, {1: 80.0, 8: 270.0, 64: 900.0})
    found = crossing(pair)
    assert found.kind == "from"
    assert found.concurrency is not None and 8 < found.concurrency < 64
    assert pair.finding.startswith("from concurrency ")


def test_winners_that_alternate_are_not_one_crossing() -> None:
    pair = line({1: 100.0, 8: 300.0, 64: 600.0}, {1: 120.0, 8: 270.0, 64: 700.0})
    found = crossing(pair)
    assert (found.kind, found.wins, found.loses) == ("mixed", (1, 64), (8,))
    assert found.concurrency is None


def test_a_crossing_beyond_what_was_measured_is_open() -> None:
    found = source(
        "run",
        *cells("baseline", {0: {1: 100.0, 8: 300.0}}, noise=0.02),
        *cells("draft", {0: {1: 130.0, 8: 301.0}}, noise=0.02),
    )
    crossed = crossing(only(compare([found])))
    assert crossed.kind == "at"
    assert crossed.high is None


# --- what does not count -----------------------------------------------------------------------


def test_an_invalid_cell_never_counts_and_is_named() -> None:
    good = [*cells("baseline", {0: {64: 700.0}}), *cells("eagle3", {0: {64: 300.0}})]
    bad = cell("eagle3", 64, 0, 9000.0, repeat=3, valid=False, reason="N/A (58/64)")
    comparison = compare([source("run", *good, bad)])
    assert only(comparison).cells[0].repeats == 3
    assert only(comparison).cells[0].ratio < 0.5
    assert [str(item) for item in comparison.left_out] == [
        "run: eagle3, concurrency 64, context 0, repeat 3: N/A (58/64)"
    ]


def test_a_place_without_a_valid_cell_is_not_compared() -> None:
    bad = cell("eagle3", 64, 0, 9000.0, valid=False, reason="requests were aborted")
    good = [*cells("baseline", {0: {1: 90.0, 64: 700.0}}), *cells("eagle3", {0: {1: 80.0}})]
    pair = only(compare([source("run", *good, bad)]))
    assert [cell.concurrency for cell in pair.cells] == [1]


def test_a_cell_that_measured_latency_is_not_compared() -> None:
    comparison = compare(
        [
            source(
                "run",
                *cells("baseline", {0: {1: 90.0}}),
                *cells("eagle3", {0: {1: 80.0}}),
                *cells("eagle3", {0: {8: 80.0}}, mode="latency"),
            )
        ]
    )
    assert [item.concurrency for item in comparison.left_out] == [8, 8, 8]


def test_one_repeat_is_no_verdict() -> None:
    found = source("run", *cells("baseline", {0: {1: 90.0}}), cell("eagle3", 1, 0, 50.0))
    pair = only(compare([found]))
    assert pair.cells[0].verdict == "unknown"
    assert pair.cells[0].why == "one valid repeat of eagle3: an interval needs two"
    assert (pair.cells[0].low, crossing(pair).kind) == (None, "unknown")


def test_answers_of_different_lengths_are_not_compared() -> None:
    found = source(
        "run",
        *cells("baseline", {0: {1: 90.0}}, output_tokens_mean=500.0),
        *cells("eagle3", {0: {1: 80.0}}, output_tokens_mean=560.0),
    )
    assert only(compare([found])).cells[0].why == (
        "answers are 560 and 500 tokens long: not comparable"
    )


def test_a_result_given_twice_counts_once() -> None:
    once, twice = compare([reference_host()]), compare([reference_host(), reference_host()])
    assert only(twice).cells[0].repeats == 3
    assert only(twice).cells[0].low == only(once).cells[0].low
    assert "12" not in only(twice).cells[0].why
    assert any("24 measurements were given twice" in note for note in twice.notes)


def test_repeats_of_several_runs_of_the_same_thing_are_put_together() -> None:
    runs = [
        source(
            name,
            *cells("baseline", {0: {1: 90.0}}),
            *cells("eagle3", {0: {1: 80.0}}),
            started=started,
        )
        for name, started in (("a", "2026-02-03T04:05:06Z"), ("b", "2026-02-04T04:05:06Z"))
    ]
    assert only(compare(runs)).cells[0].repeats == 6


def test_a_profile_measured_before_and_after_is_compared_with_itself() -> None:
    before = source("before", *cells("eagle3", {0: {1: 80.0}}))
    after = source(
        "after",
        *cells("eagle3", {0: {1: 96.0}}),
        profiles=(profile("eagle3", versions={"patches": "allreduce-fusion"}),),
    )
    pair = only(compare([before, after]))
    assert (pair.baseline.name, pair.profile.name) == ("eagle3 (before)", "eagle3 (after)")
    assert pair.cells[0].verdict == "better"


def test_different_environments_are_said() -> None:
    ours = source("a", *cells("baseline", {0: {1: 90.0}}))
    theirs = source("b", *cells("eagle3", {0: {1: 80.0}}), environment={"driver": "575.57.08"})
    notes = compare([ours, theirs]).notes
    assert any("environments differ in `driver`" in note for note in notes)


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"workload": "sglang:random"}, "not natural text"),
        ({"salted": False}, "prefix cache"),
        ({"complete": False}, "not finished"),
    ],
)
def test_what_makes_a_result_doubtful_is_said(more: dict[str, object], word: str) -> None:
    found = source(
        "run", *cells("baseline", {0: {1: 90.0}}), *cells("eagle3", {0: {1: 80.0}}), **more
    )
    assert any(word in note for note in compare([found]).notes)


# --- which is the baseline ---------------------------------------------------------------------


def three() -> tuple[object, ...]:
    return tuple(
        found
        for name, rate in (("baseline-a", 90.0), ("baseline-b", 95.0), ("eagle3", 80.0))
        for found in cells(name, {0: {1: rate}})
    )


def test_the_baseline_has_to_be_named_when_it_cannot_be_told() -> None:
    with pytest.raises(UsageError, match="which profile is the baseline"):
        compare([source("run", *three())])  # type: ignore[arg-type]


def test_a_named_baseline_is_taken() -> None:
    comparison = compare([source("run", *three())], baseline="baseline-b")  # type: ignore[arg-type]
    assert [pair.profile.name for pair in comparison.pairs] == ["baseline-a", "eagle3"]
    assert {pair.baseline.name for pair in comparison.pairs} == {"baseline-b"}


def test_a_baseline_that_was_not_measured_is_no_comparison() -> None:
    with pytest.raises(UsageError, match=r"measured were baseline \(diverse\), eagle3"):
        compare([reference_host()], baseline="other")


def test_one_profile_alone_is_no_comparison() -> None:
    with pytest.raises(UsageError, match="nothing to compare"):
        compare([source("run", *cells("eagle3", {0: {1: 80.0}}))])


# --- the document ------------------------------------------------------------------------------


def test_the_document_holds_what_the_contract_says() -> None:
    content = json.loads(json.dumps(document(compare([fixed_prompt()]))))
    first = content["cells"][0]
    wanted = {"profile", "concurrency", "context", "ratio", "low", "high", "verdict"}
    assert wanted <= set(first)
    assert first["low"] < first["ratio"] < first["high"]
    [context] = content["contexts"]
    assert (context["context"], context["crossover"]["kind"]) == (0, "at")
    assert context["crossover"]["low"] <= context["crossover"]["concurrency"]
    assert content["confidence"] == 0.95
