"""Which processes belong to an engine, and by what evidence.

Names prove nothing: SGLang retitles its children (`sglang::scheduler_TP0`), other engines on the
host carry the same titles, and a child whose parent was killed before it had set its own death
signal lives on below init with hundreds of megabytes. So membership is the union of what cannot
be imitated: the engine's cgroup, its session, the launch nonce in the environment, and descent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from opsctl.system import procfs, subreaper
from opsctl.system.cgroup import Cgroup
from opsctl.system.compilers import is_compiler
from opsctl.system.procfs import ProcessStat

NONCE = "OPSCTL_NONCE"
"""Environment variable that carries the launch nonce into every process of an engine."""

Evidence = Literal["cgroup", "session", "nonce", "descendant"]


@dataclass(frozen=True)
class Identity:
    """What finds an engine again after opsctl itself was killed.

    `start_time` is in clock ticks since boot; `cgroup` the absolute path of its cgroup directory.
    """

    nonce: str
    pid: int
    start_time: int
    session: int
    cgroup: str | None
    boot_id: str

    def to_json(self) -> str:
        """One line for the state file."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Identity:
        """Read `to_json` back; raises ValueError when anything is missing or of the wrong type."""
        data = json.loads(text)
        fields = {"nonce": str, "pid": int, "start_time": int, "session": int, "boot_id": str}
        if not isinstance(data, dict) or any(
            type(data.get(name)) is not kind for name, kind in fields.items()
        ):
            raise ValueError("not an engine identity")
        cgroup = data.get("cgroup")
        if not (cgroup is None or isinstance(cgroup, str)) or data["pid"] < 2:
            raise ValueError("not an engine identity")
        return cls(**{name: data[name] for name in fields}, cgroup=cgroup)


@dataclass(frozen=True)
class Member:
    """One process of an engine; `how` is the strongest evidence that it is one."""

    pid: int
    start_time: int
    state: str
    title: str
    how: Evidence

    @property
    def living(self) -> bool:
        """Zombies hold nothing but their number, and no signal reaches them."""
        return self.state not in "ZX"

    def __str__(self) -> str:
        return f"{self.pid} {self.title} (state {self.state}, by {self.how})"


Key = tuple[int, int]
"""A process that cannot be mistaken for a later one: (pid, start time)."""


def find(identity: Identity, *, seen: Collection[Key] = ()) -> tuple[Member, ...]:
    """Every process of the engine, zombies included, the main process first.

    `seen` are processes that were members before: a daemon that cut all ties after opsctl saw it
    stays a member. opsctl and its ancestors never are. After a reboot there are none.
    """
    if identity.boot_id != procfs.boot_id():
        return ()
    ourselves = procfs.ancestors(os.getpid())
    table = {
        pid: entry
        for pid, entry in procfs.snapshot().items()
        if entry.start_time >= identity.start_time and pid not in ourselves
    }
    evidence = _evidence(identity, table, seen)
    members = [
        Member(
            pid, table[pid].start_time, table[pid].state, procfs.title(pid, table[pid].comm), how
        )
        for pid, how in evidence.items()
    ]
    subreaper.reap(member.pid for member in members if _adopted_zombie(member, table, identity))
    return tuple(sorted(members, key=lambda member: (member.pid != identity.pid, member.pid)))


def living(members: Iterable[Member]) -> tuple[Member, ...]:
    """Members that can still hold memory, ports or files."""
    return tuple(member for member in members if member.living)


def compiling(members: Iterable[Member]) -> bool:
    """Whether a compiler below the engine is on a CPU right now.

    Just-in-time compilation is silent for minutes, and a start must not be given up meanwhile.
    One that waits for a stale lock is not on a CPU, and does not count.
    """
    return any(member.state == "R" and is_compiler(member.title) for member in members)


def _evidence(
    identity: Identity, table: Mapping[int, ProcessStat], seen: Collection[Key]
) -> dict[int, Evidence]:
    found: dict[int, Evidence] = {}
    fenced = Cgroup(Path(identity.cgroup)).pids() if identity.cgroup else frozenset[int]()
    leader = table.get(identity.session)
    session_is_ours = leader is None or leader.start_time == identity.start_time
    for pid, entry in table.items():
        if pid in fenced:
            found[pid] = "cgroup"
        elif pid == identity.pid and entry.start_time == identity.start_time:
            found[pid] = "session"
        elif (nonce := procfs.environ_value(pid, NONCE)) not in (None, "", identity.nonce):
            continue  # born into another engine, whatever else it looks like
        elif entry.session == identity.session and session_is_ours:
            found[pid] = "session"
        elif nonce == identity.nonce:
            found[pid] = "nonce"
        elif (pid, entry.start_time) in seen:
            found[pid] = "descendant"
    _add_descendants(found, table)
    return found


def _add_descendants(found: dict[int, Evidence], table: Mapping[int, ProcessStat]) -> None:
    children: dict[int, list[int]] = {}
    for entry in table.values():
        children.setdefault(entry.ppid, []).append(entry.pid)
    waiting = list(found)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found[child] = "descendant"
                waiting.append(child)


def _adopted_zombie(member: Member, table: Mapping[int, ProcessStat], identity: Identity) -> bool:
    """The main process is left to whoever waits for its exit code."""
    return (
        not member.living and member.pid != identity.pid and table[member.pid].ppid == os.getpid()
    )
