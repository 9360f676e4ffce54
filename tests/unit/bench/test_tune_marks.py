from __future__ import annotations

import pytest

from opsctl.bench.compare import compare
from opsctl.bench.compare_model import Pair
from opsctl.bench.tune_marks import marks
from tests.support.measured import cells, column, fixed_prompt, reference_host, source

Rows = dict[int, dict[int, float]]


def pair(baseline: Rows, draft: Rows, noise: float = 0.004) -> Pair:
    found = source(
        "run", *cells("baseline", baseline, noise=noise), *cells("draft", draft, noise=noise)
    )
    [only] = compare([found]).pairs
    return only


BASE = {1: 100.0, 2: 170.0, 4: 280.0, 8: 420.0, 16: 600.0}
"""Tok/s by concurrency."""


def times(*gains: float) -> dict[int, float]:
    return {n: rate * gain for (n, rate), gain in zip(BASE.items(), gains, strict=True)}


def test_on_the_reference_host_there_are_no_marks_and_the_finding_is_said() -> None:
    [only] = compare([reference_host()]).pairs
    found = marks(only)
    assert not found.found
    assert found.why_not.startswith(
        "speculation does not pay on this host with these prompts (at best -16."
    )


def test_on_the_fixed_prompt_the_marks_are_1_and_2_with_a_warning_of_the_gap() -> None:
    [only] = compare([fixed_prompt()]).pairs
    found = marks(only)
    assert (found.low, found.high) == (1, 2)
    assert "nothing was measured between concurrency 1 and 30" in found.notes[0]
    assert "at best +3." in found.notes[-1]


def test_marks_lie_where_speculation_wins_and_loses_for_certain() -> None:
    found = marks(pair({0: BASE}, {0: times(1.4, 1.3, 1.15, 0.9, 0.7)}))
    assert found.low is not None and found.high is not None
    assert 4 <= found.low < 6.5 < found.high <= 8


def test_a_noisy_crossing_gives_marks_that_are_further_apart() -> None:
    rows: tuple[Rows, Rows] = ({0: BASE}, {0: times(1.6, 1.5, 1.3, 0.8, 0.6)})
    sharp, noisy = marks(pair(*rows)), marks(pair(*rows, noise=0.03))
    assert sharp.low is not None and sharp.high is not None
    assert noisy.low is not None and noisy.high is not None
    assert noisy.high - noisy.low > sharp.high - sharp.low


def test_the_smallest_crossing_of_all_contexts_decides() -> None:
    both = pair(
        {0: BASE, 16384: BASE},
        {0: times(1.4, 1.3, 1.2, 1.1, 0.8), 16384: times(1.2, 1.1, 0.8, 0.7, 0.6)},
    )
    long, short = marks(both), marks(both, contexts=[0])
    assert long.low is not None and long.high is not None and short.low is not None
    assert 2 <= long.low < long.high
    assert long.high <= 4
    assert short.low >= 8


def test_a_context_at_which_it_never_pays_allows_no_marks() -> None:
    both = pair(
        {0: BASE, 16384: BASE},
        {0: times(1.4, 1.3, 1.2, 1.1, 0.8), 16384: times(0.9, 0.9, 0.8, 0.7, 0.6)},
    )
    assert marks(both).why_not.startswith("one pair of marks cannot be right at every context")
    assert marks(both, contexts=[0]).found


def test_what_always_pays_needs_no_marks() -> None:
    rows = column("qwen35_397b_mtp2", "baseline"), column("qwen35_397b_mtp2", "speculative")
    found = marks(pair(*rows))
    assert not found.found
    assert found.why_not.startswith("speculation always pays")


@pytest.mark.parametrize(
    ("gains", "noise", "words"),
    [
        ((1.01, 1.0, 1.01, 0.99, 1.0), 0.05, "intervals overlap, the measurement does not"),
        ((1.5, 1.4, 1.0, 1.0, 1.0), 0.02, "intervals overlap where speculation would stop"),
        ((1.4, 0.7, 1.4, 0.7, 1.4), 0.004, "does not decide it"),
        ((0.7, 0.8, 0.9, 1.2, 1.4), 0.004, "does not decide it"),
    ],
)
def test_what_the_measurement_does_not_decide_is_not_written(
    gains: tuple[float, ...], noise: float, words: str
) -> None:
    found = marks(pair({0: BASE}, {0: times(*gains)}, noise))
    assert not found.found
    assert words in found.why_not


def test_nothing_at_the_contexts_asked_for_is_no_marks() -> None:
    found = marks(pair({0: BASE}, {0: times(1.4, 1.3, 1.2, 0.9, 0.8)}), contexts=[4096])
    assert found.why_not == "nothing that can be compared was measured"
