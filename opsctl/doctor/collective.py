"""Two ranks sum a tensor, with a deadline: the one proof that GPUs work together.

Capability tables said OK on hosts whose first all_reduce hung (NVIDIA/nccl issue 1999), so it is
tried: two processes of the engine's interpreter, in a cgroup where there can be one and in
sessions of their own, ended by SIGKILL in any case. Creates CUDA contexts, so it is never part of
the other checks.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from opsctl.doctor.collective_verdict import Rank, Run, Verdict, needs_second, outcome, verdict
from opsctl.profiles.launch import base_environment
from opsctl.system import cgroup
from opsctl.system.spawn import exit_code, spawn

PROGRAM = Path(__file__).parent / "rank" / "collective.py"
_TO_DIE = 5.0
"""Seconds after SIGKILL; a process in the driver can take longer, or for ever."""
_POLL = 0.02
_MARGIN = 5
"""Seconds after which a rank ends itself, should opsctl not do it."""


@dataclass(frozen=True)
class Collective:
    """Verdict, the tries it rests on, and processes that could not be ended."""

    verdict: Verdict
    runs: tuple[Run, ...]
    left: tuple[int, ...] = ()


@dataclass(frozen=True)
class Setting:
    """What is tried: interpreter, two GPUs by NVML index, seconds for each try, backend."""

    python: str
    gpus: tuple[int, int] = (0, 1)
    seconds: float = 60.0
    backend: str = "nccl"
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


def collective(setting: Setting) -> Collective:
    """Try with peer-to-peer access and, where that does not go well, without.

    Raises OSError when the interpreter cannot be started.
    """
    first, left = _try(setting, peer_to_peer=True)
    runs = [first]
    if not left and setting.backend == "nccl" and needs_second(first):
        second, left = _try(setting, peer_to_peer=False)
        runs.append(second)
    return Collective(verdict(*runs), tuple(runs), left)


def _try(setting: Setting, *, peer_to_peer: bool) -> tuple[Run, tuple[int, ...]]:
    with tempfile.TemporaryDirectory(prefix="opsctl-collective-") as folder, _fence() as group:
        pids: list[int] = []
        codes: dict[int, int] = {}
        began = time.monotonic()
        try:
            for rank in range(2):
                pids.append(_start(setting, Path(folder), rank, group, peer_to_peer=peer_to_peer))
            codes = _wait(pids, began + setting.seconds)
        finally:
            left = _kill(pids, group)
        seconds = time.monotonic() - began
        logs = [_log(Path(folder), rank).read_text(errors="replace") for rank in range(2)]
        ranks = [Rank(codes.get(pid), log) for pid, log in zip(pids, logs, strict=True)]
        return outcome(ranks, seconds, peer_to_peer=peer_to_peer), left


def _log(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.log"


def _start(
    setting: Setting, folder: Path, rank: int, group: cgroup.Cgroup | None, *, peer_to_peer: bool
) -> int:
    seconds = str(int(setting.seconds) + _MARGIN)
    words = (str(rank), setting.backend, str(folder / "rendezvous"), seconds, str(os.getpid()))
    environment = {
        **base_environment(setting.python, setting.environment),
        "PYTHONUNBUFFERED": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, setting.gpus)),
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,P2P,SHM",
        **({} if peer_to_peer else {"NCCL_P2P_DISABLE": "1"}),
    }
    return spawn(
        [setting.python, "-s", str(PROGRAM), *words],
        environment=environment,
        log_path=_log(folder, rank),
        cgroup=group,
    )


@contextlib.contextmanager
def _fence() -> Iterator[cgroup.Cgroup | None]:
    """A cgroup of its own, which no child can leave; None where there cannot be one."""
    parent = cgroup.writable_parent()
    group = None
    if parent is not None:
        with contextlib.suppress(OSError):
            group = parent.create(f"opsctl-collective-{os.getpid()}-{time.monotonic_ns()}")
    try:
        yield group
    finally:
        if group is not None:
            group.remove()


def _wait(pids: Sequence[int], deadline: float) -> dict[int, int]:
    """Exit codes of the ranks that end in time; when one fails, the other is not waited for.

    They are not reaped yet: their numbers, which are their sessions', stay theirs until all is
    killed.
    """
    codes: dict[int, int] = {}
    while len(codes) < len(pids) and not any(codes.values()):
        waiting = [pid for pid in pids if pid not in codes]
        if not _any_ends(waiting, deadline - time.monotonic()):
            break
        codes |= {pid: code for pid in waiting if (code := _ended(pid)) is not None}
    return codes


def _ended(pid: int) -> int | None:
    """The exit code of a child that has ended, negative for a signal."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _any_ends(pids: Sequence[int], seconds: float) -> bool:
    """Wait until one of these children has ended."""
    descriptors = [os.pidfd_open(pid) for pid in pids]
    try:
        poll = select.poll()
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(max(seconds, 0) * 1000))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _kill(pids: Sequence[int], group: cgroup.Cgroup | None) -> tuple[int, ...]:
    """SIGKILL everything that was started, and reap it; the ones that outlive it."""
    if group is not None:
        group.kill()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    deadline = time.monotonic() + _TO_DIE
    left = list(pids)
    while left and _any_ends(left, deadline - time.monotonic()):
        left = [pid for pid in left if exit_code(pid) is None]
    members = _members(group)
    while members and time.monotonic() < deadline:
        time.sleep(_POLL)
        members = _members(group)
    return tuple(sorted({*left, *members}))


def _members(group: cgroup.Cgroup | None) -> frozenset[int]:
    return frozenset() if group is None else group.pids()
