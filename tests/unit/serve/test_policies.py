"""What the watchdog decides by, and what it refuses to decide by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opsctl.autospec import surface_files
from opsctl.autospec.cost import Costs
from opsctl.autospec.mechanism import Facts
from opsctl.autospec.surface import Point, Surface
from opsctl.config.load import load_text
from opsctl.config.schema import Config
from opsctl.profiles.fingerprint import fingerprint
from opsctl.serve import policies

TEXT = """\
profiles:
  baseline: {model: m, flags: {max-running-requests: 8}}
  eagle3:
    model: m
    flags: {speculative-algorithm: EAGLE3, speculative-num-steps: 3, max-running-requests: 8}
serve: {profile: baseline%s}
auto_spec: {speculative: eagle3, baseline: baseline%s}
"""
GATED, UNGATED = Facts("0.5.23", (0, 5, 23), steps=3), Facts("0.5.18", (0, 5, 18), steps=3)


def config(serve: str = "", auto: str = "") -> Config:
    return load_text(TEXT % (serve, auto), name="f", environment={}).config


def measured(folder: Path, config: Config, name: str, **changes: Any) -> Surface:
    surface = Surface(
        schema="opsctl/surface/v1",
        profile=name,
        fingerprint=fingerprint(config.profiles[name]),
        speculative=name == "eagle3",
        versions={"sglang": "0.5.23"},
        environment={"driver": "580.1", "gpus": [{"name": "RTX PRO 6000"}]},
        points=(Point(concurrency=1, context=0, tok_s=50.0),),
    ).model_copy(update=changes)
    surface_files.save(folder, surface)
    return surface


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is installed, to be changed by a test."""
    found: dict[str, Any] = {"facts": Facts("0.5.23", (0, 5, 23), unmeasured="not measured")}
    monkeypatch.setattr(policies.capability, "facts", lambda *_, **__: found["facts"])
    return found


@pytest.mark.usefixtures("facts")
class TestSurfaces:
    def test_both_that_fit_are_used(self, tmp_path: Path) -> None:
        loaded = config()
        pair = tuple(measured(tmp_path, loaded, name) for name in ("eagle3", "baseline"))
        plan = policies.prepare(loaded, tmp_path, {}).plan
        assert plan.surfaces == pair
        assert plan.blind == ""

    def test_one_alone_is_not_enough(self, tmp_path: Path) -> None:
        loaded = config()
        measured(tmp_path, loaded, "eagle3")
        plan = policies.prepare(loaded, tmp_path, {}).plan
        assert plan.surfaces is None
        assert plan.blind == "profile baseline was never measured on this host"

    def test_one_that_cannot_be_read_is_told_from_one_that_is_not_there(
        self, tmp_path: Path
    ) -> None:
        loaded = config()
        measured(tmp_path, loaded, "eagle3")
        surface_files.path_of(tmp_path, "baseline").write_text("{")
        assert "not a surface" in policies.prepare(loaded, tmp_path, {}).plan.blind

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"fingerprint": "sha256:0"}, "profile eagle3 has changed since it was measured"),
            ({"fingerprint": ""}, "has no fingerprint"),
            ({"versions": {"sglang": "0.5.22"}}, "sglang was 0.5.22 when it was measured"),
            ({"environment": {"driver": "590.1", "gpus": []}}, "driver was 590.1"),
        ],
    )
    def test_one_of_something_else_is_refused_with_the_reason(
        self, tmp_path: Path, changes: dict[str, Any], why: str
    ) -> None:
        loaded = config()
        measured(tmp_path, loaded, "baseline")
        measured(tmp_path, loaded, "eagle3", **changes)
        host = {"driver": "580.1", "gpus": [{"name": "RTX PRO 6000", "index": 0, "uuid": "x"}]}
        plan = policies.prepare(loaded, tmp_path, {}, environment=host).plan
        assert why in plan.blind
        assert plan.surfaces is None

    def test_a_host_that_cannot_be_read_refuses_nothing(self, tmp_path: Path) -> None:
        loaded = config()
        for name in ("eagle3", "baseline"):
            measured(tmp_path, loaded, name)
        assert policies.prepare(loaded, tmp_path, {}, environment=None).plan.blind == ""

    def test_another_build_of_the_same_release_is_the_same(self, tmp_path: Path) -> None:
        loaded = config()
        for name in ("eagle3", "baseline"):
            measured(tmp_path, loaded, name, versions={"sglang": "0.5.23+cu130"})
        assert policies.prepare(loaded, tmp_path, {}).plan.blind == ""

    def test_marks_need_none(self, tmp_path: Path) -> None:
        plan = policies.prepare(config(auto=", policy: sustained_load"), tmp_path, {}).plan
        assert (plan.surfaces, plan.blind) == (None, "")


@pytest.mark.parametrize(
    ("found", "written", "expected"),
    [
        (GATED, ("", ""), "gated_restart"),
        (UNGATED, ("", ""), "restart"),
        (Facts(), ("", ""), "restart"),
        (GATED, (", mechanism: restart", ""), "restart"),
        (UNGATED, (", mechanism: gated_restart", ""), "restart"),
        (Facts(), (", mechanism: gated_restart", ""), "gated_restart"),
        (GATED, (", mechanism: gated_restart", ", mechanism: restart"), "restart"),
        (GATED, (", mechanism: restart", ", mechanism: gated_restart"), "gated_restart"),
        (GATED, ("", ", policy: always, always: eagle3"), "restart"),
    ],
)
def test_the_mechanism_is_the_cheapest_that_applies_unless_one_is_written(
    tmp_path: Path, facts: dict[str, Any], found: Facts, written: tuple[str, str], expected: str
) -> None:
    facts["facts"] = Facts(
        found.version, found.release, steps=found.steps, unmeasured="not measured"
    )
    assert policies.prepare(config(*written), tmp_path, {}).choice.mechanism == expected


def test_the_costs_are_those_of_the_mechanism(tmp_path: Path, facts: dict[str, Any]) -> None:
    costs = {
        "gated_restart": Costs("gated_restart").with_switch("eagle3", prepare=5.0, closed=7.0),
        "restart": Costs("restart").with_switch("eagle3", prepare=0.0, closed=70.0),
    }
    plan = policies.prepare(config(), tmp_path, costs).plan  # type: ignore[arg-type]
    assert plan.costs.costs() == costs["gated_restart"]
    assert facts["facts"].release >= (0, 5, 19)


def test_what_could_not_be_looked_for_is_told(tmp_path: Path) -> None:
    found = policies.without_surfaces(config(), {}, "the disk does not answer")
    assert found.plan.blind == "the disk does not answer"
    assert found.choice.mechanism == "restart"
