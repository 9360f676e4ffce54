"""What Ansible gets is what the configuration says, and what is worked out from it."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from opsctl.config.load import load_text
from opsctl.errors import PreconditionError, UsageError
from opsctl.provision.inventory import ROLES, Request, hosts, inventory, variables

TEXT = """
profiles:
  baseline:
    python: /opt/sglang/bin/python
    model: /models/kimi
    flags: {tp-size: 8}
  fused:
    extends: baseline
    draft_model: /models/kimi-draft
    requires_patches: [allreduce-fusion]
serve: {profile: baseline, listen: "127.0.0.1:8100"}
"""


def request(extra: str = "", state: str = "present") -> Request:
    text = TEXT + extra
    return Request(load_text(text, name="test", environment={}).config, text, state)


def test_without_hosts_this_machine_is_meant() -> None:
    asked = request()
    document = inventory(asked, hosts(asked.config))
    entry = document["all"]["hosts"]["localhost"]
    assert entry["ansible_connection"] == "local"
    assert entry["ansible_python_interpreter"] == "/usr/bin/python3"


def test_hosts_are_reached_as_configured(tmp_path: Path) -> None:
    extra = """
provision:
  hosts:
    a: {address: 192.0.2.1, port: 2222, user: ops, identity_file: ~/key, known_hosts: /etc/known}
    b: {address: 192.0.2.2}
"""
    asked = request(extra)
    found = inventory(asked, hosts(asked.config))["all"]["hosts"]
    assert found["a"] == {
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_connection": "ssh",
        "ansible_host": "192.0.2.1",
        "ansible_port": 2222,
        "ansible_user": "ops",
        "ansible_become": True,
        "ansible_ssh_private_key_file": str(Path("~/key").expanduser()),
        "ansible_ssh_common_args": "-o UserKnownHostsFile=/etc/known",
    }
    assert found["b"]["ansible_become"] is False
    assert list(hosts(asked.config, ["b"])) == ["b"]


def test_an_unknown_host_is_named_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="no host c") as caught:
        hosts(request().config, ["c"])
    assert caught.value.hint == "configured hosts: localhost"


def test_every_key_of_every_role_is_a_variable() -> None:
    found = variables(request("provision: {engine_env: {sglang: 0.5.14, wheels: /srv/w}}\n"))
    assert found["engine_env_sglang"] == "0.5.14"
    assert found["engine_env_wheels"] == "/srv/w"
    assert found["engine_env_flashinfer"] == "0.6.12", "the version that this SGLang pins"
    assert found["opsctl_state"] == "present"
    for role in ROLES:
        assert any(name.startswith(f"{role}_") for name in found)


def test_models_and_patches_come_from_the_profiles_and_from_the_section() -> None:
    extra = """
provision:
  sm120_patches: {names: [torch-symm-mem]}
  model_store: {models: {/models/kimi: {source: org/kimi}, /models/other: {}}}
"""
    found = variables(request(extra))
    assert found["sm120_patches_required"] == ["allreduce-fusion", "torch-symm-mem"]
    assert found["model_store_paths"] == [
        {"path": "/models/kimi", "source": "org/kimi", "revision": None},
        {"path": "/models/kimi-draft", "source": None, "revision": None},
        {"path": "/models/other", "source": None, "revision": None},
    ]


def test_the_host_gets_the_configuration_as_it_is_written() -> None:
    asked = request("# a comment\n")
    found = variables(asked)
    assert found["opsctl_service_instances"] == [{"name": "", "config_content": asked.text}]


def test_instances_bring_their_own_configurations(tmp_path: Path) -> None:
    for name in ("left", "right"):
        (tmp_path / f"{name}.yaml").write_text(f"# {name}\n")
    pairs = ", ".join(f"{x}: {tmp_path}/{x}.yaml" for x in ("left", "right"))
    found = variables(request(f"provision: {{opsctl_service: {{instances: {{{pairs}}}}}}}\n"))
    assert found["opsctl_service_instances"] == [
        {"name": "left", "config_content": "# left\n"},
        {"name": "right", "config_content": "# right\n"},
    ]
    assert found["verify_instances"] == ["left", "right"]


@pytest.mark.parametrize(
    ("content", "suffix"),
    [(b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n", "asc"), (b"\x98\x33", "gpg")],
)
def test_the_signing_key_travels_whole_and_named_by_its_kind(
    tmp_path: Path, content: bytes, suffix: str
) -> None:
    key = tmp_path / "key"
    key.write_bytes(content)
    found = variables(request(f"provision: {{nvidia_repo: {{key: {key}}}}}\n"))
    assert base64.b64decode(found["nvidia_repo_key_content"]) == content
    assert found["nvidia_repo_key_suffix"] == suffix


def test_a_file_that_is_not_there_is_told_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match=r"provision\.nvidia_repo\.key: .*none.*No such"):
        variables(request(f"provision: {{nvidia_repo: {{key: {tmp_path}/none}}}}\n"))
