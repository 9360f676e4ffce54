from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl.autospec import surface_files
from opsctl.bench.results import Profile, save_result
from opsctl.cli import tune as command
from opsctl.cli.main import run
from opsctl.config.load import Loaded, load
from opsctl.config.locate import locate
from opsctl.profiles.fingerprint import fingerprint
from tests.support.measured import ENVIRONMENT, cells, column, result

CONFIG = """
profiles:
  baseline:
    engine: {engine}
    model: org/model
    flags: {{max-running-requests: 256, tp-size: 8}}
  eagle3:
    extends: baseline
    draft_model: org/draft
    flags:
      speculative-algorithm: EAGLE3
      speculative-num-steps: 3
      speculative-eagle-topk: 1
      speculative-num-draft-tokens: 4
serve: {{profile: baseline}}
auto_spec:
  speculative: eagle3
  baseline: baseline
  sustained_load: {{high: 40, low: 30}}
"""
WINS = column("reference_host_draft14", "speculative")
LOSES = column("reference_host", "eagle3")


class Desk:
    """A configuration, results and a state directory, and `opsctl tune` over them."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        self.drop_in = folder / "conf.d" / "90-tuned.yaml"
        self.state = folder / "state"
        self.configure("sglang")

    def configure(self, engine: str) -> None:
        (self.folder / "opsctl.yaml").write_text(CONFIG.format(engine=engine))

    def loaded(self) -> Loaded:
        files = locate(str(self.folder / "opsctl.yaml"), environment={}, cwd=self.folder)
        return load(files, environment=os.environ)

    def profile(self, name: str, **more: Any) -> Profile:
        configured = self.loaded().config.profiles[name]
        facts = {
            "fingerprint": fingerprint(configured),
            "speculative": name != "baseline",
            "versions": {"sglang": "0.5.23"},
        }
        return Profile(name=name, **(facts | more))

    def measured(
        self, draft: Any = WINS, table: str = "reference_host_draft14", **more: Any
    ) -> str:
        """A result directory."""
        folder = self.folder / "result"
        found = [*cells("baseline", column(table, "baseline")), *cells("eagle3", draft)]
        facts = {"profiles": (self.profile("baseline"), self.profile("eagle3"))}
        save_result(folder, result(*found, **(facts | more)))
        return str(folder)

    def tune(self, *words: str) -> tuple[int, str, str]:
        code = run(
            ["tune", *words, "--config", str(self.folder / "opsctl.yaml")]
            + ["--state-dir", str(self.state)]
        )
        out, err = self._capsys.readouterr()
        return code, out, err

    def files(self) -> dict[str, str]:
        """Everything below the folder but results, by name."""
        found = (x for x in self.folder.rglob("*") if x.is_file() and "result" not in x.parts)
        return {str(x.relative_to(self.folder)): x.read_text() for x in found}


@pytest.fixture
def desk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Desk:
    monkeypatch.setattr(command, "_host", lambda: ENVIRONMENT)
    return Desk(tmp_path, capsys)


def test_marks_surfaces_and_the_adaptive_file_are_written(desk: Desk) -> None:
    code, _, err = desk.tune(desk.measured(), "--yes")
    assert code == 0, err
    config = desk.loaded().config
    marks = config.auto_spec.sustained_load
    assert marks.low < 7.5 < marks.high
    assert (marks.low, marks.high) == (7, 8)
    adapting = config.profiles["eagle3-adaptive"]
    assert adapting.flags["speculative-adaptive"] is True
    content = json.loads(Path(str(adapting.flags["speculative-adaptive-config"])).read_text())
    assert content["1"] == {"candidate_steps": [3]}
    assert list(content.values())[-1] == {"candidate_steps": [0]}
    for name in ("baseline", "eagle3"):
        found = surface_files.load(desk.state, name)
        assert found is not None
        assert found.fingerprint == fingerprint(config.profiles[name])
        assert found.provenance.results[0]["name"] == "result"


def test_a_state_directory_with_a_dollar_in_its_name_is_named_as_it_is(desk: Desk) -> None:
    desk.state = desk.folder / "a${HOME}$b"
    code, _, err = desk.tune(desk.measured(), "--yes")
    assert code == 0, err
    flags = desk.loaded().config.profiles["eagle3-adaptive"].flags
    path = Path(str(flags["speculative-adaptive-config"]))
    assert path.parent == desk.state / "adaptive"
    assert path.exists()


def test_the_drop_in_says_where_its_numbers_come_from(desk: Desk) -> None:
    desk.tune(desk.measured(), "--yes")
    text = desk.drop_in.read_text()
    assert text.startswith("# Written by `opsctl tune`")
    for told in (
        "result (2026-02-03T04:05:06Z)",
        "workload: mixed",
        "up to concurrency 7.",
        "sha256:",
    ):
        assert told in text


def test_the_profiles_that_were_measured_keep_their_fingerprints(desk: Desk) -> None:
    before = {name: fingerprint(p) for name, p in desk.loaded().config.profiles.items()}
    desk.tune(desk.measured(), "--yes")
    after = {name: fingerprint(p) for name, p in desk.loaded().config.profiles.items()}
    assert before.items() <= after.items()


def test_a_second_run_with_the_same_results_changes_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.tune(desk.measured(), "--yes")
    before = desk.files()
    monkeypatch.setattr(command, "_now", lambda: "2030-01-01T00:00:00Z")
    code, _, err = desk.tune(desk.measured())
    assert (code, desk.files()) == (0, before)
    assert "nothing to change" in err


def test_a_dry_run_shows_the_diff_and_changes_nothing(desk: Desk) -> None:
    result_folder, before = desk.measured(), desk.files()
    code, _, err = desk.tune(result_folder, "--dry-run")
    assert (code, desk.files()) == (3, before)
    assert "+    high: 8" in err


def test_nobody_to_ask_is_no_yes(desk: Desk) -> None:
    result_folder, before = desk.measured(), desk.files()
    code, _, err = desk.tune(result_folder)
    assert (code, desk.files()) == (2, before)
    assert "--yes" in err


def test_when_speculation_does_not_pay_no_threshold_is_written_and_it_is_said(desk: Desk) -> None:
    code, _, err = desk.tune(desk.measured(LOSES, "reference_host"), "--yes")
    assert code == 4
    assert "speculation does not pay on this host with these prompts" in err
    assert not desk.drop_in.exists()
    assert surface_files.load(desk.state, "eagle3") is not None
    assert desk.loaded().config.auto_spec.sustained_load.high == 40


def test_an_older_drop_in_that_no_longer_holds_is_pointed_out(desk: Desk) -> None:
    desk.tune(desk.measured(), "--yes")
    before = desk.drop_in.read_text()
    code, _, err = desk.tune(desk.measured(LOSES, "reference_host"), "--yes")
    assert (code, desk.drop_in.read_text()) == (4, before)
    assert "90-tuned.yaml is of an earlier measurement and still in force: remove it" in err


def test_with_a_simulated_engine_only_the_marks_are_written(desk: Desk) -> None:
    desk.configure("simulated")
    code, _, err = desk.tune(desk.measured(), "--yes")
    assert code == 0
    assert "no adaptive file for SGLang: the engine is simulated" in err
    assert list(yaml.safe_load(desk.drop_in.read_text())) == ["auto_spec"]


def broken(desk: Desk, what: str) -> list[str]:
    """Arguments for results that cannot be used."""
    eagle3, baseline = desk.profile("eagle3"), desk.profile("baseline")
    old = desk.profile("eagle3", fingerprint="sha256:old")
    more: dict[str, dict[str, Any]] = {
        "changed profile": {"profiles": (baseline, old)},
        "measured at a URL": {"profiles": (desk.profile("baseline", fingerprint=""), eagle3)},
        "other driver": {"environment": ENVIRONMENT | {"driver": "575.57.08"}},
        "other GPUs": {"environment": ENVIRONMENT | {"gpus": ["NVIDIA H200"]}},
        "random text": {"workload": "sglang:random"},
        "unsalted": {"salted": False},
    }
    return [desk.measured(**more[what])]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("changed profile", "profile eagle3 has changed since it was measured"),
        ("measured at a URL", "has no fingerprint"),
        ("other driver", "driver was 575.57.08 when it was measured, and is 580.95.05"),
        ("other GPUs", "gpus was"),
        ("random text", "not natural text"),
        ("unsalted", "the prefix cache may have answered"),
    ],
)
def test_results_that_prove_nothing_here_are_refused_and_nothing_is_written(
    desk: Desk, what: str, words: str
) -> None:
    arguments = broken(desk, what)
    before = desk.files()
    code, _, err = desk.tune(*arguments, "--yes")
    assert (code, desk.files()) == (4, before)
    assert words in err


def test_cells_that_are_not_valid_decide_nothing(desk: Desk) -> None:
    bad = {"valid": False, "reason": "requests were aborted"}
    folder = desk.folder / "result"
    found = [
        *cells("baseline", column("reference_host", "baseline")),
        *cells("eagle3", LOSES),
        *cells("eagle3", {0: {1: 900.0, 30: 9000.0}}, repeats=9, **bad),
    ]
    profiles = (desk.profile("baseline"), desk.profile("eagle3"))
    save_result(folder, result(*found, profiles=profiles))
    assert desk.tune(str(folder), "--yes")[0] == 4
    found_surface = surface_files.load(desk.state, "eagle3")
    assert found_surface is not None
    assert found_surface.tok_s(1, 0) == pytest.approx(77.5, rel=0.02)
    assert found_surface.provenance.left_out == 18


def test_a_file_of_that_name_that_is_somebody_elses_is_left_alone(desk: Desk) -> None:
    desk.drop_in.parent.mkdir()
    desk.drop_in.write_text("auto_spec: {dwell: 60s}\n")
    code, _, err = desk.tune(desk.measured(), "--yes")
    assert code == 4
    assert "was not written by `opsctl tune`" in err
    assert desk.drop_in.read_text() == "auto_spec: {dwell: 60s}\n"


def test_marks_that_a_later_file_would_override_are_not_written(desk: Desk) -> None:
    later = desk.drop_in.parent / "95-mine.yaml"
    later.parent.mkdir()
    later.write_text("auto_spec: {sustained_load: {high: 90}}\n")
    code, _, err = desk.tune(desk.measured(), "--yes")
    assert code == 4
    assert "sets `auto_spec.sustained_load` after 90-tuned.yaml" in err
    assert not desk.drop_in.exists()


def test_several_workloads_need_a_choice(desk: Desk) -> None:
    first = desk.measured()
    Path(first).rename(desk.folder / "result-a")
    second = desk.measured(LOSES, "reference_host", workload="chat")
    both = [str(desk.folder / "result-a"), second]
    code, _, err = desk.tune(*both, "--yes")
    assert code == 2 and "--workload" in err
    assert desk.tune(*both, "--yes", "--workload", "chat")[0] == 4
    assert desk.tune(*both, "--yes", "--workload", "mixed")[0] == 0


def test_without_a_pair_there_is_nothing_to_tune(desk: Desk) -> None:
    arguments = desk.measured()
    text = (desk.folder / "opsctl.yaml").read_text()
    (desk.folder / "opsctl.yaml").write_text(text.partition("auto_spec")[0])
    code, _, err = desk.tune(arguments, "--yes")
    assert code == 2 and "auto_spec.speculative" in err


def test_the_document_tells_the_finding_the_marks_and_the_files(desk: Desk) -> None:
    code, out, _ = desk.tune(desk.measured(), "--dry-run", "-o", "json")
    content = json.loads(out)
    assert code == 3
    assert (content["schema"], content["written"]) == ("opsctl/tune/v1", False)
    assert content["marks"] == {"low": 7, "high": 8}
    assert content["contexts"][0]["crossover"]["kind"] == "at"
    assert [item["state"] for item in content["files"]] == ["new"] * 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace("eagle-topk: 1", "eagle-topk: 4"), "would turn it off"),
        (lambda text: text.replace("      speculative-num-steps: 3\n", ""), "sets no"),
        (
            lambda text: text.replace("draft-tokens: 4", "draft-tokens: 4\n      page-size: 64"),
            "differ in more than speculation: flags.page-size",
        ),
    ],
)
def test_where_one_engine_cannot_do_both_no_adaptive_file_is_written(
    desk: Desk, change: Callable[[str], str], words: str
) -> None:
    path = desk.folder / "opsctl.yaml"
    path.write_text(change(path.read_text()))
    code, _, err = desk.tune(desk.measured(), "--yes")
    assert code == 0, err
    assert words in err
    assert not (desk.state / "adaptive").exists()


def test_an_old_sglang_gets_no_adaptive_file(desk: Desk) -> None:
    old = {"versions": {"sglang": "0.5.13"}}
    profiles = (desk.profile("baseline", **old), desk.profile("eagle3", **old))
    _, _, err = desk.tune(desk.measured(profiles=profiles), "--yes")
    assert "SGLang 0.5.13 cannot draft zero steps" in err
