"""Where one surface is faster than another: certain where their intervals are apart."""

from __future__ import annotations

import math

import pytest

from opsctl.autospec.bands import Band, bands
from tests.support.surfaces import Rows, surface


def judge(speculative: Rows, baseline: Rows, spread: float | None = 0.02) -> tuple[Band, ...]:
    return bands(
        surface(speculative, spread=spread),
        surface(baseline, profile="baseline", speculative=False, spread=spread),
    )


BASE = {1: 100.0, 4: 300.0, 16: 600.0}


@pytest.mark.parametrize(
    ("factors", "kind", "words"),
    [
        ((1.5, 1.2, 1.1), "always", "always: +10.0 % to +50.0 % at concurrency 1 to 16"),
        ((0.9, 0.8, 0.7), "never", "never: at best -10.0 %, at concurrency 1"),
        ((1.01, 1.0, 0.99), "no significant difference", "no significant difference at"),
        ((1.01, 0.9, 0.8), "undecided", "not seen to be faster: at best +1.0 %, not for certain"),
        ((1.2, 1.0, 0.8), "at", "up to concurrency 4 ("),
        ((0.8, 1.0, 1.2), "from", "from concurrency 4 ("),
        ((1.2, 0.8, 1.2), "mixed", "in turns: -20.0 % to +20.0 % at concurrency 1 to 16"),
        ((1.2, 1.2, 1.0), "at", "up to concurrency 16"),
    ],
)
def test_the_verdict_follows_from_where_the_intervals_are_apart(
    factors: tuple[float, ...], kind: str, words: str
) -> None:
    faster = {n: rate * f for (n, rate), f in zip(BASE.items(), factors, strict=True)}
    [band] = judge({0: faster}, {0: BASE})
    assert (band.kind, band.context) == (kind, 0)
    assert band.words.startswith(words)


def test_a_crossing_is_read_off_over_the_logarithm_and_bounded_by_the_intervals() -> None:
    [band] = judge({0: {1: 120.0, 16: 500.0}}, {0: {1: 100.0, 16: 600.0}})
    share = math.log(1.2) / (math.log(1.2) + math.log(1.2))
    assert band.concurrency == pytest.approx(16**share)
    assert band.low is not None
    assert band.high is not None
    assert 1 < band.low < band.concurrency < band.high < 16
    tighter = judge({0: {1: 120.0, 16: 500.0}}, {0: {1: 100.0, 16: 600.0}}, 0.005)[0]
    assert (tighter.low or 0) > band.low


def test_without_intervals_nothing_is_claimed_but_what_the_means_say() -> None:
    [band] = judge({0: {1: 120.0, 16: 500.0}}, {0: {1: 100.0, 16: 600.0}}, None)
    assert (band.kind, band.means) == ("unknown", "at")
    assert band.words == "unknown, as there are no intervals; the means say up to concurrency 4"
    assert {cell.verdict for cell in band.cells} == {"unknown"}


def test_each_context_has_its_own_verdict_and_one_sided_contexts_have_none() -> None:
    found = judge(
        {0: {1: 150.0, 4: 400.0}, 4096: {1: 50.0, 4: 100.0}, 9000: {1: 1.0, 4: 2.0}},
        {0: {1: 100.0, 4: 300.0}, 4096: {1: 100.0, 4: 300.0}},
    )
    assert [(band.context, band.kind) for band in found] == [(0, "always"), (4096, "never")]


def test_a_place_beyond_one_of_the_surfaces_is_not_compared() -> None:
    [band] = judge({0: {2: 150.0, 8: 400.0}}, {0: {1: 100.0, 4: 300.0, 16: 500.0}})
    assert [cell.concurrency for cell in band.cells] == [2, 4, 8]


def test_surfaces_that_do_not_meet_say_so() -> None:
    [band] = judge({0: {1: 10.0, 2: 11.0}}, {0: {8: 10.0, 9: 12.0}})
    assert band.words == "unknown: no place was measured of both"
