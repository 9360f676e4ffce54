"""Which of the processes to end belong together, and which of them is asked first; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from opsctl.gpu import protected
from opsctl.gpu.model import Holder, HostProcess, KnownEngine, Verdict

FENCE = "opsctl-"
"""What the name of a cgroup that opsctl makes begins with; the launch nonce follows."""

_FAMILIES = {Verdict.ORPHAN, Verdict.STRAY}


def trees(
    holders: Sequence[Holder], engines: Sequence[KnownEngine]
) -> Iterator[tuple[tuple[Holder, ...], str | None]]:
    """Group holders that live and die together, each group with its launch nonce if it has one.

    Orphans of one launch belong together wherever they drifted to. Others do only by descent: a
    session or a process group may hold two servers that one script started.
    """
    nonces = {holder.pid: nonce_of(holder, engines) for holder in holders}
    by_pid = {holder.pid: holder for holder in holders if holder.verdict in _FAMILIES}
    roots = {holder.pid: _root(holder, by_pid) for holder in holders}
    launches = {roots[pid]: nonce for pid, nonce in nonces.items() if nonce is not None}
    groups: dict[str | int | None, list[Holder]] = {}
    for holder in holders:
        root = roots[holder.pid]
        groups.setdefault(nonces[holder.pid] or launches.get(root) or root, []).append(holder)
    for key, members in groups.items():
        yield tuple(members), key if isinstance(key, str) else None


def nonce_of(holder: Holder, engines: Sequence[KnownEngine]) -> str | None:
    """The launch an orphan belongs to, by its environment, its cgroup or a state file."""
    process = holder.process
    if process is None or holder.verdict is not Verdict.ORPHAN:
        return None
    if process.nonce:
        return process.nonce
    for part in (process.cgroup or "").split("/"):
        if part.startswith(FENCE) and len(part) > len(FENCE):
            return part[len(FENCE) :]
    for engine in engines:
        if process.session == engine.session and process.start_time >= engine.start_time:
            return engine.nonce
    return None


def main_of(
    family: Sequence[Holder], nonce: str | None, engines: Sequence[KnownEngine]
) -> dict[int, int]:
    """Whom to ask first, for every member: the recorded main process if it lives, else its root."""
    recorded = {(engine.pid, engine.start_time) for engine in engines if engine.nonce == nonce}
    alive = [member.pid for member in family if (member.pid, member.start_time) in recorded]
    by_pid = {member.pid: member for member in family}
    mains = {}
    for member in family:
        if member.pid is not None:
            mains[member.pid] = alive[0] or 0 if alive else _root(member, by_pid) or member.pid
    return mains


def descendants(
    members: Sequence[Holder], table: Mapping[int, HostProcess], spare: Collection[int]
) -> list[Holder]:
    """Living children of members that hold no GPU themselves, such as build workers.

    Only those of the same user; `spare` are processes that have a verdict of their own.
    """
    children: dict[int, list[HostProcess]] = {}
    for process in table.values():
        children.setdefault(process.ppid, []).append(process)
    found: list[Holder] = []
    waiting = [member for member in members if member.verdict in _FAMILIES]
    seen = set(spare)
    while waiting:
        parent = waiting.pop()
        for child in children.get(parent.pid or 0, ()):
            if child.pid not in seen and _is_child(child, parent):
                seen.add(child.pid)
                found.append(_heir(child, parent))
                waiting.append(found[-1])
    return found


def _is_child(child: HostProcess, parent: Holder) -> bool:
    return (
        parent.process is not None
        and parent.start_time is not None
        and child.pid > 1
        and child.start_time >= parent.start_time
        and child.uid in {None, parent.process.uid}
        and child.state not in "ZX"
        and protected.kind_of(child) is None
    )


def _heir(child: HostProcess, parent: Holder) -> Holder:
    return Holder(
        verdict=parent.verdict,
        pid=child.pid,
        start_time=child.start_time,
        gpus=(),
        memory=0,
        evidence=(f"child of {parent.pid}",),
        process=child,
    )


def _root(holder: Holder, by_pid: Mapping[int | None, Holder]) -> int | None:
    """The oldest ancestor among `by_pid`; the holder itself when it has none there."""
    seen = {holder.pid}
    while holder.process is not None:
        parent = by_pid.get(holder.process.ppid)
        if parent is None or parent.pid in seen:
            break
        holder = parent
        seen.add(holder.pid)
    return holder.pid
