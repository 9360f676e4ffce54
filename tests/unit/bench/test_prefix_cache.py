"""What all prompts have in common is nobody's fault; what the cache answers beyond it is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.bench.counters import Counters
from opsctl.bench.prefix_cache import Hits, hits
from tests.support.bench import outcome

NOTHING = Counters()


def counters(prompt: float, cached: float) -> Counters:
    return Counters(prompt_tokens=prompt, cached_tokens=cached)


def test_usage_is_believed_first_then_the_counters_then_the_load() -> None:
    counted = counters(400, 100)
    plain, told = outcome(), outcome(cached_tokens=50)
    assert hits([plain, told], counted, 180, 0) == Hits(0.25, 0.25, "usage")
    assert hits([plain, plain], counted, 180, 0) == Hits(0.25, 0.25, "counters")
    found = hits([plain, plain], NOTHING, 180, 0)
    assert (found.share, found.by) == (pytest.approx(0.1), "loads")
    assert hits([plain], NOTHING, None, 0) == Hits()
    assert hits([], counted, 0, 0) == Hits()


@pytest.mark.parametrize("told_by", ["usage", "counters", "loads"])
def test_tokens_that_all_prompts_begin_with_are_not_held_against_them(told_by: str) -> None:
    """100 tokens each, of which the template and the salt are 40."""
    known = outcome(cached_tokens=40) if told_by == "usage" else outcome()
    counted = counters(200, 80) if told_by == "counters" else NOTHING
    found = hits([known, known], counted, 120, 40)
    assert found.by == told_by
    assert found.share == pytest.approx(0.4)
    assert found.own == pytest.approx(0.0)


@pytest.mark.parametrize("told_by", ["usage", "counters", "loads"])
def test_prompts_that_were_in_the_cache_whole_are_found_out(told_by: str) -> None:
    """The last token of a prompt is always computed."""
    known = outcome(cached_tokens=99) if told_by == "usage" else outcome()
    counted = counters(200, 198) if told_by == "counters" else NOTHING
    assert hits([known, known], counted, 2, 40).own == pytest.approx(59 / 60)


def test_by_usage_a_request_with_less_in_common_does_not_hide_another_that_hit() -> None:
    answers = [outcome(cached_tokens=0)] * 9 + [outcome(cached_tokens=100)]
    assert hits(answers, NOTHING, None, 40).own == pytest.approx(0.1)


@given(st.lists(st.integers(1, 500), min_size=1), st.integers(0, 200), st.integers(1, 128))
def test_whole_pages_of_what_is_common_never_count(
    lengths: list[int], common: int, page: int
) -> None:
    cached = [min(tokens, common) // page * page for tokens in lengths]
    answers = [outcome(prompt_tokens=tokens) for tokens in lengths]
    by_counters = hits(answers, counters(sum(lengths), sum(cached)), None, common)
    assert by_counters.own is None or by_counters.own == pytest.approx(0.0, abs=1e-9)
