"""`opsctl provision`, as an operator types it, on real systemd hosts without any network."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.hosts import (
    Distribution,
    Host,
    Repository,
    standin_repository,
    systemd_host,
    wheelhouse,
)
from tests.support.serving import OPSCTL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
CANARY = "canary-6f0d2b"
PYTHONS: dict[Distribution, Any] = {"bookworm": "3.11", "trixie": "3.13"}
STAND_INS = {"/usr/bin/g++": b"#!/bin/sh\n"}
"""Programs that a host without network cannot install; what they do is of no matter here."""


STAND_IN_FINDINGS = ["build-tools", "limits"]
"""What the doctor says of these hosts: the compiler is a stand-in, and a container of systemd 257
caps memlock and nofile of all that runs in it."""


@dataclass
class Site:
    """Hosts, and the operator's folder and configuration for them."""

    folder: Path
    hosts: dict[str, Host]
    repository: Repository

    def write(self, **sections: dict[str, Any]) -> Path:
        given: dict[str, dict[str, Any]] = {
            "check_host": {"require_gpu": False, "free_disk": 0},
            "nvidia_repo": {"url": self.repository.url, "key": str(self.repository.key)},
            "engine_env": {"wheels": "/wheels", "sglang": "0.5.23"},
            "sm120_patches": {"names": ["torch-symm-mem"]},
            "opsctl_service": {"wheels": "/wheels", "auto_spec": False},
            "verify": {"timeout": 90, "allow": STAND_IN_FINDINGS},
        }
        merged = {name: {**given.get(name, {}), **section} for name, section in sections.items()}
        provision = given | merged
        provision["hosts"] = {name: host.configuration() for name, host in self.hosts.items()}
        profile = {"engine": "simulated", "model": "simulated/tiny", "served_name": "demo"}
        document = {
            "profiles": {"only": profile | {"flags": {"sim-start-time": 0.2}}},
            "serve": {"listen": "127.0.0.1:8000", "profile": "only"},
            "provision": provision,
        }
        path = self.folder / "opsctl.yaml"
        path.write_text(yaml.safe_dump(document))
        return path

    def opsctl(self, *words: str) -> tuple[int, dict[str, Any], str]:
        """Exit code, document and messages of `opsctl provision --yes -o json ...`."""
        done = subprocess.run(
            [OPSCTL, "provision", "--config", str(self.folder / "opsctl.yaml"), "--yes"]
            + ["--state-dir", str(self.folder / "state"), "-o", "json", *words],
            env={**os.environ, "HF_TOKEN": CANARY},
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
        return done.returncode, json.loads(done.stdout or "{}"), done.stderr


@contextmanager
def site(folder: Path, distribution: Distribution, *names: str) -> Iterator[Site]:
    with ExitStack() as stack:
        repository = standin_repository(folder / "repository", distribution)
        binds = {**repository.binds, "/wheels": wheelhouse(PYTHONS[distribution])}
        hosts = {
            name: stack.enter_context(systemd_host(distribution, binds=binds, files=STAND_INS))
            for name in names
        }
        yield Site(folder, hosts, repository)


@pytest.mark.parametrize(
    "distribution", ["bookworm", pytest.param("trixie", marks=pytest.mark.extended)]
)
def test_a_bare_host_serves_after_one_command_and_the_next_changes_nothing(
    tmp_path: Path, distribution: Distribution
) -> None:
    with site(tmp_path, distribution, "gpu1") as there:
        host = there.hosts["gpu1"]
        there.write()
        code, document, said = there.opsctl("--check")
        assert (code, document["hosts"]["gpu1"]["verdict"]) == (3, "pending"), said
        assert document["hosts"]["gpu1"]["unknown"], "the repository is not there yet"
        assert (
            host.run(["ls", "/opt", "/var/lib/opsctl-provision"], check=False).stdout == "/opt:\n"
        )

        code, document, said = there.opsctl()
        assert (code, document["hosts"]["gpu1"]["verdict"]) == (0, "ok"), said
        assert document["schema"] == "opsctl/provision/v1"
        assert Path(document["log"]).is_file()
        with urllib.request.urlopen(f"http://127.0.0.1:{host.forward(8000)}/v1/models") as answer:
            assert json.load(answer)["data"][0]["id"] == "demo"

        code, document, said = there.opsctl()
        report = document["hosts"]["gpu1"]
        assert (code, report["verdict"], report["changed"]) == (0, "ok", 0), said
        code, document, said = there.opsctl("--check")
        assert (code, document["hosts"]["gpu1"]["verdict"]) == (0, "unchanged"), said

        asked = subprocess.run(
            [OPSCTL, "doctor", "--host", "gpu1", "--only", "toolkit", "-o", "json"]
            + ["--config", str(there.folder / "opsctl.yaml")],
            capture_output=True,
            text=True,
            check=True,
        )
        [check] = json.loads(asked.stdout)["hosts"]["gpu1"]["checks"]
        assert (check["id"], check["status"]) == ("toolkit", "ok")

        for path in there.folder.joinpath("state").rglob("*"):
            assert not path.is_file() or CANARY not in path.read_text(errors="replace"), path
        found = host.run(["grep", "-rls", CANARY, "/etc", "/var", "/opt", "/run"], check=False)
        assert found.stdout == ""

        code, document, said = there.opsctl("--state", "absent")
        assert code == 0, said
        assert host.run(["systemctl", "is-active", "opsctl"], check=False).stdout != "active\n"
        assert host.run(["ls", "/opt"]).stdout == ""


def test_one_host_fails_and_the_other_is_finished(tmp_path: Path) -> None:
    with site(tmp_path, "bookworm", "good", "bad") as there:
        there.write(
            nvidia_repo={"manage": False}, verify={"allow": ["toolkit", *STAND_IN_FINDINGS]}
        )
        there.hosts["bad"].write("/opt/sglang", "not a folder of ours\n")
        code, document, said = there.opsctl(
            "--tags", "engine_env,sm120_patches,model_store,opsctl_service,verify"
        )
        good, bad = document["hosts"]["good"], document["hosts"]["bad"]
        assert (code, good["verdict"], bad["verdict"]) == (5, "ok", "failed"), said
        assert any("/opt/sglang" in why for why in bad["why"]), bad["why"]
        assert good["failed"] == 0


@pytest.mark.extended
def test_a_host_that_needs_a_reboot_is_rebooted_only_when_that_is_asked_for(tmp_path: Path) -> None:
    with site(tmp_path, "bookworm", "gpu1") as there:
        host = there.hosts["gpu1"]
        there.write(verify={"allow": ["toolkit", *STAND_IN_FINDINGS]})
        roles = ("--tags", "engine_env,sm120_patches,model_store,opsctl_service,verify")
        note = "/var/lib/opsctl-provision/pending.d/somebody-reboot"
        host.write(note, "reboot: somebody changed the kernel line\n")
        before = host.init
        code, document, said = there.opsctl(*roles)
        assert (code, host.init) == (0, before), said
        assert document["hosts"]["gpu1"]["pending"] == ["reboot: somebody changed the kernel line"]

        code, document, said = there.opsctl(*roles, "--reboot", "if-needed")
        assert (code, document["hosts"]["gpu1"]["verdict"]) == (0, "ok"), said
        assert host.init != before, "it is another boot"
        with urllib.request.urlopen(f"http://127.0.0.1:{host.forward(8000)}/v1/models") as answer:
            assert answer.status == 200


def test_a_host_that_cannot_be_reached_is_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "opsctl.yaml"
    entry = {"address": "127.0.0.1", "port": 9, "known_hosts": "/dev/null"}
    document = {
        "profiles": {"only": {"engine": "simulated", "model": "m"}},
        "provision": {"hosts": {"gone": entry}},
    }
    path.write_text(yaml.safe_dump(document))
    done = subprocess.run(
        [OPSCTL, "provision", "--config", str(path), "--yes", "-o", "json"]
        + ["--state-dir", str(tmp_path / "state")],
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(done.stdout)["hosts"]["gone"]
    assert (done.returncode, report["unreachable"], report["verdict"]) == (1, True, "failed")
    assert "cannot be reached" in report["why"][0]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--limit", "other"], 2, "no host other"),
        (["--tags", "driver", "--yes"], 2, "no role driver"),
        ([], 2, "there is nobody to ask"),
    ],
)
def test_what_is_asked_for_must_make_sense(
    tmp_path: Path, words: list[str], code: int, message: str
) -> None:
    path = tmp_path / "opsctl.yaml"
    path.write_text("profiles: {only: {engine: simulated, model: m}}\n")
    done = subprocess.run(
        [OPSCTL, "provision", "--config", str(path), "--state-dir", str(tmp_path), *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
