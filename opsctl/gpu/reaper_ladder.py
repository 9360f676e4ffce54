"""Signals, one rung after the other, to exactly the processes that were meant.

A process killed in the middle of a kernel launch is how memory gets lost, locks go stale and MPS
servers break: so everybody is asked before anybody is killed, the main process of a tree first,
because SGLang's takes its children down in order. Every wait has an end, and SIGKILL is sent to a
process once: what it does not end, no second one will.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Sequence

from opsctl.gpu.model import Holder, Verdict
from opsctl.gpu.reaper_outcome import End, Result
from opsctl.gpu.reaper_plan import Target
from opsctl.gpu.reaper_trees import FENCE
from opsctl.system import pidfd, procfs
from opsctl.system.cgroup import Cgroup, directory_of

NONCE = "OPSCTL_NONCE"

_COURTESY = 3.0  # seconds for children to follow their main process
_ASKED = 5.0  # seconds for the others to end when they are asked themselves
_REAPED = 1.0  # seconds for parents to take notice
_POLL = 0.05


class Quarry:
    """One target during the reap: its pidfd, which keeps the number from changing hands."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.signals: list[str] = []
        self.denied = False
        self._descriptor = pidfd.open_pidfd(target.pid, target.start_time)
        self._was_there = self._descriptor is not None and not self.ended

    @property
    def ended(self) -> bool:
        """Whether the process has ended; what was never there counts."""
        return self._descriptor is None or pidfd.has_exited(self._descriptor)

    @property
    def waited_for(self) -> bool:
        """Whether it lives and may be signalled."""
        return not self.ended and not self.denied

    @property
    def unreaped(self) -> bool:
        """Whether it has ended and its parent has not taken notice."""
        entry = procfs.stat(self.target.pid) if self._was_there and self.ended else None
        return entry is not None and entry.start_time == self.target.start_time

    def send(self, number: signal.Signals) -> None:
        """Signal it; a refusal ends all further tries."""
        if self._descriptor is None or not self.waited_for:
            return
        delivery = pidfd.deliver(self._descriptor, number)
        if delivery == "denied":
            self.denied = True
        elif delivery == "sent":
            self.note(number)

    def ask(self) -> None:
        """SIGTERM, once. A stopped process sees it only when it goes on."""
        if "TERM" in self.signals:
            return
        self.send(signal.SIGTERM)
        entry = procfs.stat(self.target.pid)
        if entry is not None and entry.state == "T":
            self.send(signal.SIGCONT)

    def note(self, number: signal.Signals) -> None:
        """Remember a signal that reached it."""
        self.signals.append(number.name.removeprefix("SIG"))

    def result(self) -> Result:
        """How it ended; closes the pidfd."""
        outcome, detail = self._outcome()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        return Result(self.target, tuple(self.signals), outcome, detail)

    def _outcome(self) -> tuple[End, str | None]:
        pid = self.target.pid
        entry = procfs.stat(pid)
        if not self._was_there:
            replaced = entry is not None and entry.start_time != self.target.start_time
            return ("replaced", f"{pid} is another process now") if replaced else ("gone", None)
        if self.ended:
            parent = entry.ppid if entry is not None and self.unreaped else None
            why = f"its parent {parent} has not reaped it" if parent is not None else None
            return ("killed" if "KILL" in self.signals else "exited"), why
        if self.denied:
            process = self.target.holder.process
            user = (process.user if process else None) or f"uid {procfs.owner(pid)}"
            return "denied", f"may not signal a process of user {user}"
        return "survived", _where(pid)


async def climb(
    targets: Sequence[Target],
    *,
    grace: float,
    kill_grace: float,
    spared: Collection[int] = (),
    watched: Callable[[Sequence[int]], None] = lambda pids: None,
) -> tuple[Result, ...]:
    """End one tree, its main process first. `watched` is told of everybody before any signal."""
    tree = [Quarry(target) for target in targets]
    search = _Search(tree, frozenset(spared))
    search.extend()
    watched([quarry.target.pid for quarry in tree if not quarry.ended])
    mains = [quarry for quarry in tree if quarry.target.main] or tree[:1]
    for quarry in mains:
        quarry.ask()
    await _until(lambda: not any(quarry.waited_for for quarry in mains), grace)
    if all(quarry.ended for quarry in mains):
        await _all_ended(tree, min(_COURTESY, grace))
    newcomers = search.extend()
    watched([quarry.target.pid for quarry in newcomers])
    for quarry in tree:
        quarry.ask()
    await _all_ended([quarry for quarry in tree if not quarry.target.main], min(_ASKED, grace))
    latecomers = search.extend()
    watched([quarry.target.pid for quarry in latecomers])
    groups = _kill(tree, search)
    await _all_ended(tree, kill_grace)
    if not any(quarry.waited_for for quarry in tree):
        for group in groups:
            await _until(group.remove, 1.0)
    await _until(lambda: not any(quarry.unreaped for quarry in tree), _REAPED)
    return tuple(quarry.result() for quarry in tree)


def _kill(tree: Sequence[Quarry], search: _Search) -> tuple[Cgroup, ...]:
    left = [quarry for quarry in tree if quarry.waited_for]
    groups = tuple(search.fences()) if left else ()
    for group in groups:
        members = group.pids()
        if not members & search.spared and group.kill():
            for quarry in left:
                if quarry.target.pid in members:
                    quarry.note(signal.SIGKILL)
    for quarry in left:
        if "KILL" not in quarry.signals:
            quarry.send(signal.SIGKILL)
    return groups


class _Search:
    """Finds what joined a tree after it was planned: forks do not wait for plans."""

    def __init__(self, tree: list[Quarry], spared: frozenset[int]) -> None:
        self.spared = spared | procfs.ancestors(os.getpid())
        self._tree = tree
        first = tree[0].target
        # Only a launch that is proved dead is looked for by its nonce.
        proved = first.holder.verdict is Verdict.ORPHAN
        self._nonce = first.nonce if proved else None
        self._family = proved or first.holder.verdict is Verdict.STRAY
        self._eldest = min(quarry.target.start_time for quarry in tree)

    def extend(self) -> tuple[Quarry, ...]:
        """Add newcomers to the tree, and return them."""
        if not self._family:
            return ()
        known = {quarry.target.pid: quarry for quarry in self._tree}
        found: list[Quarry] = []
        table = procfs.snapshot()
        for entry in sorted(table.values(), key=lambda entry: entry.start_time):
            if entry.pid in known or entry.pid in self.spared or entry.state in "ZX":
                continue
            why = self._kinship(entry, known)
            if entry.start_time >= self._eldest and why is not None:
                newcomer = Quarry(self._target(entry, why))
                known[entry.pid] = newcomer
                found.append(newcomer)
        self._tree.extend(found)
        return tuple(found)

    def fences(self) -> frozenset[Cgroup]:
        """Cgroups that opsctl made for this launch, and that living members really are in."""
        paths = {self._fence(quarry.target.pid) for quarry in self._tree if quarry.waited_for}
        directories = (directory_of(path) for path in paths if path is not None)
        return frozenset(Cgroup(path) for path in directories if path is not None)

    def _fence(self, pid: int) -> str | None:
        if not self._nonce:
            return None
        name = f"/{FENCE}{self._nonce}"
        head, found, _ = f"{procfs.cgroup_of(pid) or ''}/".partition(f"{name}/")
        return head + name if found else None

    def _kinship(self, entry: procfs.ProcessStat, known: dict[int, Quarry]) -> str | None:
        parent = known.get(entry.ppid)
        if parent is not None and not parent.ended and self._same_user(entry.pid, entry.ppid):
            return f"child of {entry.ppid}"
        if not self._nonce:
            return None
        if procfs.environ_value(entry.pid, NONCE) == self._nonce:
            return f"carries the nonce of launch {self._nonce}"
        if self._fence(entry.pid) is not None:
            return f"is in the cgroup of launch {self._nonce}"
        return None

    def _same_user(self, pid: int, parent: int) -> bool:
        return procfs.owner(pid) == procfs.owner(parent)

    def _target(self, entry: procfs.ProcessStat, why: str) -> Target:
        first = self._tree[0].target
        holder = Holder(
            verdict=first.holder.verdict,
            pid=entry.pid,
            start_time=entry.start_time,
            gpus=(),
            memory=None,
            evidence=(why,),
        )
        return Target(holder, ("TERM", "KILL"), f"joined later: {why}", first.tree, self._nonce)


async def _all_ended(quarries: Sequence[Quarry], seconds: float) -> None:
    await _until(lambda: not any(quarry.waited_for for quarry in quarries), seconds)


async def _until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(_POLL)
    return True


def _where(pid: int) -> str:
    """Where in the kernel a process is that even SIGKILL did not end."""
    entry = procfs.stat(pid)
    state = entry.state if entry is not None else "?"
    stack: Sequence[str] = ()
    with contextlib.suppress(OSError):
        stack = procfs.kernel_stack(pid)
    place = (stack[0] if stack else None) or procfs.wchan(pid) or "an unknown function"
    return f"state {state} in {place}: the GPU needs a reset or the host a reboot"
