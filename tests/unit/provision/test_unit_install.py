"""Laying the unit on a host, as the command line does it, in a tree of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from opsctl.cli.main import run
from opsctl.provision import unit_install

UNIT = "etc/systemd/system/opsctl.service"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "opsctl.yaml"
    profile = {"engine": "simulated", "model": "simulated/demo", "served_name": "demo"}
    path.write_text(yaml.safe_dump({"profiles": {"p": profile}, "serve": {"profile": "p"}}))
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "host"
    path.mkdir()
    return path


def install(config: Path, root: Path, *more: str) -> int:
    return run(["unit", "install", "--config", str(config), "--root", str(root), *more])


def verify(config: Path, root: Path) -> int:
    return run(["unit", "verify", "--config", str(config), "--root", str(root), "-o", "json"])


def test_installing_twice_changes_something_once(
    config: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install(config, root) == 0
    assert "new: /etc/systemd/system/opsctl.service" in capsys.readouterr().err
    before = (root / UNIT).stat()
    assert install(config, root) == 0
    assert capsys.readouterr().err == "nothing to change\n"
    assert (root / UNIT).stat().st_ino == before.st_ino
    assert oct(before.st_mode & 0o777) == "0o644"


def test_a_dry_run_shows_everything_and_writes_nothing(
    config: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install(config, root, "--dry-run", "--diff", "-o", "json") == 3
    shown = capsys.readouterr()
    assert "+Type=notify\n" in shown.out
    document = json.loads(shown.out[shown.out.index("{\n") :])
    assert [row["change"] for row in document["changes"]] == ["new", "new"]
    assert list(root.iterdir()) == []
    assert install(config, root) == 0
    assert install(config, root, "--dry-run") == 0


def test_drift_is_found_shown_and_repaired(
    config: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install(config, root) == 0
    unit = root / UNIT
    right = unit.read_text()
    unit.write_text(right.replace("KillMode=mixed", "KillMode=process"))
    assert verify(config, root) == 4
    capsys.readouterr()
    assert install(config, root, "--dry-run", "--diff") == 3
    assert "-KillMode=process\n+KillMode=mixed\n" in capsys.readouterr().out
    assert install(config, root) == 0
    assert unit.read_text() == right


def test_wrong_permissions_are_drift(config: Path, root: Path) -> None:
    assert install(config, root) == 0
    (root / UNIT).chmod(0o666)
    assert install(config, root, "--dry-run") == 3
    assert install(config, root) == 0
    assert install(config, root, "--dry-run") == 0


def test_a_masked_unit_is_told_and_repaired(
    config: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install(config, root) == 0
    (root / UNIT).unlink()
    (root / UNIT).symlink_to("/dev/null")
    capsys.readouterr()
    assert verify(config, root) == 4
    assert "is masked" in capsys.readouterr().out
    assert install(config, root) == 0
    assert "masked: /etc/systemd/system/opsctl.service" in capsys.readouterr().err
    assert not (root / UNIT).is_symlink()


@pytest.mark.parametrize("link", [False, True])
def test_a_unit_of_somebody_else_is_left_alone(
    config: Path, root: Path, link: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    unit = root / UNIT
    unit.parent.mkdir(parents=True)
    if link:
        unit.symlink_to("/srv/units/opsctl.service")
    else:
        unit.write_text("[Service]\nExecStart=/bin/true\n")
    assert install(config, root) == 4
    assert "was not written by opsctl" in capsys.readouterr().err
    assert unit.is_symlink() == link
    assert [path.name for path in unit.parent.iterdir()] == ["opsctl.service"]


def test_an_instance_gets_the_template_and_its_own_drop_in(config: Path, root: Path) -> None:
    left = config.rename(config.with_name("left.yaml"))
    assert install(left, root, "--instance", "left") == 0
    units = root / "etc/systemd/system"
    assert sorted(str(p.relative_to(units)) for p in units.rglob("*") if p.is_file()) == [
        "opsctl@.service",
        "opsctl@left.service.d/50-opsctl.conf",
    ]
    assert f"--config {left.parent}/%i.yaml" in (units / "opsctl@.service").read_text()


def test_a_missing_file_is_not_what_the_configuration_wants(
    config: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(config, root) == 4
    checks = {x["id"]: x for x in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["/" + UNIT]["why"] == "is not installed"


def test_only_root_installs_on_this_host(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(unit_install, "apply", lambda *_: pytest.fail("it was written"))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert run(["unit", "install", "--config", str(config)]) == 4
    assert "only root" in capsys.readouterr().err


def test_a_user_that_does_not_exist_is_told_before_anything_is_written(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(unit_install, "apply", lambda *_: pytest.fail("it was written"))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert run(["unit", "install", "--config", str(config), "--user", "no-such-user"]) == 4
    assert "useradd" in capsys.readouterr().err


def test_what_is_rendered_can_be_piped_into_a_file(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["unit", "render", "--config", str(config)]) == 0
    assert capsys.readouterr().out.startswith("# Managed by opsctl.")
