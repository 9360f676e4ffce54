"""What the command line wishes is laid over the configuration, or refused."""

from __future__ import annotations

import pytest

from opsctl.config.load import load_text
from opsctl.config.schema import Config
from opsctl.errors import UsageError
from opsctl.serve.instance import Wishes, apply

ONE = "profiles: {only: {model: m}}\n"
NONE = "provision: {opsctl_service: {instances: {left: left.yaml}}}\n"


def config(text: str) -> Config:
    return load_text(text, name="test", environment={}).config


def test_the_only_profile_is_served() -> None:
    assert apply(config(ONE), Wishes()).serve.profile == "only"


@pytest.mark.parametrize(
    ("text", "wishes", "words"),
    [
        (NONE, Wishes(), "no profile to serve"),
        (ONE, Wishes(profile="other"), "no profile 'other'"),
        (ONE, Wishes(auto_spec=True), "two profiles to switch between"),
    ],
)
def test_what_cannot_be_served_is_refused(text: str, wishes: Wishes, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        apply(config(text), wishes)
    assert caught.value.hint
