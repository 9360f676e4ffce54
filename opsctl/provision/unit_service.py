"""Which service a configuration and the command line ask for."""

from __future__ import annotations

import pwd
import re
import sys
from pathlib import Path, PurePosixPath

from opsctl.config.schema import Config
from opsctl.errors import UsageError
from opsctl.provision.unit import Service

_INSTANCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def service_of(
    config: Config,
    *,
    config_path: str,
    instance: str = "",
    state_dir: str | None = None,
    user: str | None = None,
    auto_spec: bool | None = None,
) -> Service:
    """The service, with what was not said taken from `provision.opsctl_service`.

    Raises UsageError for what no unit can be made of.
    """
    wanted = config.provision.opsctl_service
    name = user or wanted.user
    folder = state_dir or config.state_dir or wanted.state_dir
    if instance:
        folder = state_dir or config.state_dir or f"{wanted.state_dir}/{instance}"
        _check_instance(instance, config_path)
    if name == "root":
        raise UsageError(
            "an engine that answers the network does not run as root",
            hint="name a system user with --user",
        )
    if not folder.startswith("/"):
        raise UsageError(f"the state directory {folder!r} is not an absolute path")
    paired = bool(config.auto_spec.speculative and config.auto_spec.baseline)
    if auto_spec and not paired:
        raise UsageError("--auto-spec needs auto_spec.speculative and auto_spec.baseline")
    return Service(
        config=config,
        config_path=config_path,
        state_dir=str(PurePosixPath(folder)),
        user=name,
        opsctl=own_command(),
        home=home_of(name),
        instance=instance,
        auto_spec=paired and wanted.auto_spec if auto_spec is None else auto_spec,
    )


def _check_instance(instance: str, config_path: str) -> None:
    if not _INSTANCE.fullmatch(instance):
        raise UsageError(
            f"{instance!r} cannot name an instance",
            hint="letters, digits, `-`, `_` and `.`, starting with a letter or digit",
        )
    if PurePosixPath(config_path).name != f"{instance}.yaml":
        raise UsageError(
            f"the template opsctl@.service reads {instance}.yaml, not {config_path}",
            hint=f"name the configuration of this instance {instance}.yaml",
        )


def own_command() -> tuple[str, ...]:
    """The command that runs this very opsctl."""
    program = Path(sys.executable).with_name("opsctl")
    return (str(program),) if program.exists() else (sys.executable, "-m", "opsctl")


def home_of(user: str) -> str | None:
    """The user's home directory; None when there is no such user."""
    try:
        return pwd.getpwnam(user).pw_dir
    except KeyError:
        return None
