"""One engine's processes: started in a fence of their own, stopped by a ladder, found again.

The engine writes straight to its log file and is no pipe's other end, so that it survives the
death of opsctl and a new opsctl can take it over (`attach`) or clear it away (`kill_leftovers`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from opsctl.engine.segments import Segment, used_by
from opsctl.engine.tree import NONCE, Identity, Key, Member, find, living
from opsctl.errors import PreconditionError
from opsctl.profiles.launch import Command
from opsctl.system import pidfd, procfs, spawn, subreaper
from opsctl.system.cgroup import Cgroup
from opsctl.system.threads import aside

__all__ = [
    "EngineProcess",
    "Identity",
    "Member",
    "StopReport",
    "kill_leftovers",
    "leftovers",
]

_COURTESY = 3.0  # seconds for children to follow a main process that ended by itself
_SEGMENTS_EVERY = 30.0  # seconds; reading the maps of a large process costs milliseconds
_STALE_GROUP = 3600.0
_POLL = 0.05
_LOOK = 0.5  # seconds between looks at an engine that has been asked to end


@dataclass(frozen=True)
class StopReport:
    """How a stop went. `escalated`: the main process did not end by itself in time.

    `killed` had to be killed, `survivors` outlived even that (state D: stuck in the kernel).
    """

    exit_code: int | None
    escalated: bool
    killed: tuple[Member, ...]
    survivors: tuple[Member, ...]
    seconds: float
    segments: frozenset[Segment] = frozenset()
    """Shared memory the tree used, for `release.verify` to watch and clear."""


class EngineProcess:
    """A running engine. Made by `spawn` or `attach`, used from one event loop."""

    def __init__(self, identity: Identity, descriptor: int, *, child: bool) -> None:
        self.identity = identity
        self._pidfd = descriptor
        self._child = child
        self._exit_code: int | None = None
        self._ended = asyncio.Event()
        self._watching: asyncio.AbstractEventLoop | None = None
        self._seen: set[Key] = set()
        self._last: tuple[Member, ...] = ()
        self._titles: dict[Key, str] = {}
        self._segments: set[Segment] = set()
        self._segments_due = 0.0

    @classmethod
    async def spawn(
        cls,
        command: Command,
        *,
        nonce: str,
        log_path: Path,
        cgroup_parent: Cgroup | None,
    ) -> EngineProcess:
        """Start an engine in its own session and, where `cgroup_parent` allows it, own cgroup.

        Raises PreconditionError when the program does not exist or the log cannot be written.
        An engine whose cgroup cannot be made is fenced by session and nonce alone:
        `identity.cgroup` is None then.
        """
        subreaper.become()
        cgroup = _make_cgroup(cgroup_parent, nonce)
        try:
            pid = spawn.spawn(
                command.argv,
                environment={**command.environment, NONCE: nonce},
                log_path=log_path,
                cgroup=cgroup,
            )
        except OSError as error:
            if cgroup is not None:
                cgroup.remove()
            raise PreconditionError(
                f"cannot start {command.argv[0]}: {error.strerror} ({error.filename})",
                hint="check the profile's `python` and the state directory",
            ) from error
        started = procfs.stat(pid)
        assert started is not None  # noqa: S101 - our own child stays visible until it is reaped
        identity = Identity(
            nonce=nonce,
            pid=pid,
            start_time=started.start_time,
            session=pid,
            cgroup=str(cgroup.path) if cgroup else None,
            boot_id=procfs.boot_id(),
        )
        engine = cls(identity, os.pidfd_open(pid), child=True)
        await engine._confirm_cgroup(cgroup)
        return engine

    @classmethod
    def attach(cls, identity: Identity) -> EngineProcess | None:
        """Take over an engine whose main process still lives and is provably the recorded one.

        None otherwise; other members may live all the same (see `leftovers`).
        """
        if identity.boot_id != procfs.boot_id():
            return None
        descriptor = pidfd.open_pidfd(identity.pid, identity.start_time)
        if descriptor is None:
            return None
        nonce = procfs.environ_value(identity.pid, NONCE)
        if pidfd.has_exited(descriptor) or nonce not in (None, "", identity.nonce):
            os.close(descriptor)
            return None
        return cls(identity, descriptor, child=False)

    @property
    def exited(self) -> bool:
        """Whether the main process has ended."""
        if not self._ended.is_set() and pidfd.has_exited(self._pidfd):
            self._finish()
        return self._ended.is_set()

    @property
    def exit_code(self) -> int | None:
        """Negative for a signal; None while running, or for ever when attached."""
        return self._exit_code

    @property
    def returncode_known(self) -> bool:
        """Whether `exit_code` says how the main process ended."""
        return self.exited and self._exit_code is not None

    async def wait(self) -> int | None:
        """Wait for the main process to end; its exit code, None when it was not our child."""
        if not self.exited and self._watching is None:
            self._watching = asyncio.get_running_loop()
            self._watching.add_reader(self._pidfd, self._finish)
        await self._ended.wait()
        return self._exit_code

    def members(self) -> tuple[Member, ...]:
        """Every process of the tree, zombies included (`living` filters them)."""
        members = self._note(find(self.identity, seen=self._seen))
        if time.monotonic() >= self._segments_due:
            self._remember_segments(members)
        return members

    async def look(self) -> tuple[Member, ...]:
        """`members`, while the event loop goes on.

        On a host of thousands of processes a look takes a tenth of a second, and a process whose
        memory the kernel holds locked keeps its reader waiting.
        """
        due = time.monotonic() >= self._segments_due
        members, segments = await aside(
            partial(_members_and_segments, self.identity, frozenset(self._seen), due)
        )
        if due:
            self._add_segments(segments)
        return self._note(members)

    @property
    def last_members(self) -> tuple[Member, ...]:
        """What the last look has seen; looks when there was none."""
        return self._last or self.members()

    def missing_children(self) -> tuple[str, ...]:
        """Titles of `sglang::` children that a look has seen alive and now are gone or zombies.

        A child counts only from the moment it has its title; for the first seconds of a start it
        is still called `python`. SGLang 0.5.9 itself never notices such a loss and hangs.
        """
        return tuple(sorted(title for key, title in self._titles.items() if not _lives(key)))

    async def stop(
        self, *, grace: float, kill_grace: float = 10.0, force: bool = False
    ) -> StopReport:
        """Stop the engine: SIGTERM to the main process only, `grace` seconds, then kill the tree.

        Signalling the whole group first would cut streams and skip SGLang's own drain. `force`
        goes straight to killing. May be called again, with `force`, while a first call waits.
        """
        begun = time.monotonic()
        self._remember_segments(self.members())  # before ties are cut
        if not force and not self.exited:
            pidfd.send(self._pidfd, signal.SIGTERM)
            await self._watch_it_end(grace)
        ended = self.exited
        if ended and not force:
            await _until(lambda: not living(self.members()), _COURTESY)
        killed, survivors = await _kill_tree(self.members, self.identity, kill_grace)
        if not survivors:
            await self._wait_at_most(kill_grace)
        return StopReport(
            exit_code=self._exit_code,
            escalated=not ended,
            killed=killed,
            survivors=survivors,
            seconds=time.monotonic() - begun,
            segments=frozenset(self._segments),
        )

    def _note(self, members: tuple[Member, ...]) -> tuple[Member, ...]:
        self._last = members
        self._seen.update((member.pid, member.start_time) for member in members)
        for member in members:
            if member.living and member.title.startswith("sglang::"):
                self._titles[member.pid, member.start_time] = member.title
        return members

    def _remember_segments(self, members: tuple[Member, ...]) -> None:
        """Ownership of shared memory can only be proved while its owner lives."""
        self._add_segments(used_by(members))

    def _add_segments(self, segments: frozenset[Segment]) -> None:
        self._segments |= segments
        self._segments_due = time.monotonic() + _SEGMENTS_EVERY

    async def _watch_it_end(self, seconds: float) -> None:
        """Wait as `_wait_at_most` does, but note shared memory that is made meanwhile."""
        deadline = time.monotonic() + seconds
        while not self.exited and (left := deadline - time.monotonic()) > 0:
            await self._wait_at_most(min(_LOOK, left))
            if not self.exited:
                self._remember_segments(self.members())

    async def _wait_at_most(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.wait(), seconds)

    async def _confirm_cgroup(self, cgroup: Cgroup | None) -> None:
        """The new process enters its cgroup itself, just before exec; see whether it did."""
        pid = self.identity.pid
        if cgroup is None:
            return
        await _until(lambda: spawn.has_become_program(pid), 2.0)
        if spawn.has_become_program(pid) and pid not in cgroup.pids() and not self.exited:
            cgroup.remove()
            self.identity = replace(self.identity, cgroup=None)

    def _finish(self) -> None:
        if self._ended.is_set():
            return
        if self._child:
            self._exit_code = spawn.exit_code(self.identity.pid)
        if self._watching is not None:
            self._watching.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._ended.set()


def _members_and_segments(
    identity: Identity, seen: Collection[Key], with_segments: bool
) -> tuple[tuple[Member, ...], frozenset[Segment]]:
    members = find(identity, seen=seen)
    return members, used_by(members) if with_segments else frozenset()


def _lives(key: Key) -> bool:
    pid, start_time = key
    found = procfs.stat(pid)
    return found is not None and found.start_time == start_time and found.state not in "ZX"


def leftovers(identity: Identity) -> tuple[Member, ...]:
    """Living members of an engine whose main process may be dead."""
    return living(find(identity))


async def kill_leftovers(
    identity: Identity, *, grace: float = 0.0, kill_grace: float = 10.0
) -> StopReport:
    """End what is left of an engine of an earlier opsctl, by the same ladder.

    With `grace`, a main process that still lives is asked first.
    """
    engine = EngineProcess.attach(identity)
    if engine is not None:
        return await engine.stop(grace=grace, kill_grace=kill_grace, force=grace <= 0)
    begun = time.monotonic()
    segments = used_by(find(identity))
    killed, survivors = await _kill_tree(lambda: find(identity), identity, kill_grace)
    seconds = time.monotonic() - begun
    return StopReport(None, bool(killed), killed, survivors, seconds, segments)


async def _kill_tree(
    members: Callable[[], tuple[Member, ...]], identity: Identity, kill_grace: float
) -> tuple[tuple[Member, ...], tuple[Member, ...]]:
    """SIGKILL until nothing lives or `kill_grace` is over; who was killed, and who survived.

    Group and cgroup first, which no fork can outrun; the rest one by one, and repeatedly.
    """
    killed: dict[Key, Member] = {}
    cgroup = Cgroup(Path(identity.cgroup)) if identity.cgroup else None

    def sweep() -> bool:
        left = living(members())
        if left and cgroup is not None:
            cgroup.kill()
        pidfd.kill_group(identity.pid, witnesses=[member.pid for member in left])
        for member in left:
            killed.setdefault((member.pid, member.start_time), member)
            pidfd.signal_process(member.pid, member.start_time, signal.SIGKILL)
        return not left

    await _until(sweep, kill_grace)
    survivors = living(members())
    if cgroup is not None and not survivors:
        await _until(cgroup.remove, 1.0)
    outlived = {(member.pid, member.start_time) for member in survivors}
    return tuple(m for key, m in killed.items() if key not in outlived), survivors


async def _until(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll a condition until it holds; False when `seconds` are over first."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(_POLL)
    return True


def _make_cgroup(parent: Cgroup | None, nonce: str) -> Cgroup | None:
    if parent is None:
        return None
    parent.sweep("opsctl-", older_than=_STALE_GROUP)  # left by an opsctl that was killed
    try:
        return parent.create(f"opsctl-{nonce}")
    except OSError:
        return None
