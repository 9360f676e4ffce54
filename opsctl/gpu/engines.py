"""Engines that some opsctl of this host has recorded, and whether anybody still watches them.

The state file is another program's: whatever does not read as one is skipped. Its format is that
of opsctl/serve/remembered.py, read here on its own because the rooms are independent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from opsctl.config.state_dir import state_dir as default_state_dir
from opsctl.gpu import names
from opsctl.gpu.model import HostProcess, KnownEngine
from opsctl.system import procfs

_LOCK = ("run", "serve.lock")


def known(state_dirs: Sequence[Path]) -> tuple[KnownEngine, ...]:
    """The engines recorded in these state directories during this boot."""
    boot_id = procfs.boot_id()
    found = (_read(directory, boot_id) for directory in dict.fromkeys(state_dirs))
    return tuple(engine for engine in found if engine is not None)


def state_dirs(
    explicit: Iterable[str], environment: Mapping[str, str], processes: Mapping[int, HostProcess]
) -> tuple[Path, ...]:
    """Where to look for recorded engines, each directory once.

    The given ones, `OPSCTL_STATE_DIR` or this user's default, and that of every living opsctl
    whose lock file can be seen among its open files.
    """
    given = [default_state_dir(name, None, environment) for name in explicit]
    serving = [
        Path(name).parent.parent
        for process in processes.values()
        if names.is_opsctl(process)
        for name in procfs.open_files(process.pid) or ()
        if Path(name).parts[-2:] == _LOCK
    ]
    return tuple(dict.fromkeys([*given, default_state_dir(None, None, environment), *serving]))


def _read(directory: Path, boot_id: str) -> KnownEngine | None:
    try:
        document = json.loads((directory / "state.json").read_text(encoding="utf-8"))
        if not isinstance(document, dict) or document.get("boot_id") != boot_id:
            return None
        identity = json.loads(document["engine"]["identity"])
        return _engine(directory, document.get("pid"), identity, boot_id)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _engine(directory: Path, supervisor: object, data: Any, boot_id: str) -> KnownEngine | None:
    numbers = [data["pid"], data["start_time"], data["session"]]
    if any(type(number) is not int for number in numbers) or data["pid"] < 2:
        return None
    nonce, cgroup = data["nonce"], data.get("cgroup")
    if not isinstance(nonce, str) or not nonce or data["boot_id"] != boot_id:
        return None
    gone = _gone(directory, supervisor, data["pid"], data["start_time"])
    return KnownEngine(
        nonce=nonce,
        pid=data["pid"],
        start_time=data["start_time"],
        session=data["session"],
        cgroup=cgroup if isinstance(cgroup, str) else None,
        alive=not gone,
        where=str(directory),
        gone=" and ".join(gone),
        main_alive=not any(word.startswith("its main") for word in gone),
    )


def _gone(directory: Path, supervisor: object, pid: int, start_time: int) -> list[str]:
    gone = []
    if not _is_supervised(directory, supervisor):
        gone.append(f"its supervisor (pid {supervisor})")
    main = procfs.stat(pid)
    if main is None or main.start_time != start_time or main.state in "ZX":
        gone.append(f"its main process (pid {pid})")
    return gone


def _is_supervised(directory: Path, supervisor: object) -> bool:
    """Whether somebody serves from the directory: in doubt, yes.

    The lock is the proof. Where it cannot be seen, a living opsctl with the recorded number is
    taken for the one that was recorded.
    """
    if procfs.locked(directory.joinpath(*_LOCK)) is not None:
        return True
    if type(supervisor) is not int or supervisor < 1:
        return False
    entry = procfs.stat(supervisor)
    if entry is None or entry.state in "ZX":
        return False
    return "opsctl" in procfs.title(supervisor, entry.comm)
