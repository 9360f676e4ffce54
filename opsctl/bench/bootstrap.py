"""Intervals for a ratio of two throughputs, from a few repeats each. Pure, and seeded.

Repeats are resampled with replacement (bootstrap), on logarithms, because what is compared is a
ratio. A plain bootstrap of three repeats is far too sure of itself: it never sees beyond the three
values it has, and what it calls 95 % is about 80 %. So the deviations are widened twice, by the
two corrections that a t-test makes for few repeats: `sqrt(n / (n - 1))`, because a spread taken
about the sample's own mean is too small, and `t / z` with Welch's degrees of freedom, because the
spread itself is only guessed. `tests/unit/bench/test_bootstrap.py` counts how often the interval
holds the truth.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import fmean, variance

CONFIDENCE = 0.95
DRAWS = 2000
SEED = 20260104
"""Fixed: the same results always give the same interval."""

NORMAL = 1.959964
# Student's t, two-sided 95 %, for 1 to 30 degrees of freedom.
STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def log_ratios(base: Sequence[float], other: Sequence[float], *, name: str) -> tuple[float, ...]:
    """Return draws of log(other / base), around the ratio of the geometric means.

    Both are throughputs of repeats, more than 0, two or more each; else ValueError. `name` (of the
    cell) is part of the seed, so that cells are independent and their order does not matter.
    """
    if len(base) < 2 or len(other) < 2:
        raise ValueError("an interval needs two or more repeats of each")
    below, above = [math.log(x) for x in base], [math.log(x) for x in other]
    middle = fmean(above) - fmean(below)
    width = student(_freedom(below, above)) / NORMAL
    source = random.Random(f"{SEED}/{name}")  # noqa: S311  # a lottery, not a secret
    pair = (_deviations(above), _deviations(below))
    return tuple(
        middle + width * (_mean_of_draw(pair[0], source) - _mean_of_draw(pair[1], source))
        for _ in range(DRAWS)
    )


def mean_interval(rates: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Return the geometric mean of repeats and what it lies between (95 %, Student's t).

    One repeat has no bounds.
    """
    logs = [math.log(rate) for rate in rates]
    middle = fmean(logs)
    if len(logs) < 2:
        return math.exp(middle), None, None
    half = student(len(logs) - 1) * math.sqrt(variance(logs) / len(logs))
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def interval(draws: Sequence[float]) -> tuple[float, float]:
    """Return what the middle 95 % of the draws lie between."""
    ordered = sorted(draws)
    tail = (1 - CONFIDENCE) / 2
    cut = min(int(tail * len(ordered)), len(ordered) - 1)
    return ordered[cut], ordered[-1 - cut]


def student(freedom: float) -> float:
    """Return the two-sided 95 % quantile of Student's t; between whole degrees over 1 / degrees."""
    if freedom <= 1:
        return STUDENT[0]
    if freedom >= len(STUDENT):
        limit = len(STUDENT) / freedom
        return NORMAL + (STUDENT[-1] - NORMAL) * limit
    lower = int(freedom)
    upper = lower + 1
    share = (1 / lower - 1 / freedom) / (1 / lower - 1 / upper)
    left, right = STUDENT[lower - 1], STUDENT[min(upper, len(STUDENT)) - 1]
    return left + (right - left) * share


def _deviations(logs: Sequence[float]) -> list[float]:
    middle, count = fmean(logs), len(logs)
    return [(x - middle) * math.sqrt(count / (count - 1)) for x in logs]


def _mean_of_draw(deviations: Sequence[float], source: random.Random) -> float:
    return sum(source.choices(deviations, k=len(deviations))) / len(deviations)


def _freedom(left: Sequence[float], right: Sequence[float]) -> float:
    """Welch's degrees of freedom of the difference of two means."""
    parts = [(variance(logs) / len(logs), len(logs) - 1) for logs in (left, right)]
    total = sum(part for part, _ in parts)
    if total == 0:
        return math.inf
    return total**2 / sum(part**2 / count for part, count in parts)
