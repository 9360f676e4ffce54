"""Which processes are opsctl's own, and by what proof. Pure.

Names prove nothing. What does: the launch nonce in the environment, the cgroup named after it, a
session that the recorded main process leads, and descent from a process proved so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from opsctl.gpu import names
from opsctl.gpu.model import HostProcess, KnownEngine

_GROUP = re.compile(r"opsctl-(.+)")


@dataclass(frozen=True)
class Claim:
    """A process is of an engine of opsctl's: of a recorded one, or of one nobody recorded."""

    nonce: str
    engine: KnownEngine | None
    proof: str


class Kin:
    """The relations between all processes of one reading."""

    def __init__(
        self, processes: Mapping[int, HostProcess], engines: Sequence[KnownEngine], me: int
    ) -> None:
        self.processes = processes
        self.me = me
        self.engines = {engine.nonce: engine for engine in sorted(engines, key=_alive_last)}
        self.children: dict[int, list[HostProcess]] = {}
        for process in processes.values():
            self.children.setdefault(process.ppid, []).append(process)
        self.ourselves = frozenset({me, *(parent.pid for parent in self.ancestors(me))})
        self._sessions = {engine.session: engine for engine in self.engines.values()}
        self.claims = self._claims()

    def ancestors(self, pid: int) -> Iterator[HostProcess]:
        """Parents, nearest first, as far as they can be seen."""
        seen = {pid}
        process = self.processes.get(pid)
        while process is not None and process.ppid not in seen:
            seen.add(process.ppid)
            process = self.processes.get(process.ppid)
            if process is not None:
                yield process

    def parent(self, process: HostProcess) -> HostProcess | None:
        """The parent; None when it cannot be seen."""
        return self.processes.get(process.ppid)

    def adopted(self, process: HostProcess) -> bool:
        """Whether the parent is no launcher but the one that adopts orphans."""
        parent = self.parent(process)
        if parent is None or not names.is_init(parent) or names.is_opsctl(parent):
            return False
        if names.is_sglang(parent):
            return False
        if names.is_container_init(parent):
            return names.is_sglang_child(process) and not names.is_python(parent)
        return parent.comm in {"systemd", "init"} or process.session != parent.session

    def _claims(self) -> dict[int, Claim]:
        found = {
            process.pid: claim
            for process in self.processes.values()
            if process.pid not in self.ourselves and (claim := self._claim(process)) is not None
        }
        waiting = list(found)
        while waiting:
            pid = waiting.pop()
            above = found[pid]
            for child in self.children.get(pid, ()):
                if child.pid not in found and child.pid not in self.ourselves:
                    proof = f"descends from process {pid} of {_engine_words(above)}"
                    found[child.pid] = Claim(above.nonce, above.engine, proof)
                    waiting.append(child.pid)
        return found

    def _claim(self, process: HostProcess) -> Claim | None:
        if process.nonce:
            engine = self.engines.get(process.nonce)
            claim = Claim(process.nonce, engine, "")
            proof = f"carries the launch nonce {short(process.nonce)} of {_engine_words(claim)}"
            return Claim(process.nonce, engine, proof)
        return self._by_cgroup(process) or self._by_identity(process)

    def _by_cgroup(self, process: HostProcess) -> Claim | None:
        for part in (process.cgroup or "").split("/"):
            match = _GROUP.fullmatch(part)
            if match is None or not (match[1] in self.engines or _looks_like_nonce(match[1])):
                continue
            claim = Claim(match[1], self.engines.get(match[1]), "")
            proof = f"is in the cgroup opsctl-{short(match[1])} of {_engine_words(claim)}"
            return Claim(claim.nonce, claim.engine, proof)
        return None

    def _by_identity(self, process: HostProcess) -> Claim | None:
        engine = self._sessions.get(process.session)
        if engine is None or process.start_time < engine.start_time:
            return None
        of = _engine_words(Claim(engine.nonce, engine, ""))
        leader = self.processes.get(engine.session)
        if process.pid == engine.pid and process.start_time == engine.start_time:
            return Claim(engine.nonce, engine, f"is the main process of {of}")
        # Without its leader a session's number may be another's by now; a title of SGLang's,
        # which wipes the environment where the nonce would be, makes up for it.
        led = leader is not None and leader.start_time == engine.start_time
        if led or (leader is None and names.is_sglang_child(process)):
            return Claim(engine.nonce, engine, f"is in the session {engine.session} of {of}")
        return None


def short(nonce: str) -> str:
    """Enough of a nonce to recognise it."""
    return nonce if len(nonce) <= 8 else nonce[:8] + "…"


def _engine_words(claim: Claim) -> str:
    if claim.engine is None:
        return "an engine whose opsctl's state directory is not known"
    return f"the engine recorded in {claim.engine.where}"


def _alive_last(engine: KnownEngine) -> bool:
    return engine.alive


def _looks_like_nonce(text: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{16,64}", text) is not None
