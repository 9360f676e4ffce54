"""Rules between keys: each one has a configuration that breaks it, and nothing else."""

from __future__ import annotations

import json
import re

import pytest

from opsctl.config.load import load_text
from opsctl.config.rules import RULES
from opsctl.config.written import written
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
    "always": (
        PAIR.replace("baseline: base}", "baseline: base, policy: always}"),
        "5:56: auto_spec.policy",
    ),
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
    ],
)
def test_the_watched_pair_must_make_sense(change: str, with_: str, expected: str) -> None:
    assert change in PAIR
    with pytest.raises(ConfigError, match=expected):
        load_text(PAIR.replace(change, with_), name="f", environment={})


def with_auto_spec(more: str) -> str:
    return PAIR.replace("baseline: base}", f"baseline: base, {more}}}")


def test_with_a_pair_the_profile_to_start_from_may_be_left_out() -> None:
    text = PAIR.replace("serve: {profile: base}\n", "")
    assert load_text(text, name="f", environment={}).config.serve.profile == ""
    alone = text.replace("auto_spec: {speculative: spec, baseline: base}\n", "")
    with pytest.raises(ConfigError, match="say which one to start: base, spec"):
        load_text(alone, name="f", environment={})


def test_maintenance_windows_are_read() -> None:
    windows = (
        'maintenance: [{days: mon-fri, from: "22:00", to: "06:00", switches: only},'
        ' {from: "10:00", to: "11:00", switches: forced, profile: base}]'
    )
    config = load_text(with_auto_spec(windows), name="f", environment={}).config
    first, second = config.auto_spec.maintenance
    assert (first.days, first.begin, first.end, first.switches) == (
        "mon-fri",
        "22:00",
        "06:00",
        "only",
    )
    assert (second.days, second.profile) == ("daily", "base")
    again = load_text(json.dumps(written(config)), name="f", environment={}).config
    assert again == config, "what `config show` prints can be loaded"


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ('{from: "2:00", to: "03:00", switches: never}', r"0\.from: '2:00' is not a time of day"),
        ("{from: 02:00, to: 05:00, switches: never}", "from"),
        ('{from: "02:00", to: "03:00", switches: nope}', r"0\.switches: must be"),
        ('{from: "02:00", to: "03:00"}', "a key is missing here"),
        ('{days: monday, from: "02:00", to: "03:00", switches: never}', "write days as mon-fri"),
        ('{from: "02:00", to: "03:00", switches: forced}', "`profile` is set for"),
        ('{from: "02:00", to: "03:00", switches: never, profile: base}', "`profile` is set for"),
        ('{from: "02:00", to: "03:00", switches: forced, profile: bose}', "did you mean base"),
        ('{from: "02:00", to: "03:00", switches: never, until: 3}', "unknown key"),
    ],
)
def test_a_maintenance_window_with_a_mistake_is_refused(window: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(with_auto_spec(f"maintenance: [{window}]"), name="f", environment={})
    assert re.search(expected, str(caught.value)), caught.value


def test_a_forced_window_names_a_profile_of_the_watchdog() -> None:
    third = PAIR.replace("  base:", "  other: {model: m}\n  base:")
    window = 'maintenance: [{from: "02:00", to: "03:00", switches: forced, profile: other}]'
    text = third.replace("baseline: base}", f"baseline: base, {window}}}")
    with pytest.raises(ConfigError, match="other is neither"):
        load_text(text, name="f", environment={})


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
