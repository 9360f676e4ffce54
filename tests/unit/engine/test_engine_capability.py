from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from opsctl.autospec.mechanism import choose
from opsctl.autospec.surface import Point, Surface
from opsctl.config.schema import AutoSpecConfig, Config, LaunchProfile
from opsctl.engine.capability import drafts, facts, slots_of
from tests.support.measured import column

EAGLE3 = {
    "speculative-algorithm": "EAGLE3",
    "speculative-num-steps": 3,
    "speculative-eagle-topk": 1,
}


def config(
    eagle3: Mapping[str, Any] | None = None,
    baseline: Mapping[str, Any] | None = None,
    engine: str = "simulated",
) -> Config:
    profiles = {
        name: LaunchProfile.model_validate(
            {"engine": engine, "python": "/nowhere/python", "model": "m", "flags": flags}
        )
        for name, flags in {
            "baseline": {"tp-size": 8, **(baseline or {})},
            "eagle3": {"tp-size": 8, **EAGLE3, **(eagle3 or {})},
            "short": {"tp_size": 8, **EAGLE3, "speculative-num-steps": 1},
            "other": {"tp-size": 4, **EAGLE3, "speculative-num-steps": 2},
        }.items()
    }
    return Config(
        profiles=profiles, auto_spec=AutoSpecConfig(speculative="eagle3", baseline="baseline")
    )


def surface(profile: str, table: str, scale: float = 1.0) -> Surface:
    points = tuple(
        Point(
            concurrency=n,
            context=context,
            tok_s=rate * scale,
            low=rate * scale * 0.99,
            high=rate * scale * 1.01,
        )
        for context, row in column("reference_host_draft14", table).items()
        for n, rate in row.items()
    )
    return Surface(
        schema="opsctl/surface/v1",
        profile=profile,
        fingerprint="sha256:x",
        speculative=table == "speculative",
        points=points,
    )


MEASURED = {"baseline": surface("baseline", "baseline"), "eagle3": surface("eagle3", "speculative")}


def test_two_simulated_profiles_that_differ_in_speculation_need_one_engine() -> None:
    slots = slots_of(config(), MEASURED)
    assert slots is not None
    assert slots.slots[-1].steps == (0,)
    surfaces = config({"sim-surface": "demo:speculative"}, {"sim-surface": "demo:baseline"})
    for pair in (config(), surfaces):
        assert choose(facts(pair, slots)).mechanism == "in_engine"


@pytest.mark.parametrize(
    ("eagle3", "words"),
    [
        ({"speculative-eagle-topk": 4}, "`speculative-eagle-topk` is 4"),
        ({"enable_dp_attention": True}, "attention is data-parallel"),
        ({"mem-fraction-static": 0.8}, "flags.mem-fraction-static"),
        ({"speculative-num-steps": None}, "sets no `speculative-num-steps`"),
        ({"speculative_adaptive": True}, "sets `speculative-adaptive` itself"),
    ],
)
def test_what_stands_against_one_engine_is_read_from_the_profiles(
    eagle3: Mapping[str, Any], words: str
) -> None:
    found = choose(facts(config(eagle3), None, alone=True))
    assert found.mechanism == "gated_restart"
    assert words in found.sentence()


def test_the_sglang_that_was_measured_is_the_one_that_counts() -> None:
    for version, mechanism in (("0.5.23", "in_engine"), ("0.5.14", "in_engine")):
        found = choose(facts(config(engine="sglang"), None, version=version, alone=True))
        assert found.mechanism == mechanism
    old = choose(facts(config(engine="sglang"), None, version="0.5.13", alone=True))
    assert "SGLang 0.5.13 cannot draft zero steps" in old.sentence()


def test_an_interpreter_without_sglang_leaves_a_plain_restart() -> None:
    found = choose(facts(config(engine="sglang"), None, alone=True))
    assert found.mechanism == "restart"
    assert "not known which SGLang" in found.sentence()


def test_without_a_measurement_nothing_says_where_drafting_pays() -> None:
    for measured in ({}, {"baseline": MEASURED["baseline"]}, {"eagle3": MEASURED["eagle3"]}):
        slots = slots_of(config(), measured)
        assert slots is None
        assert "`opsctl bench run`" in choose(facts(config(), slots)).sentence()


def test_one_setting_that_is_best_everywhere_needs_no_file() -> None:
    loses = {"baseline": MEASURED["baseline"], "eagle3": surface("eagle3", "speculative", 0.1)}
    slots = slots_of(config(), loses)
    assert "drafting never pays" in choose(facts(config(), slots)).sentence()


def test_candidates_are_what_was_measured_of_profiles_that_differ_in_steps_only() -> None:
    more = {
        "short": surface("short", "speculative"),
        "other": surface("other", "speculative"),
        "gone": surface("gone", "speculative"),
    }
    assert sorted(drafts(config(), MEASURED | more)) == [1, 3]
