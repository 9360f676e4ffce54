"""Rules between keys: each one has a configuration that breaks it, and nothing else."""

from __future__ import annotations

import re

import pytest

from opsctl.config.load import load_text
from opsctl.config.rules import RULES
from opsctl.errors import ConfigError

PAIR = """\
profiles:
  base: {model: m, flags: {max-running-requests: 8}}
  spec: {model: m, flags: {speculative-algorithm: EAGLE3, max-running-requests: 8}}
serve: {profile: base}
auto_spec: {speculative: spec, baseline: base}
"""
ONE = "profiles:\n  a: {model: m}\n"

BROKEN = {
    "some-profile": ("serve: {}\n", "1:1: profiles"),
    "known-profiles": (ONE + "serve: {profile: b}\n", "3:18: serve.profile"),
    "model": (ONE + "  b: {}\nserve: {profile: a}\n", "3:6: profiles.b.model"),
    "listen": (ONE + "serve: {listen: 'a:7', engine_port: 7}\n", "3:37: serve.engine_port"),
    "positive": (ONE + "serve: {health: {hang_after: 0}}\n", "3:30: serve.health.hang_after"),
    "stage-within-start": (
        "profiles: {a: {model: m, timeouts: {start: 60s, stage: 61s}}}\n",
        "1:56: profiles.a.timeouts.stage",
    ),
    "probe-within-start": (
        "profiles: {a: {model: m, timeouts: {start: 60s, stage: 1s, probe: 61s}}}\n",
        "1:67: profiles.a.timeouts.probe",
    ),
    "hold-outlasts-switch": (
        ONE + "serve: {gateway: {hold: {time: 150s}}}\n",
        "3:32: serve.gateway.hold.time",
    ),
    "heartbeat": (
        ONE + "serve: {gateway: {heartbeat_every: 31s}}\n",
        "3:36: serve.gateway.heartbeat_every",
    ),
    "probe-interval": (
        ONE + "serve: {health: {probe_timeout: 61s}}\n",
        "3:33: serve.health.probe_timeout",
    ),
    "backoff": (
        ONE + "serve: {restart: {backoff_first: 61s}}\n",
        "3:34: serve.restart.backoff_first",
    ),
    "marks": (
        PAIR.replace("baseline: base}", "baseline: base, sustained_load: {high: 3, low: 3}}"),
        "5:79: auto_spec.sustained_load.low",
    ),
    "pair": (PAIR.replace(", baseline: base", ""), "5:12: auto_spec.baseline"),
    "speculation": (
        PAIR.replace("base: {model: m,", "base: {model: m, draft_model: d,"),
        "2:33: profiles.base.draft_model",
    ),
}
SUSPECT = {
    "explicit-cap": (PAIR.replace("3, max-running-requests: 8", "3"), "3:27: profiles.spec.flags"),
    "literal-secret": (
        "profiles: {a: {model: m, environment: {HF_TOKEN: hf_abc}}}\n",
        "1:50: profiles.a.environment.HF_TOKEN",
    ),
}


def test_every_rule_is_broken_by_a_test() -> None:
    assert {rule.name for rule in RULES} == {*BROKEN, *SUSPECT}
    assert {rule.name for rule in RULES if rule.warning} == set(SUSPECT)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_reported_at_the_key_and_alone(name: str) -> None:
    text, where = BROKEN[name]
    with pytest.raises(ConfigError) as caught:
        load_text(text, name="f", environment={})
    [found] = map(str, caught.value.problems)
    assert re.match(rf"f:{where}: .*\[{name}\]$", found), found


@pytest.mark.parametrize("name", SUSPECT)
def test_a_suspect_setting_is_only_a_warning(name: str) -> None:
    text, where = SUSPECT[name]
    [found] = map(str, load_text(text, name="f", environment={}).warnings)
    assert re.match(rf"f:{where}: .*\[{name}\]$", found), found
    assert "hf_abc" not in found


@pytest.mark.parametrize(
    ("change", "with_", "expected"),
    [
        ("speculative: spec", "speculative: spek", r"no profile 'spek' \(did you mean spec\?\)"),
        ("baseline: base", "baseline: spec", "must be another profile"),
        ("speculative-algorithm: EAGLE3, ", "", "sets no flag `speculative-algorithm`"),
        (
            "base: {model: m, flags: {",
            "base: {model: m, flags: {speculative-x: 1, ",
            "must not spec",
        ),
        ("serve: {profile: base}\n", "", "say which one to start: base, spec"),
    ],
)
def test_the_watched_pair_must_make_sense(change: str, with_: str, expected: str) -> None:
    assert change in PAIR
    with pytest.raises(ConfigError, match=expected):
        load_text(PAIR.replace(change, with_), name="f", environment={})


def test_removed_flags_do_not_count() -> None:
    text = PAIR.replace(
        "base: {model: m, flags: {", "base: {extends: spec, flags: {speculative-algorithm: null, "
    )
    config = load_text(text, name="f", environment={}).config
    assert config.profiles["base"].flags["speculative-algorithm"] is None


def test_a_base_without_a_model_may_only_be_extended() -> None:
    text = "profiles:\n  base: {flags: {tp-size: 8}}\n  a: {extends: base, model: m}\n"
    assert load_text(text, name="f", environment={}).config.serve.profile == "a"
    with pytest.raises(ConfigError, match="the engine needs a model"):
        load_text(text + "serve: {profile: base}\n", name="f", environment={})
