"""The fingerprint counts what can change speed; the difference shows what differs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.config.schema import EnvSecret, LaunchProfile, Timeouts
from opsctl.profiles.diff import Difference, differences
from opsctl.profiles.fingerprint import fingerprint

BASE: dict[str, Any] = {
    "model": "/m",
    "flags": {"tp-size": 8, "json": {"a": 1, "b": 2}},
    "environment": {"A": "1"},
}


def profile(**facts: Any) -> LaunchProfile:
    return LaunchProfile(**{**BASE, **facts})


def test_it_is_the_same_in_every_version_and_process() -> None:
    assert fingerprint(profile()) == "sha256:cf8c55e072b64455"


@pytest.mark.parametrize(
    "facts",
    [
        {"model": "/n"},
        {"draft_model": "/d"},
        {"engine": "simulated"},
        {"python": "/p"},
        {"flags": {"tp-size": 4, "json": {"a": 1, "b": 2}}},
        {"flags": {**BASE["flags"], "trust-remote-code": True}},
        {"environment": {"A": "2"}},
        {"environment": {"A": "1", "B": "1"}},
        {"environment": {"A": EnvSecret(env="A")}},
    ],
)
def test_what_can_change_speed_changes_it(facts: dict[str, Any]) -> None:
    assert fingerprint(profile(**facts)) != fingerprint(profile())


@pytest.mark.parametrize(
    "facts",
    [
        {"flags": {"json": {"b": 2, "a": 1}, "tp_size": 8}},
        {"flags": {**BASE["flags"], "gone": None, "off": False}},
        {"environment": {"A": "1", "B": None, "C": ""}},
        {"timeouts": Timeouts(stop=1.0)},  # type: ignore[call-arg]
        {"expect_log": ("x",)},
        {"served_name": "x"},
        {"extends": "other"},
    ],
)
def test_what_cannot_change_speed_does_not(facts: dict[str, Any]) -> None:
    assert fingerprint(profile(**facts)) == fingerprint(profile())


@given(st.permutations(list("abcdef")))
def test_key_order_never_matters(order: list[str]) -> None:
    ordered = {name: index for index, name in enumerate("abcdef")}
    shuffled = {name: ordered[name] for name in order}
    assert fingerprint(profile(flags=shuffled)) == fingerprint(profile(flags=ordered))


def test_a_rotated_literal_secret_does_not_change_it() -> None:
    one, two = ({"MY_TOKEN": value} for value in ("first", "second"))
    assert fingerprint(profile(environment=one)) == fingerprint(profile(environment=two))


def test_differences_are_named_key_by_key_in_schema_order() -> None:
    left = profile(environment={"A": "1", "B_TOKEN": "x"}, flags={"tp-size": 8, "off": False})
    right = profile(draft_model="/d", flags={"tp-size": 4}, timeouts=Timeouts(stop=30.0))  # type: ignore[call-arg]
    assert differences(left, right) == (
        Difference("draft_model", None, "/d"),
        Difference("flags.tp-size", 8, 4),
        Difference("environment.B_TOKEN", "***", None),
        Difference("timeouts.stop", "1m30s", "30s"),
    )
    assert differences(left, left) == ()
