"""Units, the written form, the editor's schema and the reference page agree with the loader."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from opsctl.config.fields import children, lookup, split
from opsctl.config.json_schema import json_schema
from opsctl.config.load import load_text
from opsctl.config.reference import reference
from opsctl.config.schema import Config, EnvSecret, Timeouts
from opsctl.config.state_dir import state_dir
from opsctl.config.units import format_duration, format_size, parse_duration, parse_size
from opsctl.config.written import written
from opsctl.errors import ConfigError
from opsctl.profiles.launch import BASE_VARIABLES

SHIPPED = ("demo.yaml", "presets/minimal.yaml", "presets/simulated.yaml")


def shipped(name: str) -> str:
    return files("opsctl.config").joinpath(name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("30s", 30.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        ("2d", 172800.0),
        (0, 0.0),
    ],
)
def test_durations(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "bad", ["", "30", "s", "-5s", "5 s", "5S", "1e3s", "٣s", 30, 1.5, True, False, None, "9999d"]
)
def test_what_is_no_duration(bad: object) -> None:
    with pytest.raises(ValueError, match=r"duration|longer"):
        parse_duration(bad)


@pytest.mark.parametrize("bad", ["8", "8MIB", "8 MiB", "MiB", 8, True, "2048TiB", "99999999GB"])
def test_what_is_no_size(bad: object) -> None:
    with pytest.raises(ValueError, match=r"size|more than"):
        parse_size(bad)


@given(st.integers(0, 30 * 86_400_000))
def test_a_formatted_duration_reads_back(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == pytest.approx(
        milliseconds / 1000
    )


@given(st.integers(0, 2**50))
def test_a_formatted_size_reads_back(count: int) -> None:
    assert parse_size(format_size(count)) == count


def test_code_may_give_seconds_as_numbers_but_yaml_may_not() -> None:
    assert Timeouts(start=5, stop=1.5).stop == 1.5  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="write a number with a unit"):
        load_text("profiles: {a: {model: m, timeouts: {stop: 1.5}}}", name="f", environment={})


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_files_load_without_warnings_and_satisfy_the_schema(name: str) -> None:
    assert load_text(shipped(name), name=name, environment={}).warnings == ()
    jsonschema.validate(yaml.safe_load(shipped(name)), json_schema())


def test_the_minimal_file_has_under_ten_lines() -> None:
    assert len(shipped("presets/minimal.yaml").splitlines()) < 10


@pytest.mark.parametrize("name", SHIPPED)
def test_the_written_form_loads_to_the_same_configuration(name: str) -> None:
    config = load_text(shipped(name), name=name, environment={}).config
    content = written(config)
    jsonschema.validate(content, json_schema())
    again = load_text(yaml.safe_dump(content), name="again", environment={})
    assert again.config == config


def test_references_stay_references_and_literals_that_look_secret_are_masked() -> None:
    text = """\
profiles:
  a: {model: m, environment: {HF_TOKEN: {env: HF}, MY_PASSWORD: hunter2, NCCL_DEBUG: INFO}}
serve: {gateway: {api_key: {file: /k}}}
"""
    config = load_text(text, name="f", environment={"HF": "hf_value"}).config
    assert isinstance(config.profiles["a"].environment["HF_TOKEN"], EnvSecret)
    content = written(config)
    assert content["profiles"]["a"]["environment"] == {
        "HF_TOKEN": {"env": "HF"},
        "MY_PASSWORD": "***",
        "NCCL_DEBUG": "INFO",
    }
    assert content["serve"]["gateway"]["api_key"] == {"file": "/k"}


@pytest.mark.parametrize(
    ("tree", "good"),
    [
        ({"serve": {"health": {"hang_after": "90s"}}}, True),
        ({"serve": {"health": {"hang_after": "${T:-90s}"}}}, True),
        ({"serve": {"health": {"hang_after": 90}}}, False),
        ({"serve": {"engine_port": "${PORT}"}}, True),
        ({"serve": {"engine_port": "x"}}, False),
        ({"serve": None}, True),
        ({"serve": {"listne": "x"}}, False),
        ({"serve": {"gateway": {"api_key": "sk-1"}}}, False),
        ({"serve": {"gateway": {"api_key": {"env": "K"}}}}, True),
        ({"profiles": {"a": {"environment": {"A": 1, "B": None, "C": {"env": "X"}}}}}, True),
        ({"profiles": {"a": {"environment": {"A": True}}}}, False),
        ({"profiles": {"a": {"flags": {"x": [1, "a"], "y": {"z": 1}, "w": None}}}}, True),
        ({"auto_spec": {"policy": "nope"}}, False),
    ],
)
def test_the_schema_describes_what_is_written(tree: dict[str, Any], good: bool) -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    validator = jsonschema.Draft202012Validator(json_schema())
    assert validator.is_valid(tree) is good


def test_the_schema_gives_defaults_with_their_units() -> None:
    assert json_schema()["$defs"]["Timeouts"]["properties"]["start"]["default"] == "30m"


def every_key(path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name in children(path):
        found += [(*path, name), *every_key((*path, name))]
    return found


def test_every_key_can_be_looked_up_by_its_dotted_name() -> None:
    keys = every_key()
    assert len(keys) > 30
    for path in keys:
        assert split(".".join(path)) == path
        assert lookup(path) is not None
    assert split("profiles.glm-4.5.timeouts.stop") == ("profiles", "glm-4.5", "timeouts", "stop")
    assert split("serve.nope") is None


def test_every_key_has_a_meaning() -> None:
    silent = [path for path in every_key() if not (lookup(path) or 0).description]  # type: ignore[union-attr]
    assert silent == []


def test_the_reference_page_is_up_to_date() -> None:
    page = Path(__file__).parents[3] / "docs/reference/configuration.md"
    assert page.read_text(encoding="utf-8") == reference(BASE_VARIABLES), (
        "run: opsctl config schema -o markdown > docs/reference/configuration.md"
    )


def test_the_state_directory_is_chosen_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(state_dir="/from/config")
    environment = {"OPSCTL_STATE_DIR": "/from/environment", "HOME": "/h/u"}
    assert str(state_dir("/explicit", config, environment)) == "/explicit"
    assert str(state_dir(None, config, environment)) == "/from/environment"
    assert str(state_dir(None, config, {})) == "/from/config"
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert str(state_dir(None, None, {})) == "/var/lib/opsctl"
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert str(state_dir(None, None, {"XDG_STATE_HOME": "/x"})) == "/x/opsctl"
    assert str(state_dir(None, None, {"HOME": "/h/u"})) == "/h/u/.local/state/opsctl"
