from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.bench import bootstrap
from opsctl.bench.bootstrap import interval, log_ratios, student

rates = st.lists(st.floats(1.0, 1e5), min_size=2, max_size=6)


@pytest.mark.parametrize("repeats", [2, 3, 5])
@pytest.mark.parametrize("noises", [(0.02, 0.02), (0.002, 0.05)])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(
    repeats: int, noises: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "DRAWS", 200)
    source = random.Random(7)
    truth, trials, held = 1.05, 200, 0
    for trial in range(trials):
        base = [100 * math.exp(source.gauss(0, noises[0])) for _ in range(repeats)]
        other = [100 * truth * math.exp(source.gauss(0, noises[1])) for _ in range(repeats)]
        low, high = interval(log_ratios(base, other, name=str(trial)))
        held += low <= math.log(truth) <= high
    assert held / trials >= 0.92


def test_the_interval_is_as_wide_as_a_t_test_would_make_it() -> None:
    base, other = [100.0, 101.0, 99.0], [110.0, 111.0, 109.0]
    low, high = interval(log_ratios(base, other, name="x"))
    half = student(4.0) * math.sqrt(2 / 3) * 0.00955  # of logs spread by 1 in 105 or so
    assert (high - low) / 2 == pytest.approx(half, rel=0.15)


@settings(max_examples=30)
@given(rates, rates, st.floats(0.1, 10.0))
def test_a_common_factor_changes_nothing(
    base: list[float], other: list[float], factor: float
) -> None:
    before = interval(log_ratios(base, other, name="x"))
    after = interval(log_ratios([x * factor for x in base], [x * factor for x in other], name="x"))
    assert after == pytest.approx(before, abs=1e-6)


def test_the_same_repeats_give_the_same_interval_every_time() -> None:
    draws = [log_ratios([90.0, 92.0], [100.0, 99.0], name="x") for _ in range(2)]
    assert draws[0] == draws[1]
    assert draws[0] != log_ratios([90.0, 92.0], [100.0, 99.0], name="y")


def test_repeats_that_agree_leave_no_doubt() -> None:
    low, high = interval(log_ratios([100.0, 100.0], [110.0, 110.0], name="x"))
    assert low == high == pytest.approx(math.log(1.1))


def test_one_repeat_has_no_interval() -> None:
    with pytest.raises(ValueError, match="two or more"):
        log_ratios([100.0], [110.0, 111.0], name="x")


@pytest.mark.parametrize(
    ("freedom", "wanted"),
    [(1, 12.706), (2, 4.303), (2.5, 3.63), (4, 2.776), (30, 2.042), (60, 2.000), (math.inf, 1.96)],
)
def test_students_t_is_that_of_the_tables(freedom: float, wanted: float) -> None:
    assert student(freedom) == pytest.approx(wanted, rel=0.03)
