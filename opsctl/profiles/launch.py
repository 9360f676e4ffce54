"""From a launch profile to the exact command line and environment of its engine."""

from __future__ import annotations

import os
import shlex
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import opsctl
from opsctl.config.names import expand_home, looks_secret
from opsctl.config.schema import (
    CredentialSecret,
    EnvSecret,
    FileSecret,
    LaunchProfile,
    Secret,
)
from opsctl.config.secrets import resolve
from opsctl.profiles.flags import arguments

MODULES = {"sglang": "sglang.launch_server", "simulated": "opsctl.engine.simulated"}

BASE_VARIABLES = (
    "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR",
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR",
)  # fmt: skip
"""Variables (and every `LC_*`) that an engine gets from opsctl's own environment.

Nothing else is inherited: a variable exported in one shell, or set by the other profile, must not
change an engine's speed unseen. CUDA_HOME, LD_LIBRARY_PATH, NCCL_* and the like belong into the
profile, where `opsctl profile diff` shows them and the fingerprint counts them.
"""

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Command:
    """What is started: arguments and the whole environment."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Plan:
    """A command whose secrets are still references, so that it can be shown."""

    argv: tuple[str, ...]
    environment: Mapping[str, str | Secret]


def command(
    profile: LaunchProfile,
    *,
    port: int,
    caller_environment: Mapping[str, str],
    host: str = "127.0.0.1",
) -> Command:
    """The engine's command; raises SecretError (exit 78) when a secret cannot be read."""
    planned = plan(profile, port=port, caller_environment=caller_environment, host=host)
    environment = {
        name: value if isinstance(value, str) else resolve(value, environment=caller_environment)
        for name, value in planned.environment.items()
    }
    return Command(planned.argv, environment)


def plan(
    profile: LaunchProfile,
    *,
    port: int,
    caller_environment: Mapping[str, str],
    host: str = "127.0.0.1",
) -> Plan:
    """The same without reading any secret."""
    home = caller_environment.get("HOME")
    interpreter = expand_home(profile.python, home) if profile.python else sys.executable
    argv = (
        *(interpreter, "-m", MODULES[profile.engine]),
        *_owned(profile, host, port, home),
        *arguments(profile.flags),
        "--enable-metrics",
    )
    environment: dict[str, str | Secret] = dict(base_environment(interpreter, caller_environment))
    if profile.engine == "simulated" and not profile.python:
        environment |= _same_opsctl()
    for name, value in profile.environment.items():
        if value is None or value == "":
            environment.pop(name, None)
        else:
            environment[name] = value
    return Plan(argv, environment)


def _same_opsctl() -> dict[str, str]:
    """What makes our interpreter find this very opsctl, also when it runs from a checkout."""
    root = str(Path(opsctl.__file__).parent.parent)
    return {} if root == sysconfig.get_path("purelib") else {"PYTHONPATH": root}


def _owned(profile: LaunchProfile, host: str, port: int, home: str | None) -> Iterator[str]:
    if profile.model:
        yield from ("--model-path", expand_home(profile.model, home))
    yield from ("--host", host, "--port", str(port))
    if profile.served_name:
        yield from ("--served-model-name", profile.served_name)
    if profile.draft_model:
        yield from ("--speculative-draft-model-path", expand_home(profile.draft_model, home))


def base_environment(interpreter: str, caller: Mapping[str, str]) -> dict[str, str]:
    """The documented base set, and a PATH that starts with the interpreter's own directory.

    SGLang calls `ninja` and other tools of its environment by name; without its `bin` in PATH it
    works in an activated shell and fails under systemd.
    """
    environment = {
        name: value
        for name, value in caller.items()
        if value and (name in BASE_VARIABLES or name.startswith("LC_"))
    }
    inherited = caller.get("PATH") or DEFAULT_PATH
    own = str(Path(interpreter).parent) if os.sep in interpreter else ""
    parts = [own, *(part for part in inherited.split(":") if part != own)]
    environment["PATH"] = ":".join(part for part in parts if part)
    return environment


def shell(command: Command | Plan) -> str:
    """One line to paste into a shell that starts exactly this command, values quoted.

    Secrets of a plan become expressions that the shell reads when the line is run; literals that
    look like secrets are taken from a variable of the same name.
    """
    variables = (_assignment(name, value) for name, value in sorted(command.environment.items()))
    return " ".join(("env", "-i", *variables, shlex.join(command.argv)))


def _assignment(name: str, value: str | Secret) -> str:
    match value:
        case str():
            masked = looks_secret(name)
            return f'{name}="${{{name}:?}}"' if masked else shlex.quote(f"{name}={value}")
        case EnvSecret():
            return f'{name}="${{{value.env}:?}}"'
        case FileSecret():
            path = shlex.quote(value.file)
            path = f'"$HOME"/{shlex.quote(value.file[2:])}' if value.file[:2] == "~/" else path
        case CredentialSecret():
            path = f'"$CREDENTIALS_DIRECTORY"/{shlex.quote(value.credential)}'
    return f'{name}="$(head -n 1 -- {path})"'
