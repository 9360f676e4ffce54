"""Whether one engine is enough, and what engines are started with then."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from opsctl.autospec import adaptive_files, surface_files
from opsctl.autospec.surface import Point, Surface
from opsctl.config.schema import AutoSpecConfig, Config, LaunchProfile
from opsctl.profiles.fingerprint import fingerprint
from opsctl.serve import policies
from opsctl.serve.automation import Prepared
from opsctl.serve.load_journal import NoJournal
from opsctl.serve.switch_book import SwitchBook
from tests.support.measured import column

EAGLE3 = {"speculative-algorithm": "EAGLE3", "speculative-num-steps": 3}


def config(**auto: Any) -> Config:
    flags: dict[str, Mapping[str, Any]] = {
        "baseline": {},
        "eagle3": EAGLE3,
        "short": EAGLE3 | {"speculative-num-steps": 1},
    }
    return Config(
        profiles={
            name: LaunchProfile(engine="simulated", model="m", flags=own)
            for name, own in flags.items()
        },
        auto_spec=AutoSpecConfig(speculative="eagle3", baseline="baseline", **auto),
    )


def measure(folder: Path, *names: str, print_of: Config | None = None) -> None:
    """Write surfaces: of the demo's baseline, and of its draft for the others."""
    for name in names:
        table = "baseline" if name == "baseline" else "speculative"
        points = tuple(
            Point(concurrency=n, context=0, tok_s=x, low=x * 0.99, high=x * 1.01, repeats=3)
            for n, x in column("demo", table)[0].items()
        )
        surface = Surface(
            schema="opsctl/surface/v1",
            profile=name,
            fingerprint=fingerprint((print_of or config()).profiles[name]),
            speculative=name != "baseline",
            points=points,
        )
        surface_files.save(folder, surface)


def prepared(folder: Path, observed: str = "", **auto: Any) -> Prepared:
    return policies.prepare(config(**auto), folder, {}, observed=observed)


def test_a_measured_pair_that_differs_in_speculation_needs_one_engine(tmp_path: Path) -> None:
    measure(tmp_path, "baseline", "eagle3")
    found = prepared(tmp_path)
    assert found.choice.mechanism == "in_engine"
    assert found.plan.costs.mechanism == "in_engine"
    assert found.in_engine is not None
    assert found.in_engine.profile == "eagle3"
    assert adaptive_files.read(found.in_engine.path) == found.in_engine.slots


def test_steps_of_another_measured_profile_are_candidates_too(tmp_path: Path) -> None:
    measure(tmp_path, "baseline", "eagle3", "short")
    found = prepared(tmp_path).in_engine
    assert found is not None
    assert {step for slot in found.slots for step in slot.steps} == {0, 1, 3}


def test_a_surface_of_a_profile_that_has_changed_since_is_left_out(tmp_path: Path) -> None:
    measure(tmp_path, "baseline", "eagle3")
    other = config()
    changed = other.profiles["short"].model_copy(update={"model": "another"})
    measure(
        tmp_path,
        "short",
        print_of=other.model_copy(update={"profiles": {**other.profiles, "short": changed}}),
    )
    found = prepared(tmp_path).in_engine
    assert found is not None
    assert {step for slot in found.slots for step in slot.steps} == {0, 3}


def test_without_a_measurement_nothing_is_planned(tmp_path: Path) -> None:
    found = prepared(tmp_path)
    assert found.choice.mechanism != "in_engine"
    assert found.in_engine is None
    assert not (tmp_path / "adaptive").exists()


def test_an_engine_that_does_not_move_its_steps_is_one_of_a_pair_that_is_switched(
    tmp_path: Path,
) -> None:
    """The next one may: it is still planned."""
    measure(tmp_path, "baseline", "eagle3")
    found = prepared(tmp_path, observed="the engine that serves was started without it")
    assert found.choice.mechanism == "gated_restart"
    assert "was started without it" in found.choice.sentence()
    assert found.plan.costs.mechanism == "gated_restart"
    assert found.plan.surfaces is not None
    assert found.in_engine is not None


def test_observe_mode_changes_nothing_inside_the_engine_either(tmp_path: Path) -> None:
    measure(tmp_path, "baseline", "eagle3")
    found = prepared(tmp_path, observe=True)
    assert found.choice.mechanism != "in_engine"
    assert found.in_engine is None
    assert "observe mode" in found.choice.sentence()


def test_a_mechanism_that_is_asked_for_is_taken(tmp_path: Path) -> None:
    measure(tmp_path, "baseline", "eagle3")
    found = prepared(tmp_path, mechanism="restart")
    assert (found.choice.mechanism, found.in_engine) == ("restart", None)


def test_a_state_directory_that_cannot_be_written_leaves_a_restart(tmp_path: Path) -> None:
    measure(tmp_path, "baseline", "eagle3")
    (tmp_path / "adaptive").write_text("a file where the folder should be")
    found = prepared(tmp_path)
    assert found.choice.mechanism != "in_engine"
    assert found.in_engine is None
    assert "its adaptive file cannot be written" in found.choice.sentence()


@pytest.mark.parametrize(("prepare", "mechanism"), [(0.0, "restart"), (5.0, "gated_restart")])
def test_an_operator_s_switch_is_counted_by_how_it_was_made(prepare: float, mechanism: str) -> None:
    learnt: list[str] = []
    book = SwitchBook(NoJournal(), lambda: (1.0, 1.0), lambda costs: learnt.append(costs.mechanism))
    book.mechanism = "in_engine"
    facts = {"source": "eagle3", "target": "baseline", "by": "operator"}
    book.note("switched", {**facts, "prepare_s": prepare, "stop_s": 3.0, "start_s": 30.0})
    assert learnt == [mechanism]
    assert "in_engine" not in book.costs
