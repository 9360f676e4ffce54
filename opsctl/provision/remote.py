"""Asks opsctl on a provisioned host over ssh."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opsctl.config.provision import HostConfig
from opsctl.errors import PreconditionError

DEADLINE = 180.0
"""Seconds for an answer; a hung driver takes its share of it."""


def ask(host: HostConfig, argv: Sequence[str]) -> dict[str, Any]:
    """Run a command on a host and return the JSON document it prints, whatever its exit code.

    Raises PreconditionError where the host does not answer, or not with a document.
    """
    command = shlex.join(argv if host.user == "root" else ["sudo", "-n", *argv])
    line = list(argv) if host.address is None else [*ssh(host), command]
    try:
        done = subprocess.run(
            line,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise PreconditionError(f"{host.address}: {error}") from error
    try:
        document = json.loads(done.stdout)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise PreconditionError(
            f"{host.address or 'this machine'}: no answer of {argv[0]}: {said[-1]}",
            hint="`opsctl provision` installs it",
        )
    return document


def ssh(host: HostConfig) -> list[str]:
    """Return the ssh command that reaches a host, as Ansible does, and never asks."""
    line = ["ssh", "-p", str(host.port), "-o", "BatchMode=yes", "-o", "ConnectTimeout=20"]
    if host.identity_file:
        line += ["-i", str(Path(host.identity_file).expanduser())]
    if host.known_hosts:
        line += ["-o", f"UserKnownHostsFile={Path(host.known_hosts).expanduser()}"]
    return [*line, f"{host.user}@{host.address}"]
