"""A host is asked as Ansible reaches it, and its silence is told."""

from __future__ import annotations

import sys

import pytest

from opsctl.config.provision import HostConfig
from opsctl.errors import PreconditionError
from opsctl.provision.remote import ask, ssh

HERE = HostConfig()


def test_ssh_is_called_as_the_host_is_configured() -> None:
    host = HostConfig(address="192.0.2.1", port=2222, user="ops", known_hosts="/etc/known")
    assert ssh(host) == (
        ["ssh", "-p", "2222", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20"]
        + ["-o", "UserKnownHostsFile=/etc/known", "ops@192.0.2.1"]
    )


def test_a_document_counts_whatever_the_exit_code() -> None:
    script = "print('{\"checks\": []}'); raise SystemExit(4)"
    assert ask(HERE, [sys.executable, "-c", script]) == {"checks": []}


@pytest.mark.parametrize("text", ["", "[]", "no JSON"])
def test_anything_else_is_no_answer(text: str) -> None:
    with pytest.raises(PreconditionError, match=f"no answer of {sys.executable}"):
        ask(HERE, [sys.executable, "-c", f"print({text!r})"])


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(PreconditionError, match="no-such-program"):
        ask(HERE, ["/no-such-program"])
