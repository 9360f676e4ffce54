"""What can be known to fail before an engine loads for minutes, said in plain words."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from opsctl.config.schema import LaunchProfile
from opsctl.engine.client import EngineClient
from opsctl.errors import PreconditionError
from opsctl.system import ports as tcp
from opsctl.system.ports import free_port
from opsctl.system.threads import aside

__all__ = ["check", "check_files", "free_port"]

_LOOK_LIMIT = 5.0  # seconds
_LEAST_DISK = 64 << 20  # bytes for logs and state


async def check(profile: LaunchProfile, *, port: int, log_dir: Path) -> None:
    """Raise PreconditionError unless `profile` can be started on `port`, logging to `log_dir`."""
    await _in_time(profile, partial(_check_paths, profile, log_dir))
    await _check_port(port)


async def check_files(profile: LaunchProfile, *, log_dir: Path) -> None:
    """Interpreter, models and room for the log; raises PreconditionError.

    Asked before a running engine is given up for this profile. Room is not asked for again by
    `check`: after a crash, serving with a full disk is better than not serving.
    """
    await _in_time(profile, partial(_check_paths_and_room, profile, log_dir))


async def _in_time(profile: LaunchProfile, look: Callable[[], None]) -> None:
    """Look beside the event loop and with a deadline: the disk of a model may hang."""
    files = (profile.python, profile.model, profile.draft_model)
    try:
        await asyncio.wait_for(aside(look, key=files), _LOOK_LIMIT)
    except TimeoutError:
        raise PreconditionError(
            f"interpreter and model could not be looked at within {_LOOK_LIMIT:g} s: "
            + ", ".join(filter(None, files)),
            hint="see whether their file system hangs",
        ) from None


def _check_paths(profile: LaunchProfile, log_dir: Path) -> None:
    _check_profile(profile)
    _check_directory(log_dir)


def _check_paths_and_room(profile: LaunchProfile, log_dir: Path) -> None:
    _check_paths(profile, log_dir)
    free = shutil.disk_usage(log_dir).free
    if free < _LEAST_DISK:
        raise PreconditionError(
            f"only {free >> 20} MiB are free in {log_dir}", hint="make room for logs and state"
        )


def _check_profile(profile: LaunchProfile) -> None:
    _check_interpreter(profile)
    _check_model("model", profile.model, profile.engine)
    if profile.draft_model:
        _check_model("draft_model", profile.draft_model, profile.engine)


def _check_interpreter(profile: LaunchProfile) -> None:
    program = profile.python or (sys.executable if profile.engine == "simulated" else "python3")
    if shutil.which(program) is None:
        raise PreconditionError(
            f"the interpreter {program} does not exist or is not executable",
            hint="set the profile's `python` to the interpreter of the engine's environment",
        )


def _check_model(key: str, value: str, engine: str) -> None:
    """A name such as `org/model` may be in the engine's own cache; a path must be right."""
    if engine == "simulated" or not value.startswith(("/", "./", "../", "~")):
        return
    path = Path(value).expanduser()
    if not path.is_dir():
        raise PreconditionError(
            f"{key}: {value} is no directory", hint="check the path and that its disk is mounted"
        )
    if not (path / "config.json").is_file():
        raise PreconditionError(
            f"{key}: {value} has no config.json", hint="the download may be incomplete"
        )


def _check_directory(path: Path) -> None:
    if not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
        raise PreconditionError(
            f"{path} is not a directory opsctl may write to", hint="check --state-dir"
        )


async def _check_port(port: int) -> None:
    """SGLang finds a taken port only after it has loaded the model, and may hang then."""
    if tcp.is_free(port, ("127.0.0.1",)):
        return
    holders = await aside(partial(tcp.listeners, (port,)))
    holder = "; ".join(map(str, holders)) or f"port {port} is taken"
    model = await _foreign_engine(port)
    if model is not None:
        raise PreconditionError(
            f"another engine serves {model!r} there: {holder}",
            hint="stop that engine, or set serve.engine_port to another port",
        )
    raise PreconditionError(holder, hint="stop it, or set serve.engine_port to another port")


async def _foreign_engine(port: int) -> str | None:
    client = EngineClient(f"http://127.0.0.1:{port}", timeout=2.0)
    try:
        return await client.model_path()
    finally:
        await client.close()
