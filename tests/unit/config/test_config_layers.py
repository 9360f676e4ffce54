"""Drop-in files over the main file, and profiles over the ones they extend."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.config.load import demo, load, load_text
from opsctl.config.locate import locate
from opsctl.errors import ConfigError


def write(directory: Path, **texts: str) -> Path:
    for name, text in texts.items():
        path = directory / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return directory / "opsctl.yaml"


def test_drop_ins_are_merged_in_name_order_and_origins_tell_who_won(tmp_path: Path) -> None:
    main = write(
        tmp_path,
        opsctl="profiles:\n  a: {model: m, flags: {tp-size: 8, x: 1}, expect_log: [one, two]}\n",
    )
    drop_in = tmp_path / "conf.d"
    drop_in.mkdir()
    (drop_in / "20.yaml").write_text("profiles: {a: {flags: {tp_size: 2}}}\n")
    (drop_in / "10.yaml").write_text("profiles: {a: {flags: {tp-size: 4}, expect_log: [three]}}\n")
    (drop_in / "30.yaml.bak").write_text("not: read\n")
    (drop_in / ".40.yaml").write_text("not: read\n")
    paths = locate(str(main), environment={}, cwd=tmp_path)
    assert [path.name for path in paths] == ["opsctl.yaml", "10.yaml", "20.yaml"]
    loaded = load(paths, environment={})
    profile = loaded.config.profiles["a"]
    assert profile.flags == {"tp-size": 2, "x": 1}
    assert profile.expect_log == ("three",)
    assert str(loaded.origins["profiles.a.flags.tp-size"]) == f"{drop_in}/20.yaml:1:33"
    assert str(loaded.origins["profiles.a.flags.x"]) == f"{main}:2:40"


def test_a_reference_to_a_secret_is_replaced_as_a_whole(tmp_path: Path) -> None:
    main = write(
        tmp_path,
        opsctl="profiles: {a: {model: m}}\nserve: {gateway: {api_key: {env: KEY}}}\n",
        over="serve: {gateway: {api_key: {file: /k}}}\n",
    )
    config = load([main, tmp_path / "over.yaml"], environment={}).config
    assert config.serve.gateway.api_key is not None
    assert config.serve.gateway.api_key.model_dump() == {"file": "/k"}


CHAIN = """\
profiles:
  base:
    engine: simulated
    flags: {tp-size: 8, gone: true, json: {a: 1}}
    environment: {KEEP: "1", DROP: "1", TOKEN: {env: A}}
    timeouts: {start: 10m, stage: 1m}
  middle:
    extends: base
    model: m
    flags: {tp_size: 4, gone: null, json: {b: 2}}
    environment: {DROP: null, TOKEN: {file: /t}}
  leaf:
    extends: middle
    draft_model: d
    timeouts: {stage: 2m}
serve: {profile: leaf}
"""


def test_a_chain_of_extends_is_resolved() -> None:
    loaded = load_text(CHAIN, name="f", environment={})
    leaf = loaded.config.profiles["leaf"]
    assert (leaf.engine, leaf.model, leaf.draft_model) == ("simulated", "m", "d")
    assert leaf.flags == {"tp-size": 4, "gone": None, "json": {"b": 2}}
    assert leaf.environment["DROP"] is None
    assert leaf.environment["TOKEN"].model_dump() == {"file": "/t"}  # type: ignore[union-attr]
    assert (leaf.timeouts.start, leaf.timeouts.stage) == (600.0, 120.0)
    assert loaded.config.profiles["base"].flags["tp-size"] == 8
    assert str(loaded.origins["profiles.leaf.timeouts.start"]) == "f:6:23"


@pytest.mark.parametrize(
    ("extends", "expected"),
    [
        ("leaf", "profiles.base.extends: profiles extend each other: "),
        ("base", "profiles.base.extends: profiles extend each other: base -> base"),
        ("middel", "there is no profile 'middel' (did you mean middle?)"),
    ],
)
def test_a_broken_chain_is_reported_once_with_its_position(extends: str, expected: str) -> None:
    text = CHAIN.replace("    engine: simulated\n", f"    extends: {extends}\n")
    with pytest.raises(ConfigError) as caught:
        load_text(text, name="f", environment={})
    chain = [problem for problem in caught.value.problems if problem.key.endswith("extends")]
    assert len(chain) == 1
    assert expected in str(chain[0]) or "extend each other" in expected
    assert chain[0].what.startswith(("profiles extend each other", "there is no profile"))


def test_an_inherited_problem_is_reported_once_where_it_is_written() -> None:
    text = CHAIN.replace("start: 10m", "start: 10")
    with pytest.raises(ConfigError) as caught:
        load_text(text, name="f", environment={})
    assert [str(p).split(":")[:3] for p in caught.value.problems] == [["f", "6", "23"]]


def test_the_file_is_looked_for_in_the_documented_order(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    user = home / ".config/opsctl/opsctl.yaml"
    user.parent.mkdir(parents=True)
    user.write_text("")
    work.mkdir()
    environment = {"HOME": str(home)}
    assert locate(None, environment=environment, cwd=work) == (user,)
    (work / "opsctl.yaml").write_text("")
    assert locate(None, environment=environment, cwd=work) == (work / "opsctl.yaml",)
    environment["OPSCTL_CONFIG"] = str(user)
    assert locate(None, environment=environment, cwd=work) == (user,)
    assert locate("opsctl.yaml", environment=environment, cwd=work) == (work / "opsctl.yaml",)
    with pytest.raises(ConfigError, match=r"no such file \(named by --config\)"):
        locate("nowhere.yaml", environment=environment, cwd=work)


def test_the_demo_is_valid_without_warnings_and_needs_nothing_from_outside() -> None:
    loaded = demo()
    assert loaded.warnings == ()
    assert loaded.config.serve.profile == loaded.config.auto_spec.speculative == "eagle3"
    assert loaded.config.profiles["eagle3"].flags["sim-surface"] == "demo:speculative"
    assert loaded.config.profiles["baseline"].draft_model is None
