from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.autospec.mechanism import CHEAPEST_FIRST, Asked, Facts, choose

ABLE = Facts(version="0.5.23", release=(0, 5, 23), profile="eagle3", steps=3)


def test_one_engine_is_taken_where_nothing_stands_against_it() -> None:
    found = choose(ABLE)
    assert (found.mechanism, found.why_not, found.refused) == ("in_engine", {}, "")
    assert found.sentence() == "in_engine"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"release": (0, 5, 13), "version": "0.5.13"}, "SGLang 0.5.13 cannot draft zero steps"),
        ({"excluded": "`speculative-eagle-topk` is 4"}, "turn it off: `speculative-eagle-topk`"),
        ({"differ": ("flags.mem-fraction-static",)}, "more than speculation: flags.mem-fraction"),
        ({"steps": None}, "profile eagle3 sets no `speculative-num-steps`"),
        ({"adapts": True}, "profile eagle3 sets `speculative-adaptive` itself"),
        ({"unmeasured": "no surface"}, "no surface"),
        ({"observed": "the engine keeps to 3 draft steps"}, "keeps to 3 draft steps"),
        ({"release": None, "version": None}, "not known which SGLang"),
    ],
)
def test_what_stands_against_one_engine_is_said(change: dict[str, Any], words: str) -> None:
    found = choose(replace(ABLE, **change))
    assert found.mechanism != "in_engine"
    [why] = found.why_not["in_engine"]
    assert words in why
    assert words in found.sentence()


def test_every_reason_is_said_and_not_the_first_alone() -> None:
    found = choose(replace(ABLE, excluded="topk is 4", differ=("flags.dtype",), steps=None))
    assert len(found.why_not["in_engine"]) == 3


def test_a_gate_comes_before_a_plain_restart_where_sglang_has_one() -> None:
    no_engine = replace(ABLE, excluded="topk is 4")
    assert choose(no_engine).mechanism == "gated_restart"
    old = choose(replace(no_engine, version="0.5.18", release=(0, 5, 18)))
    assert old.mechanism == "restart"
    assert old.why_not["gated_restart"] == ("SGLang 0.5.18 has no gate at its start; 0.5.19 has",)


def test_what_sglang_cannot_do_is_refused_even_when_it_is_asked_for() -> None:
    found = choose(replace(ABLE, excluded="topk is 4"), "in_engine")
    assert found.mechanism == "gated_restart"
    assert found.refused == "in_engine was asked for, but SGLang would turn it off: topk is 4"
    assert found.refused in found.sentence()


def test_what_differs_is_left_to_the_operator_who_asks_for_one_engine() -> None:
    found = choose(replace(ABLE, differ=("flags.mem-fraction-static",)), "in_engine")
    assert (found.mechanism, found.refused) == ("in_engine", "")
    assert found.accepted == (
        "the profiles differ in more than speculation: flags.mem-fraction-static",
    )


def test_a_dearer_one_that_is_asked_for_is_taken() -> None:
    for asked in ("gated_restart", "restart"):
        found = choose(ABLE, asked)
        assert (found.mechanism, found.why_not, found.refused) == (asked, {}, "")


def test_a_gate_is_tried_in_an_unknown_sglang_only_when_it_is_asked_for() -> None:
    unknown = Facts(profile="eagle3", steps=3)
    assert choose(unknown).mechanism == "restart"
    assert choose(unknown, "gated_restart").mechanism == "gated_restart"


@given(
    st.builds(
        Facts,
        version=st.just("v"),
        release=st.none() | st.tuples(st.just(0), st.just(5), st.integers(9, 23)),
        profile=st.just("p"),
        steps=st.none() | st.integers(0, 7),
        excluded=st.sampled_from(("", "x")),
        differ=st.sampled_from(((), ("flags.dtype",))),
        unmeasured=st.sampled_from(("", "y")),
    ),
    st.sampled_from(("auto", *CHEAPEST_FIRST)),
)
def test_there_is_always_a_mechanism_and_a_reason_against_each_cheaper_one(
    facts: Facts, asked: Asked
) -> None:
    found = choose(facts, asked)
    if asked == "auto":
        cheaper = CHEAPEST_FIRST[: CHEAPEST_FIRST.index(found.mechanism)]
        assert tuple(found.why_not) == cheaper
        assert not found.accepted
    else:
        assert bool(found.refused) == (found.mechanism != asked)
        assert CHEAPEST_FIRST.index(found.mechanism) >= CHEAPEST_FIRST.index(asked)
