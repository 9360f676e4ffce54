"""`opsctl config` and `opsctl profile` from the outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl.cli.main import run


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPSCTL_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return tmp_path


Capture = pytest.CaptureFixture[str]


def read(capsys: Capture, *arguments: str) -> Any:
    assert run([*arguments, "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("preset", ["minimal", "simulated"])
def test_init_writes_a_file_that_validates_and_is_not_overwritten(
    preset: str, work: Path, capsys: Capture
) -> None:
    assert run(["config", "init", "--preset", preset]) == 0
    assert run(["config", "validate"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("ok: ")
    (work / "opsctl.yaml").write_text("mine")
    assert run(["config", "init"]) == 4
    assert "--force" in capsys.readouterr().err
    assert (work / "opsctl.yaml").read_text() == "mine"
    assert run(["config", "init", "--force"]) == 0
    assert (work / "opsctl.yaml").read_text() != "mine"


def test_init_to_stdout_prints_only_the_file(capsys: Capture) -> None:
    assert run(["config", "init", "-"]) == 0
    captured = capsys.readouterr()
    assert yaml.safe_load(captured.out)["profiles"]
    assert captured.err == ""


def test_validate_prints_all_problems_and_ends_in_78(work: Path, capsys: Capture) -> None:
    (work / "bad.yaml").write_text("profiles: {a: {modle: x}}\nserve: {listen: 1}\n")
    assert run(["config", "validate", "--config", "bad.yaml"]) == 78
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"{work}/bad.yaml:1:16: profiles.a.modle: unknown key" in captured.err
    assert "error: the configuration has 2 problems" in captured.err
    assert run(["config", "validate", "--config", "bad.yaml", "-o", "json"]) == 78
    content = json.loads(capsys.readouterr().out)
    assert content["ok"] is False
    assert [(p["line"], p["column"], p["key"]) for p in content["problems"]] == [
        (1, 16, "profiles.a.modle"),
        (2, 17, "serve.listen"),
    ]


def test_no_configuration_names_the_places_and_the_next_step(work: Path, capsys: Capture) -> None:
    assert run(["config", "show"]) == 78
    shown = capsys.readouterr().err
    assert f"{work}/opsctl.yaml" in shown
    assert "opsctl config init" in shown


def test_warnings_go_to_stderr(work: Path, capsys: Capture) -> None:
    (work / "opsctl.yaml").write_text(
        "profiles: {a: {model: m, environment: {HF_TOKEN: hf_abc}}}\n"
    )
    assert run(["config", "validate"]) == 0
    assert "warning: " in capsys.readouterr().err
    for arguments in (
        ["config", "show", "-o", "json"],
        ["profile", "show", "a"],
        ["profile", "show", "a", "--shell"],
        ["config", "show", "--origin"],
    ):
        assert run(arguments) == 0
        captured = capsys.readouterr()
        assert "hf_abc" not in captured.out + captured.err


def test_show_gives_values_and_origins(work: Path, capsys: Capture) -> None:
    (work / "opsctl.yaml").write_text("profiles: {a: {model: m}}\n")
    (work / "conf.d").mkdir()
    (work / "conf.d/1.yaml").write_text("serve: {listen: 127.0.0.1:9}\n")
    content = read(capsys, "config", "show")
    assert content["schema"] == "opsctl/config/v1"
    assert content["config"]["serve"]["listen"] == "127.0.0.1:9"
    assert content["config"]["serve"]["gateway"]["hold"] == {
        "requests": 1000,
        "bytes": "256MiB",
        "time": "40m",
    }
    rows = {row["key"]: row for row in read(capsys, "config", "show", "--origin")["items"]}
    assert rows["serve.listen"]["origin"] == f"{work}/conf.d/1.yaml:1:17"
    assert rows["serve.engine_port"]["origin"] == "default"
    assert read(capsys, "config", "path")["items"] == [
        f"{work}/opsctl.yaml",
        f"{work}/conf.d/1.yaml",
    ]


def test_schema_comes_in_three_forms(capsys: Capture) -> None:
    content = read(capsys, "config", "schema")
    assert run(["config", "schema", "-o", "yaml"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == content
    assert run(["config", "schema", "-o", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("# Configuration reference")


def test_explain_tells_type_default_meaning_and_place(work: Path, capsys: Capture) -> None:
    (work / "opsctl.yaml").write_text("profiles: {a.b: {model: m, timeouts: {stop: 45s}}}\n")
    content = read(capsys, "config", "explain", "profiles.a.b.timeouts.stop")
    assert content["type"] == "duration"
    assert content["default"] == "1m30s"
    assert content["value"] == "45s"
    assert content["set_at"] == f"{work}/opsctl.yaml:1:45"
    assert "SIGTERM" in content["description"]
    assert "hang_after" in read(capsys, "config", "explain", "serve.health")["keys"]


def test_explain_works_without_a_valid_configuration(capsys: Capture) -> None:
    assert run(["config", "explain", "serve.listen"]) == 0
    captured = capsys.readouterr()
    assert "HOST:PORT" in captured.out
    assert "note: no valid configuration" in captured.err


def test_explain_suggests_for_an_unknown_key(capsys: Capture) -> None:
    assert run(["config", "explain", "serve.listne"]) == 2
    assert "did you mean listen?" in capsys.readouterr().err


@pytest.fixture
def simulated(work: Path, capsys: Capture) -> None:
    assert run(["config", "init"]) == 0
    capsys.readouterr()


@pytest.mark.usefixtures("simulated")
def test_profiles_are_listed_with_their_uses(capsys: Capture) -> None:
    rows = {row["name"]: row for row in read(capsys, "profile", "list")["items"]}
    assert rows["eagle3"]["used_as"] == ["serve", "speculative"]
    assert rows["baseline"]["used_as"] == ["baseline"]
    assert rows["eagle3"]["fingerprint"] != rows["baseline"]["fingerprint"]


@pytest.mark.usefixtures("simulated")
def test_a_profile_is_shown_complete(capsys: Capture) -> None:
    content = read(capsys, "profile", "show", "eagle3")
    assert content["profile"]["flags"]["tp-size"] == 2
    assert content["profile"]["timeouts"]["stop"] == "15s"
    assert "--speculative-algorithm" in content["command"]["argv"]
    assert content["command"]["environment"]["NCCL_P2P_LEVEL"] == "SYS"
    assert run(["profile", "show", "eagle3", "--shell"]) == 0
    line = capsys.readouterr().out
    assert line.startswith("env -i ")
    assert line.count("\n") == 1


@pytest.mark.usefixtures("simulated")
def test_two_profiles_are_compared(capsys: Capture) -> None:
    rows = {
        row["key"]: row for row in read(capsys, "profile", "diff", "baseline", "eagle3")["items"]
    }
    assert rows["flags.speculative-algorithm"]["left"] is None
    assert rows["flags.speculative-algorithm"]["right"] == "EAGLE3"
    assert "flags.tp-size" not in rows


@pytest.mark.usefixtures("simulated")
def test_an_unknown_profile_is_a_usage_error(capsys: Capture) -> None:
    assert run(["profile", "show", "eagle"]) == 2
    assert "did you mean eagle3?" in capsys.readouterr().err


def test_times_of_day_are_shown_so_that_they_can_be_read_again(work: Path, capsys: Capture) -> None:
    window = '{from: "06:00", to: "23:00", switches: never}'
    (work / "opsctl.yaml").write_text(
        f"profiles: {{a: {{model: m}}}}\nauto_spec: {{maintenance: [{window}]}}\n"
    )
    assert run(["config", "show", "-o", "yaml"]) == 0
    shown = capsys.readouterr().out
    assert "from: '06:00'" in shown
    content = yaml.safe_load(shown)["config"]["auto_spec"]["maintenance"]
    assert content[0]["from"] == "06:00"
