"""Engines that run from an environment. Their ranks import late: a file that changes under them
is loaded by some and not by others.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from opsctl.gpu import names
from opsctl.gpu.model import HostProcess
from opsctl.patching.environment import MODULES, Environment
from opsctl.system import procfs

_NATIVE = ("sgl_kernel", *MODULES.values())
"""Folders below site-packages that only an engine maps files of."""


def running(environment: Environment) -> str | None:
    """Return pid and command of an engine that runs from the environment; None where none does.

    A program counts by SGLang's names and titles, or by the libraries of SGLang it has mapped.
    Other users' processes tell their command line only, unless root asks.
    """
    own = procfs.ancestors(os.getpid())
    for stat in procfs.snapshot().values():
        if stat.pid in own or stat.state in "ZX":
            continue
        title = procfs.title(stat.pid, stat.comm)
        mapped = procfs.mapped_files(stat.pid) or frozenset()
        if _is_engine(stat, title, mapped, environment.root):
            return f"pid {stat.pid} ({title})"
    return None


def _is_engine(stat: procfs.ProcessStat, title: str, mapped: frozenset[str], root: Path) -> bool:
    if any(path.startswith(f"{root}/{name}/") for path in mapped for name in _NATIVE):
        return True
    process = HostProcess(
        pid=stat.pid,
        start_time=stat.start_time,
        state=stat.state,
        ppid=stat.ppid,
        session=stat.session,
        group=stat.group,
        comm=stat.comm,
        title=title,
    )
    if not names.is_sglang(process):
        return False
    return any(path.startswith(f"{root}/") for path in mapped) or _started_from(process, root)


def _started_from(process: HostProcess, root: Path) -> bool:
    """Whether its interpreter, as it was called, lies beside these site-packages."""
    called = process.title.split(" ", 1)[0]
    if "/" not in called:  # in an activated environment
        called = shutil.which(called, path=procfs.environ_value(process.pid, "PATH") or "") or ""
    program = Path(called)
    if not program.is_absolute() or len(root.parents) < 3:
        return False
    return Path(os.path.realpath(program.parent)) == Path(os.path.realpath(root.parents[2] / "bin"))
