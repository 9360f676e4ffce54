from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from opsctl.autospec.adaptive import Adaptive, AdaptiveError, Slot
from opsctl.config.schema import AutoSpecConfig, Config, LaunchProfile
from opsctl.profiles.fingerprint import fingerprint
from opsctl.profiles.flags import arguments
from opsctl.serve.in_engine import prepare, watcher

SLOTS = Adaptive((Slot(1, (3,)), Slot(8, (0,))))


def config(**flags: Any) -> Config:
    profile = LaunchProfile(
        engine="simulated", model="m", flags={"speculative-num-steps": 3, **flags}
    )
    return Config(
        profiles={"eagle3": profile, "baseline": LaunchProfile(engine="simulated", model="m")},
        auto_spec=AutoSpecConfig(speculative="eagle3", baseline="baseline"),
    )


def engine(profile: LaunchProfile, extra: Any = None, off: str = "") -> Any:
    return SimpleNamespace(profile=profile, extra_flags=extra or {}, adaptive_off=off)


def test_an_engine_is_started_with_two_more_flags_and_the_file(tmp_path: Path) -> None:
    found = prepare(config(), SLOTS, tmp_path)
    flag, named, path = arguments(found.flags)
    assert (flag, named) == ("--speculative-adaptive", "--speculative-adaptive-config")
    assert json.loads(Path(path).read_text()) == {
        "1": {"candidate_steps": [3]},
        "8": {"candidate_steps": [0]},
    }


def test_the_fingerprint_of_the_profile_is_not_touched(tmp_path: Path) -> None:
    before = config()
    prints = {name: fingerprint(profile) for name, profile in before.profiles.items()}
    prepare(before, SLOTS, tmp_path)
    assert {name: fingerprint(profile) for name, profile in before.profiles.items()} == prints


def test_steps_that_no_slot_names_are_replaced(tmp_path: Path) -> None:
    """SGLang refuses to start with them."""
    found = prepare(config(), Adaptive((Slot(1, (1,)), Slot(8, (0,)))), tmp_path)
    assert list(arguments(found.flags))[-2:] == ["--speculative-num-steps", "1"]
    watched = watcher(engine(config().profiles["eagle3"], found.flags))
    assert watched is not None
    assert watched.configured == 1


def test_an_engine_with_opsctl_s_file_is_watched(tmp_path: Path) -> None:
    found = prepare(config(), SLOTS, tmp_path)
    watched = watcher(engine(config().profiles["eagle3"], found.flags))
    assert watched is not None
    assert (watched.slots, watched.configured) == (SLOTS.slots, 3)


def test_an_engine_with_a_file_of_its_profile_is_watched_too(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text(SLOTS.text())
    named = {"speculative_adaptive": True, "speculative_adaptive_config": "~/own.json"}
    watched = watcher(engine(config(**named).profiles["eagle3"]), home=str(tmp_path))
    assert watched is not None
    assert watched.slots == SLOTS.slots


def test_an_engine_with_fixed_steps_is_not_watched() -> None:
    for flags in ({}, {"speculative-adaptive": False}, {"speculative-adaptive-config": "/x"}):
        assert watcher(engine(config(**flags).profiles["eagle3"])) is None


def test_an_engine_that_said_it_does_not_adapt_is_known_from_the_start(tmp_path: Path) -> None:
    found = prepare(config(), SLOTS, tmp_path)
    said = "speculative_adaptive disabled: topk"
    watched = watcher(engine(config().profiles["eagle3"], found.flags, said))
    assert watched is not None
    assert watched.verdict == "static"
    assert said in watched.evidence


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    found = prepare(config(), SLOTS, tmp_path)
    found.path.unlink()
    with pytest.raises(AdaptiveError, match="No such file"):
        watcher(engine(config().profiles["eagle3"], found.flags))
