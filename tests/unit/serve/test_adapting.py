from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from opsctl.autospec.adaptive import Adaptive, Slot
from opsctl.autospec.load import LoadSample
from opsctl.config.schema import AutoSpecConfig, Config, LaunchProfile
from opsctl.serve.adapting import Adapting
from opsctl.serve.in_engine import prepare
from opsctl.serve.steps import Report

SLOTS = Adaptive((Slot(1, (3,)), Slot(8, (0,))))
EAGLE3 = LaunchProfile(engine="simulated", model="m", flags={"speculative-num-steps": 3})
CONFIG = Config(
    profiles={"eagle3": EAGLE3, "baseline": LaunchProfile(engine="simulated", model="m")},
    auto_spec=AutoSpecConfig(speculative="eagle3", baseline="baseline"),
)


class Instance:
    """One instance with an adaptive file that was written from surfaces."""

    def __init__(self, state_dir: Path) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.changes = 0
        self.adapting = Adapting(lambda event, **facts: self.events.append((event, facts)))
        self.adapting.planned = prepare(CONFIG, SLOTS, state_dir)
        self.adapting.changed = self._changed
        self.now = 0.0

    def _changed(self) -> None:
        self.changes += 1

    def serves(self, name: str, *, off: str = "", flags: Any = None) -> None:
        """An engine of a profile has been started, and serves."""
        extra = self.adapting.flags_for(name) if flags is None else flags
        profile = CONFIG.profiles[name]
        engine: Any = SimpleNamespace(
            name=name, profile=profile, extra_flags=extra, adaptive_off=off
        )
        self.adapting.follow(engine)

    def busy(self, steps: int, times: int = 10) -> None:
        for _ in range(times):
            self.now += 2
            self.adapting.see(self.now, Report(40, steps, 500 + self.now), at_engine=40)

    @property
    def told(self) -> list[str]:
        return [event for event, _ in self.events]


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance(tmp_path)


def test_an_engine_that_follows_the_load_is_told_once(instance: Instance) -> None:
    instance.serves("eagle3")
    assert instance.adapting.observed == ""
    instance.busy(steps=0)
    assert instance.told == ["engine_adapts", "adaptive_follows"]
    assert (instance.adapting.observed, instance.changes) == ("", 0)
    assert instance.adapting.describe() == {
        "verdict": "following",
        "why": "the engine moves its own draft steps with the load: 0 with 40 running",
    }


def test_an_engine_that_does_not_is_told_once_with_the_evidence(instance: Instance) -> None:
    instance.serves("eagle3")
    instance.busy(steps=3, times=30)
    assert instance.told == ["engine_adapts", "adaptive_static"]
    assert "3 draft steps with 40 running" in instance.events[-1][1]["evidence"]
    assert "keeps to 3 draft steps" in instance.adapting.observed
    assert instance.changes == 1


def test_what_was_given_up_is_not_tried_with_the_next_engine(instance: Instance) -> None:
    instance.serves("eagle3")
    instance.busy(steps=3)
    instance.serves("baseline")
    assert instance.adapting.flags_for("eagle3") == {}
    instance.serves("eagle3", flags={})
    assert "keeps to 3 draft steps" in instance.adapting.observed
    assert instance.changes == 1, "one engine after the other changes nothing about it"


def test_a_reload_tries_it_again_with_the_next_engine(instance: Instance) -> None:
    instance.serves("eagle3")
    instance.busy(steps=3)
    instance.adapting.forget()
    instance.busy(steps=3)
    assert "keeps to 3 draft steps" in instance.adapting.observed, "this one is as it was"
    assert instance.adapting.flags_for("eagle3") != {}
    instance.serves("eagle3")
    assert instance.adapting.observed == ""


def test_after_a_start_that_ran_out_of_memory_the_next_one_goes_without(
    instance: Instance,
) -> None:
    instance.adapting.flags_for("eagle3")
    instance.adapting.start_failed("out_of_memory")
    assert instance.told == ["engine_adapts", "adaptive_given_up"]
    assert instance.adapting.flags_for("eagle3") == {}
    assert "did not start with it (out_of_memory)" in instance.adapting.observed
    assert instance.changes == 1
    instance.adapting.forget()
    assert instance.adapting.flags_for("eagle3") != {}


def test_a_start_that_failed_for_another_reason_is_tried_again_as_it_was(
    instance: Instance,
) -> None:
    instance.adapting.flags_for("eagle3")
    instance.adapting.start_failed("port_in_use")
    instance.adapting.flags_for("baseline")
    instance.adapting.start_failed("out_of_memory")  # of the baseline
    assert instance.adapting.flags_for("eagle3") != {}
    instance.serves("eagle3")
    instance.adapting.start_failed("exited")  # not of this one: it has started
    assert instance.adapting.observed == ""


def test_the_log_of_the_start_is_enough(instance: Instance) -> None:
    instance.serves("eagle3", off="speculative_adaptive disabled: topk")
    assert instance.told == ["engine_adapts", "adaptive_static"]
    assert "speculative_adaptive disabled: topk" in instance.adapting.observed


def test_a_policy_is_told_the_load_of_an_engine_that_adapts_and_not_its_speed(
    instance: Instance,
) -> None:
    sample = LoadSample(time=1.0, running=40, queued=2, accept_length=1.0, generated=1000)
    instance.serves("eagle3")
    for _ in ("before anything is known", "while it follows"):
        told = instance.adapting.for_policy(sample)
        assert (told.running, told.queued) == (40, 2)
        assert (told.accept_length, told.generated) == (None, None)
        instance.busy(steps=0)
    instance.busy(steps=3)
    assert instance.adapting.for_policy(sample) == sample, "fixed steps are the profile's own"
    instance.serves("baseline")
    assert instance.adapting.for_policy(sample) == sample


def test_only_the_speculative_profile_gets_the_flags(instance: Instance) -> None:
    assert instance.adapting.flags_for("baseline") == {}
    instance.adapting.planned = None
    assert instance.adapting.flags_for("eagle3") == {}
    assert instance.told == []


def test_an_engine_that_was_started_without_it_is_seen(instance: Instance) -> None:
    """Adopted from an earlier opsctl, or the surfaces were measured while it served."""
    instance.serves("eagle3", flags={})
    assert "the engine that serves was started without it" in instance.adapting.observed
    assert instance.adapting.describe() is None
    instance.serves("eagle3")
    assert (instance.adapting.observed, instance.changes) == ("", 2)


def test_the_same_engine_is_followed_on(instance: Instance) -> None:
    """The gate opens again after a drain that was cancelled."""
    instance.serves("eagle3")
    instance.busy(steps=0)
    engine = instance.adapting._engine
    assert engine is not None
    instance.adapting.follow(engine)
    assert instance.told == ["engine_adapts", "adaptive_follows"]
    assert instance.adapting.describe() is not None


def test_a_file_that_is_gone_leaves_the_engine_unwatched(instance: Instance) -> None:
    assert instance.adapting.planned is not None
    instance.adapting.planned.path.unlink()
    instance.serves("eagle3")
    assert instance.told == ["engine_adapts", "adaptive_unreadable"]
    assert "not an adaptive configuration" in instance.adapting.observed
