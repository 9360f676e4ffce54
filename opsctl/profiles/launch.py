"""From a launch profile to the exact command line and environment of its engine."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from opsctl.config.schema import LaunchProfile
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


def command(
    profile: LaunchProfile,
    *,
    port: int,
    caller_environment: Mapping[str, str],
    host: str = "127.0.0.1",
) -> Command:
    """The engine's command; raises ConfigError when a referenced secret cannot be read."""
    interpreter = _interpreter(profile)
    argv = (interpreter, "-m", MODULES[profile.engine], *_owned(profile, host, port))
    environment = base_environment(interpreter, caller_environment)
    for name, value in profile.environment.items():
        if value is None or value == "":
            environment.pop(name, None)
        elif isinstance(value, str):
            environment[name] = value
        else:
            environment[name] = resolve(value, environment=caller_environment)
    return Command((*argv, *arguments(profile.flags), "--enable-metrics"), environment)


def _interpreter(profile: LaunchProfile) -> str:
    if profile.python:
        # Not resolved: the symlink in a virtual environment is what makes it one.
        return str(Path(profile.python).expanduser())
    return sys.executable


def _owned(profile: LaunchProfile, host: str, port: int) -> Iterator[str]:
    if profile.model:
        yield from ("--model-path", profile.model)
    yield from ("--host", host, "--port", str(port))
    if profile.served_name:
        yield from ("--served-model-name", profile.served_name)
    if profile.draft_model:
        yield from ("--speculative-draft-model-path", profile.draft_model)


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


def shell(command: Command) -> str:
    """One line to paste into a shell that starts exactly this command, values quoted."""
    variables = (shlex.quote(f"{k}={v}") for k, v in sorted(command.environment.items()))
    return " ".join(("env", "-i", *variables, shlex.join(command.argv)))
