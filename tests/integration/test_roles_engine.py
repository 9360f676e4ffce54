"""The roles that install, patch and run the engine, by real Ansible on real systemd hosts."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl.config.load import load
from opsctl.provision.inventory import Request
from opsctl.provision.inventory import hosts as hosts_of
from opsctl.provision.progress import RoleProgress
from opsctl.provision.provision import Options, Watcher, provision
from opsctl.provision.report import HostReport
from tests.support.hosts import Host, systemd_host, wheelhouse

ROLES = ("engine_env", "sm120_patches", "model_store", "opsctl_service", "verify")
PATCH = "torch-symm-mem"
ALLOWED = ["toolkit", "build-tools", "limits"]
"""What the doctor misses here: nobody gave the host a CUDA toolkit, and a container cannot raise
the limits that it was started with."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROFILE = {
    "engine": "simulated",
    "model": "simulated/tiny",
    "served_name": "demo",
    "flags": {"sim-start-time": 0.2},
}


def serving(port: int = 8000, **gateway: Any) -> dict[str, Any]:
    return {
        "profiles": {"only": PROFILE},
        "serve": {"listen": f"127.0.0.1:{port}", "profile": "only", **gateway},
    }


@dataclass
class Operator:
    """Runs `opsctl provision` on one host, from a folder of its own."""

    host: Host
    folder: Path
    roles: list[RoleProgress] = field(default_factory=list)
    """What the last run told of each role."""

    def provision(
        self,
        *tags: str,
        check: bool = False,
        state: str = "present",
        serve: dict[str, Any] | None = None,
        **sections: dict[str, Any],
    ) -> HostReport:
        """Provision with some roles, or all of ROLES; `sections` change those of `provision`."""
        content = (serve or serving()) | {"provision": self.settings(sections)}
        file = self.folder / "opsctl.yaml"
        text = yaml.safe_dump(content)
        file.write_text(text)
        config = load((file,), environment={}).config
        self.roles.clear()
        report = provision(
            Request(config, text, state),
            hosts_of(config),
            Options(tags=tags or ROLES, check=check),
            self.folder / "state",
            Watcher(self.roles.append, lambda _: None, lambda _: False),
        )
        return report.hosts["host"]

    def settings(self, changes: dict[str, dict[str, Any]]) -> dict[str, Any]:
        sections: dict[str, dict[str, Any]] = {
            "hosts": {"host": self.host.configuration()},
            "engine_env": {"wheels": "/wheels", "sglang": "0.5.23"},
            "sm120_patches": {"names": [PATCH]},
            "opsctl_service": {"wheels": "/wheels"},
            "verify": {"timeout": 60, "allow": ALLOWED},
        }
        merged = {name: {**sections.get(name, {}), **x} for name, x in changes.items()}
        return sections | merged

    def sh(self, script: str) -> str:
        """What a shell script says; it must succeed."""
        return self.host.run(["sh", "-c", script]).stdout.strip()

    def changed(self) -> dict[str, int]:
        """Changes by role of the last run, none left out but zeros."""
        return {role.role: role.changed for role in self.roles if role.changed}

    def main_pid(self, unit: str = "opsctl") -> str:
        return self.sh(f"systemctl show -P MainPID {unit}")

    def patch(self) -> str:
        said = self.sh(
            f"/opt/opsctl/bin/opsctl patch status --python /opt/sglang/bin/python "
            f"--only {PATCH} -o json"
        )
        [state] = [x["state"] for x in json.loads(said)["patches"]]
        return str(state)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """A host that was provisioned and serves. Whoever takes it leaves it so."""
    with systemd_host("bookworm", binds={"/wheels": wheelhouse("3.11")}) as host:
        operator = Operator(host, tmp_path_factory.mktemp("operator"))
        assert operator.provision().verdict == "ok"
        yield operator


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Operator]:
    wheels = wheelhouse("3.11", sglang=("0.5.23", "0.5.22"))
    with systemd_host("bookworm", binds={"/wheels": wheels}) as host:
        yield Operator(host, tmp_path)


@pytest.mark.extended
def test_a_bare_host_serves_after_one_run_and_the_next_changes_nothing(tmp_path: Path) -> None:
    with systemd_host("trixie", binds={"/wheels": wheelhouse("3.13")}) as host:
        operator = Operator(host, tmp_path)
        written = "find /etc /opt /usr /var/lib /var/cache -newer /proc/1 -type f | sort"
        before = operator.sh(written)
        check = operator.provision(check=True)
        assert check.verdict == "pending"
        assert check.unknown == (
            "sm120_patches: unknown until opsctl and the engine's environment are on the host",
            "opsctl_service: unknown until opsctl and its configuration are on the host",
            "verify: unknown until opsctl is on the host",
        )
        assert operator.sh(written) == before
        assert operator.sh("ls /opt") == ""

        first = operator.provision()
        assert (first.verdict, first.failed, first.pending) == ("ok", 0, ())
        assert operator.patch() == "applied"
        with urllib.request.urlopen(f"http://127.0.0.1:{host.forward(8000)}/readyz") as answer:
            assert answer.status == 200

        second = operator.provision()
        assert (second.verdict, second.changed) == ("ok", 0)
        assert operator.provision(check=True).verdict == "unchanged"


def test_every_drift_is_repaired_and_reported(served: Operator) -> None:
    served.sh(
        "systemctl stop opsctl; systemctl disable -q opsctl;"
        "ln -sf /dev/null /etc/systemd/system/opsctl.service;"
        "echo '# mine' >> /etc/opsctl/opsctl.yaml;"
        "chmod 0666 /etc/opsctl/opsctl.yaml;"
        "chmod 0755 /var/lib/opsctl;"
        "chown root /var/cache/opsctl/*;"
        "echo '# mine' >> /opt/sglang/engine.env;"
        "rm -r /etc/systemd/system/opsctl.service.d/40-engine-env.conf /etc/needrestart;"
        f"/opt/opsctl/bin/opsctl patch revert --python /opt/sglang/bin/python --only {PATCH}"
    )
    told = served.provision(check=True)
    assert told.verdict == "pending"
    assert served.patch() == "applicable"
    assert served.sh("systemctl is-enabled opsctl || true") == "masked"

    report = served.provision()
    assert report.verdict == "ok"
    assert served.changed() == {
        "engine_env": 2,  # the caches' owner, the environment file
        "sm120_patches": 1,
        # Directory, configuration, drop-in, needrestart's folder and file, unit, enabled, started.
        "opsctl_service": 8,
    }
    assert served.patch() == "applied"
    assert served.sh("stat -c '%a %U %G' /etc/opsctl/opsctl.yaml") == "640 root opsctl"
    assert served.sh("stat -c '%a %U' /var/lib/opsctl") == "700 opsctl"
    assert served.sh("stat -c %U /var/cache/opsctl/*") == "opsctl"
    assert "mine" not in served.sh("cat /etc/opsctl/opsctl.yaml /opt/sglang/engine.env")
    assert served.sh("systemctl is-enabled opsctl") == "enabled"
    assert served.provision().changed == 0


def test_needrestart_is_told_to_leave_the_service_alone(served: Operator) -> None:
    """Perl reads the snippet as needrestart.conf does, and asks it as needrestart does."""
    script = (
        "our %nrconf; eval do { local(@ARGV, $/) = shift; <> }; die $@ if $@;"
        "for my $rc (@ARGV) { for my $re (keys %{$nrconf{override_rc}}) {"
        ' print "$rc $nrconf{override_rc}{$re}\\n" if $rc =~ /$re/ } }'
    )
    snippet = "/etc/needrestart/conf.d/opsctl.conf"
    units = ("opsctl.service", "opsctl@one.service", "opsctl-other.service", "ssh.service")
    said = served.host.run(["perl", "-e", script, snippet, *units]).stdout.splitlines()
    assert said == ["opsctl.service 0", "opsctl@one.service 0"]


def test_a_changed_configuration_waits_until_somebody_restarts(served: Operator) -> None:
    changed = serving(gateway={"hold": {"requests": 7}})
    pid = served.main_pid()
    report = served.provision("opsctl_service", serve=changed)
    assert "requests: 7" in served.sh("cat /etc/opsctl/opsctl.yaml")
    assert served.main_pid() == pid
    [note] = report.pending
    assert note.startswith("opsctl.service still runs with what was there before")
    assert "/etc/opsctl/opsctl.yaml" in note

    again = served.provision("opsctl_service", serve=changed)
    assert (again.changed, again.pending) == (0, (note,))

    served.sh("systemctl restart opsctl")
    assert served.provision("opsctl_service", serve=changed).pending == ()
    assert served.provision("opsctl_service", "verify").verdict == "ok"


@pytest.mark.extended
def test_a_change_that_was_taken_back_asks_for_no_restart(served: Operator) -> None:
    asked = {"opsctl_service": {"restart": "if-changed"}}
    served.provision("opsctl_service", **asked)
    pid = served.main_pid()
    served.sh("sed -i s/8000/8001/ /etc/opsctl/opsctl.yaml")
    report = served.provision("opsctl_service", **asked)
    assert report.changed == 1
    assert (served.main_pid(), report.pending) == (pid, ())


def test_a_changed_configuration_restarts_when_that_is_asked_for(served: Operator) -> None:
    changed = serving(gateway={"hold": {"requests": 8}})
    pid = served.main_pid()
    asked = {"opsctl_service": {"restart": "if-changed"}}
    report = served.provision("opsctl_service", "verify", serve=changed, **asked)
    assert (report.verdict, report.pending) == ("ok", ())
    assert served.main_pid() not in {pid, "0"}
    assert served.provision("opsctl_service", serve=changed, **asked).changed == 0
    assert served.provision("opsctl_service", "verify", **asked).verdict == "ok"


def test_a_configuration_that_the_host_refuses_replaces_nothing(served: Operator) -> None:
    before = served.sh("cat /etc/opsctl/opsctl.yaml")
    served.host.write("/etc/opsctl/conf.d/other.yaml", "serve: {listen: nonsense}\n")
    changed = serving(gateway={"hold": {"requests": 9}})
    report = served.provision("opsctl_service", serve=changed)
    served.sh("rm -r /etc/opsctl/conf.d")
    assert report.verdict == "failed"
    assert served.sh("cat /etc/opsctl/opsctl.yaml") == before
    assert served.provision("opsctl_service", "verify").verdict == "ok"


@pytest.mark.extended
def test_a_service_that_cannot_start_is_told_with_its_own_words(served: Operator) -> None:
    served.sh(
        "systemctl stop opsctl; systemd-run -q --unit=squatter /usr/bin/python3 -m http.server "
        "--bind 127.0.0.1 8000; while ! ss -Hltn sport = 8000 | grep -q .; do :; done"
    )
    report = served.provision("opsctl_service", "verify", verify={"timeout": 600})
    assert report.verdict == "failed"
    assert "exit code 4" in report.why[0]
    assert "8000" in report.why[0]
    served.sh("systemctl stop squatter")
    assert served.provision("opsctl_service", "verify").verdict == "ok"


@pytest.mark.extended
def test_a_doctors_finding_that_is_not_allowed_is_no_success(served: Operator) -> None:
    report = served.provision("verify", verify={"allow": []})
    assert report.verdict == "failed"
    found = {why.split(":")[1].strip() for why in report.why}
    assert {"toolkit", "build-tools"} <= found <= set(ALLOWED)


@pytest.mark.extended
def test_removal_takes_all_that_was_installed_and_leaves_models_and_logs(bare: Operator) -> None:
    bare.host.write("/models/tiny/config.json", "{}")
    bare.provision(model_store={"models": {"/models/tiny": {}}})
    bare.provision(state="absent", check=True)
    assert bare.sh("systemctl is-active opsctl") == "active"
    report = bare.provision(state="absent")
    assert (report.failed, report.pending) == (0, ())
    left = "ls -Ad /opt/* /etc/systemd/system/*opsctl* /etc/opsctl /var/cache/opsctl"
    left += " /etc/needrestart/conf.d/* 2>/dev/null"
    assert bare.sh(f"{left} || true") == ""
    assert bare.sh("systemctl is-active opsctl || true") == "inactive"
    assert bare.sh("cat /models/tiny/config.json") == "{}"
    assert "events.jsonl" in bare.sh("ls /var/lib/opsctl")
    assert bare.provision(state="absent").changed == 0


@pytest.mark.extended
def test_an_environment_is_exchanged_whole_or_not_at_all(bare: Operator) -> None:
    def installed(package: str = "sglang") -> str:
        script = f"import importlib.metadata as m; print(m.version('{package}'))"
        return bare.sh(f'/opt/sglang/bin/python -c "{script}"')

    bare.provision("engine_env", "opsctl_service", engine_env={"sglang": "0.5.22"})
    first = bare.sh("readlink /opt/sglang")
    failed = bare.provision("engine_env", engine_env={"sglang": "0.5.21"})
    assert failed.verdict == "failed"
    assert "sglang==0.5.21" in failed.why[0]
    assert bare.sh("ls -d /opt/sglang*").split() == ["/opt/sglang", f"/opt/{first}"]

    bare.sh("systemd-run -q --unit=engine /opt/sglang/bin/python -c 'import time; time.sleep(999)'")
    waiting = bare.provision("engine_env", "sm120_patches")
    assert (installed(), waiting.failed) == ("0.5.22", 0)
    [note] = waiting.pending
    assert note.startswith("/opt/sglang: a new environment is ready and waits for a restart: pid")
    assert bare.provision("engine_env", "sm120_patches").changed == 0

    bare.sh("systemctl stop engine")
    assert bare.provision("engine_env").pending == ()
    assert (installed(), bare.patch()) == ("0.5.23", "applied")
    assert len(bare.sh("ls -d /opt/sglang-*").split()) == 2

    bare.provision("engine_env", engine_env={"sglang": "0.5.22", "wheels": "/nowhere"})
    assert (installed(), bare.sh("readlink /opt/sglang")) == ("0.5.22", first)

    bare.sh("/opt/sglang/bin/python -m pip -q uninstall -y flashinfer-python")
    bare.provision("engine_env", engine_env={"sglang": "0.5.22"})
    assert installed("flashinfer-python") == "0.7.1"
    assert bare.provision("engine_env", engine_env={"sglang": "0.5.22"}).changed == 0


@pytest.mark.extended
def test_patches_never_change_files_under_a_running_engine(bare: Operator) -> None:
    bare.provision("engine_env", "opsctl_service")
    bare.sh("systemd-run -q --unit=engine /opt/sglang/bin/python -c 'import time; time.sleep(999)'")
    report = bare.provision("sm120_patches")
    [note] = report.pending
    assert note.startswith(f"patches {PATCH} wait for a restart: pid")
    assert (report.changed, report.failed, bare.patch()) == (0, 0, "applicable")
    bare.sh("systemctl stop engine")
    report = bare.provision("sm120_patches")
    assert (report.changed, report.pending, bare.patch()) == (1, (), "applied")
    patched = "sglang/srt/distributed/device_communicators/torch_symm_mem.py"
    bare.sh(f"echo '# mine' >> /opt/sglang/lib/python3.11/site-packages/{patched}")
    report = bare.provision("sm120_patches")
    assert report.verdict == "failed"
    assert "changed by somebody else" in report.why[0]


@pytest.mark.extended
def test_two_engines_of_one_host_are_two_instances(bare: Operator) -> None:
    for name, port in (("left", 8001), ("right", 8002)):
        (bare.folder / f"{name}.yaml").write_text(yaml.safe_dump(serving(port)))
    files = {name: str(bare.folder / f"{name}.yaml") for name in ("left", "right")}
    report = bare.provision(opsctl_service={"instances": files})
    assert report.verdict == "ok"
    for port in (8001, 8002):
        with urllib.request.urlopen(f"http://127.0.0.1:{bare.host.forward(port)}/readyz") as answer:
            assert answer.status == 200
    assert bare.provision(opsctl_service={"instances": files}).changed == 0
    bare.sh("systemctl stop opsctl@left; ln -s /dev/null /etc/systemd/system/opsctl@left.service")
    right = bare.main_pid("opsctl@right")
    assert bare.provision(opsctl_service={"instances": files}).verdict == "ok"
    assert bare.main_pid("opsctl@right") == right
    removed = bare.provision(state="absent", opsctl_service={"instances": files})
    assert removed.failed == 0
    assert bare.sh("systemctl list-units --all --plain --no-legend 'opsctl@*.service'") == ""


DOWNLOADER = """#!/bin/sh
# Stands in for `hf`: half of the file in each call, and a fault after the first half.
printf '%s\\n' "$0 $*" >>/srv/calls
test "$HF_TOKEN" = canary-5d1c && echo "token seen" >>/srv/calls
mkdir -p /models/big && cd /models/big
echo '{}' >config.json
if test -e model.safetensors; then cat /srv/second >>model.safetensors; exit 0; fi
cat /srv/first >model.safetensors
echo "connection lost" >&2; exit 1
"""


@pytest.mark.extended
def test_a_model_is_downloaded_goes_on_where_it_was_and_the_token_is_told_to_nobody(
    bare: Operator,
) -> None:
    header = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    bare.host.write("/srv/first", len(header).to_bytes(8, "little") + header)
    bare.host.write("/srv/second", b"\0\0\0\0")
    bare.host.write("/opt/sglang/bin/hf", DOWNLOADER, mode=0o755)
    bare.host.write("/etc/opsctl/hf-token", "canary-5d1c\n", mode=0o600)
    models = {"/models/big": {"source": "maker/big", "revision": "v1"}}

    untold = bare.provision("model_store", model_store={"models": models})
    assert untold.pending == ("the checkpoint /models/big is not whole: the folder is not there",)

    wanted = {"models": models, "download": True}
    broken = bare.provision("model_store", model_store=wanted)
    assert broken.verdict == "failed"
    assert "connection lost" in broken.why[0]
    done = bare.provision("model_store", model_store=wanted)
    assert (done.failed, done.pending) == (0, ())
    calls = bare.sh("cat /srv/calls").splitlines()
    call = "/opt/sglang/bin/hf download maker/big --local-dir /models/big --revision v1"
    assert calls == [call, "token seen"] * 2
    assert bare.provision("model_store", model_store=wanted).changed == 0
    logs = "".join(x.read_text() for x in bare.folder.rglob("*") if x.is_file())
    assert "canary-5d1c" not in logs + bare.sh("cat /var/lib/opsctl-provision/fetch/*")
