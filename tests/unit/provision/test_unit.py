"""The unit that a configuration asks for."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl.config.load import load_text
from opsctl.config.schema import Config
from opsctl.errors import UsageError
from opsctl.provision import unit_verify
from opsctl.provision.unit import Service, UnitFile, render
from opsctl.provision.unit_service import service_of
from opsctl.provision.unit_words import command, word

PROFILE = {
    "python": "/opt/sglang/bin/python",
    "model": "/models/m",
    "served_name": "m",
}
ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not here")


def config_of(profile: Mapping[str, Any] = {}, **more: Any) -> Config:
    document = {"profiles": {"p": {**PROFILE, **profile}}, "serve": {"profile": "p"}, **more}
    return load_text(yaml.safe_dump(document), name="opsctl.yaml", environment={}).config


def service(config: Config, **changes: Any) -> Service:
    given: dict[str, Any] = {
        "config": config,
        "config_path": "/etc/opsctl/opsctl.yaml",
        "state_dir": "/var/lib/opsctl",
        "user": "opsctl",
        "opsctl": (sys.executable,),
        "home": "/var/lib/opsctl",
    }
    return Service(**given | changes)


def instance(config: Config, name: str, **changes: Any) -> Service:
    places = {"config_path": f"/etc/opsctl/{name}.yaml", "state_dir": f"/var/lib/opsctl/{name}"}
    return service(config, **places, instance=name, **changes)


def settings(text: str) -> dict[str, list[str]]:
    """Every setting of a unit with its values, in order; comments and sections left out."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def unit(config: Config, **changes: Any) -> dict[str, list[str]]:
    return settings(render(service(config, **changes))[0].content)


def test_stop_waits_longer_than_the_published_inequality() -> None:
    limits = {"drain": "7m", "stop": "100s", "release": "50s", "start": "40m"}
    found = unit(config_of({"timeouts": limits}))
    assert int(found["TimeoutStopSec"][0]) > 420 + 100 + 3 * (50 + 21)


def test_the_slowest_profile_counts_not_the_first() -> None:
    slow = {**PROFILE, "timeouts": {"drain": "1h", "start": "2h"}}
    profiles = {"profiles": {"p": PROFILE, "slow": slow}}
    found = unit(config_of(**profiles))
    assert int(found["TimeoutStopSec"][0]) > 3600
    # The first start fails, and the slow one is the fallback.
    assert int(found["TimeoutStartSec"][0]) > 1800 + 7200


def test_a_start_has_time_for_the_first_engine_and_its_fallback() -> None:
    found = unit(config_of({"timeouts": {"start": "10m", "stop": "90s", "release": "60s"}}))
    assert int(found["TimeoutStartSec"][0]) > 600 + 90 + 3 * (60 + 21) + 600


def test_exit_codes_that_another_start_cannot_cure_do_not_start_it_again() -> None:
    documented = (Path(__file__).parents[3] / "docs/reference/exit-codes.md").read_text("utf-8")
    [codes] = re.findall(r"^    RestartPreventExitStatus=(.*)$", documented, re.MULTILINE)
    assert unit(config_of())["RestartPreventExitStatus"] == [codes]


def test_programs_of_the_engine_and_its_compiler_are_found_before_those_of_the_system() -> None:
    config = config_of({"environment": {"CUDA_HOME": "/usr/local/cuda-13.0"}})
    environment = unit(config)["Environment"]
    [path] = [value for value in environment if value.startswith("PATH=")]
    places = path.removeprefix("PATH=").split(":")
    assert places[:2] == ["/opt/sglang/bin", "/usr/local/cuda-13.0/bin"]
    assert "/usr/bin" in places
    assert "CUDA_HOME=/usr/local/cuda-13.0" in environment


def test_a_secret_is_named_to_systemd_and_never_written() -> None:
    environment = {
        "HF_TOKEN": {"credential": "hf"},
        "OTHER_TOKEN": {"env": "OTHER"},
        "PLAIN": "canary-value",
    }
    config = config_of({"environment": environment}, serve={"profile": "p"})
    text = render(service(config))[0].content
    found = settings(text)
    assert found["LoadCredential"] == ["hf:/etc/opsctl/credentials/hf"]
    assert found["EnvironmentFile"] == ["-/etc/opsctl/opsctl.env"]
    assert "canary-value" not in text


def test_no_secret_no_credential_and_no_environment_file() -> None:
    found = unit(config_of())
    assert "LoadCredential" not in found
    assert "EnvironmentFile" not in found


def test_what_the_engine_writes_to_is_writable_and_nothing_else() -> None:
    environment = {"FLASHINFER_WORKSPACE_BASE": "/fast/kernels", "NCCL_GRAPH_FILE": "/etc/graph"}
    found = unit(config_of({"environment": environment}))
    assert found["ProtectSystem"] == ["strict"]
    assert found["ReadWritePaths"] == ["-/var/cache/opsctl -/fast/kernels"]
    assert found["StateDirectory"] == ["opsctl"]


def test_a_state_directory_of_its_own_place_is_writable() -> None:
    found = unit(config_of(), state_dir="/srv/opsctl", home="/srv/opsctl")
    assert "StateDirectory" not in found
    assert "-/srv/opsctl" in found["ReadWritePaths"][0].split()


@pytest.mark.parametrize(
    ("changes", "profile", "wanted"),
    [
        ({}, {}, "yes"),
        ({}, {"model": "/home/some-one/models/m"}, "read-only"),
        ({"home": "/home/joe"}, {}, "read-only"),
        ({"home": "/home/joe"}, {"python": "~/sglang/bin/python"}, "read-only"),
        ({"opsctl": ("/root/my-venv/bin/opsctl",)}, {}, "read-only"),
        ({}, {"model": "/homes/m"}, "yes"),
    ],
)
def test_homes_are_hidden_unless_the_engine_lives_in_one(
    changes: dict[str, Any], profile: dict[str, Any], wanted: str
) -> None:
    assert unit(config_of(profile), **changes)["ProtectHome"] == [wanted]


def test_a_user_without_a_home_gets_one_for_the_caches_and_the_disk_stays_read_only() -> None:
    found = unit(config_of(), home="/")
    assert "HOME=/var/lib/opsctl" in found["Environment"]
    assert "-/" not in found["ReadWritePaths"][0].split()


def test_models_on_a_disk_of_their_own_are_waited_for() -> None:
    config = config_of({"draft_model": "/drafts/d"})
    assert unit(config)["RequiresMountsFor"] == ["/models/m /drafts/d"]


def test_a_model_of_the_hub_is_no_path() -> None:
    assert "RequiresMountsFor" not in unit(config_of({"model": "org/name"}))


@pytest.mark.parametrize("setting", ["MemoryDenyWriteExecute", "PrivateDevices", "IPAddressDeny"])
def test_hardening_that_breaks_cuda_or_clients_is_left_out(setting: str) -> None:
    # https://github.com/vllm-project/vllm/issues/12474
    assert setting not in unit(config_of())


def test_devices_of_the_driver_can_be_opened_although_others_cannot() -> None:
    # ProtectClock= allows one device by itself, after which all others are refused.
    found = unit(config_of())
    assert found["DevicePolicy"] == ["closed"]
    assert found["DeviceAllow"] == ["char-nvidia* rw"]


def test_address_families_that_nccl_needs_are_kept() -> None:
    [families] = unit(config_of())["RestrictAddressFamilies"]
    assert {"AF_UNIX", "AF_NETLINK", "AF_INET", "AF_INET6"} == set(families.split())


def test_serve_is_asked_for_the_watchdog_only_where_a_pair_is_configured() -> None:
    assert "--auto-spec" not in unit(config_of())["ExecStart"][0]
    assert unit(config_of(), auto_spec=True)["ExecStart"][0].endswith(" --auto-spec")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("/plain/path-1.0@x", "/plain/path-1.0@x"),
        ("/with space", '"/with space"'),
        ("/100%", "/100%%"),
        ('/a"b\\c', '"/a\\"b\\\\c"'),
    ],
)
def test_paths_are_written_as_systemd_reads_them(text: str, written: str) -> None:
    assert word(text) == written


def test_a_dollar_is_doubled_only_where_it_would_begin_a_variable() -> None:
    assert command("/a$b", "x $y") == '/a$b "x $$y"'
    assert word("/a$b") == "/a$b"


@pytest.mark.parametrize("text", ["", "a\nb", "a\x00b", "a\tb"])
def test_what_cannot_stand_in_a_unit_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        word(text)


# --- instances ---------------------------------------------------------------------------------


def by_name(files: tuple[UnitFile, ...]) -> dict[str, str]:
    return {Path(file.path).name: file.content for file in files}


def test_instances_share_one_template_whatever_they_serve() -> None:
    slow = config_of({"model": "/models/other", "timeouts": {"drain": "1h"}})
    a = by_name(render(instance(config_of(), "a")))
    b = by_name(render(instance(slow, "b", auto_spec=True, user="other")))
    assert a["opsctl@.service"] == b["opsctl@.service"]
    assert a["50-opsctl.conf"] != b["50-opsctl.conf"]


def test_an_instance_has_its_own_configuration_state_and_options() -> None:
    files = render(instance(config_of(), "left", auto_spec=True))
    text = by_name(files)
    template, own = settings(text["opsctl@.service"]), settings(text["50-opsctl.conf"])
    assert template["ExecStart"][0].endswith(
        "serve --config /etc/opsctl/%i.yaml $OPSCTL_SERVE_OPTIONS"
    )
    assert own["StateDirectory"] == ["opsctl/left"]
    assert {"OPSCTL_STATE_DIR=/var/lib/opsctl/left", "OPSCTL_SERVE_OPTIONS=--auto-spec"} <= set(
        own["Environment"]
    )
    paths = [file.path for file in files]
    assert "/etc/systemd/system/opsctl@left.service.d/50-opsctl.conf" in paths


def test_an_instance_that_nobody_installed_does_not_run_as_root() -> None:
    template = settings(by_name(render(instance(config_of(), "a")))["opsctl@.service"])
    assert template["User"] == ["opsctl"]
    assert template["AssertPathExists"] == [
        "/etc/systemd/system/opsctl@%i.service.d/50-opsctl.conf"
    ]


def test_all_instances_share_one_lock() -> None:
    folders = []
    for name in ("a", "b"):
        files = by_name(render(instance(config_of(), name)))
        assert "f /run/lock/opsctl/switch.lock 0644 root root" in files["opsctl.conf"]
        folders += [
            value
            for value in settings(files["opsctl@.service"])["Environment"]
            if value.startswith("OPSCTL_LOCK_DIR=")
        ]
    assert folders == ["OPSCTL_LOCK_DIR=/run/lock/opsctl"] * 2


# --- what the command line and the configuration ask for -----------------------------------------


def asked(config: Config, **changes: Any) -> Service:
    return service_of(config, **{"config_path": "/etc/opsctl/opsctl.yaml", **changes})


def test_what_is_not_said_comes_from_the_configuration() -> None:
    provision = {"opsctl_service": {"user": "serving", "state_dir": "/srv/state"}}
    found = asked(config_of(provision=provision))
    assert (found.user, found.state_dir) == ("serving", "/srv/state")
    assert asked(config_of(provision=provision), config_path="/etc/opsctl/a.yaml",
                 instance="a").state_dir == "/srv/state/a"  # fmt: skip


def test_the_state_directory_of_the_configuration_is_where_serve_keeps_its_state() -> None:
    assert asked(config_of(state_dir="/srv/x")).state_dir == "/srv/x"


def test_a_pair_of_profiles_is_switched_automatically_unless_told_otherwise() -> None:
    pair = {
        "profiles": {
            "p": {**PROFILE, "flags": {"speculative-algorithm": "EAGLE3"}, "draft_model": "/d"},
            "q": PROFILE,
        },
        "auto_spec": {"speculative": "p", "baseline": "q"},
    }
    assert asked(config_of(**pair)).auto_spec
    assert not asked(config_of(**pair), auto_spec=False).auto_spec
    off = {"opsctl_service": {"auto_spec": False}}
    assert not asked(config_of(**pair, provision=off)).auto_spec
    assert not asked(config_of()).auto_spec


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"user": "root"}, "root"),
        ({"state_dir": "relative"}, "absolute"),
        ({"auto_spec": True}, "auto_spec.speculative"),
        ({"instance": "a"}, "a.yaml"),
        ({"instance": "../a", "config_path": "/etc/../a.yaml"}, "instance"),
    ],
)
def test_what_no_unit_can_be_made_of_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        asked(config_of(), **changes)


# --- systemd's own judgement ---------------------------------------------------------------------

WIDE: dict[str, Any] = {
    "model": "/home/some-one/models/100% mine",
    "environment": {"HF_TOKEN": {"credential": "hf"}, "KEY": {"env": "X"}, "HF_HOME": "/a b/c"},
}


@needs_systemd
@pytest.mark.parametrize("name", ["", "left"])
@pytest.mark.parametrize("profile", [{}, WIDE], ids=["plain", "wide"])
def test_systemd_reads_every_line_and_finds_it_closed_enough(
    name: str, profile: dict[str, Any], tmp_path: Path
) -> None:
    config = config_of(profile)
    wanted = instance(config, name) if name else service(config)
    for file in render(wanted):
        path = tmp_path / file.path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.content)
        path.chmod(0o644)
    checks = unit_verify.verify(wanted, render(wanted), tmp_path)
    assert {(check.id, check.why) for check in checks if check.status != "ok"} == set()
    assert {"syntax", "exposure"} <= {check.id for check in checks}


@needs_systemd
@pytest.mark.parametrize(
    ("old", "new", "failing"),
    [
        ("KillMode=mixed", "KillMode=mixt", "syntax"),
        ("Restart=on-failure", "Restrat=on-failure", "syntax"),
        ("ExecStart=/", "ExecStart=/nowhere/", "syntax"),
        ("NoNewPrivileges=yes\nCapabilityBoundingSet=\n", "", "exposure"),
        ("WatchdogSec=60s", "WatchdogSec=61s", "/etc/systemd/system/opsctl.service"),
    ],
)
def test_a_unit_that_somebody_edited_is_found(
    old: str, new: str, failing: str, tmp_path: Path
) -> None:
    wanted = service(config_of())
    for file in render(wanted):
        path = tmp_path / file.path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        assert old in file.content or "tmpfiles" in file.path
        path.write_text(file.content.replace(old, new))
        path.chmod(0o644)
    checks = {check.id: check for check in unit_verify.verify(wanted, render(wanted), tmp_path)}
    assert checks[failing].status == "fail", checks
    assert checks["/etc/systemd/system/opsctl.service"].status == "fail"


@needs_systemd
def test_values_with_odd_characters_arrive_at_systemd_as_they_were(tmp_path: Path) -> None:
    """`systemd-analyze verify` names the program it misses, as it has read it."""
    odd = "/no where/100%/$HOME/a;b"
    wanted = service(config_of(), opsctl=(odd,))
    path = tmp_path / "opsctl.service"
    path.write_text(render(wanted)[0].content)
    said = subprocess.run(
        [str(ANALYZE), "verify", "--recursive-errors=no", str(path)],
        capture_output=True,
        text=True,
        check=False,
    ).stderr
    assert odd in said
