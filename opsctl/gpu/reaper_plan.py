"""Which holders of a GPU may be ended, and why the others may not; pure.

Only what is proved to be ours goes without being asked for. Everything else needs a word that
names it, and some things no word reaches: what cannot be identified, what serves, what is opsctl
itself, and what a signal could only make worse.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from opsctl.gpu import protected
from opsctl.gpu.model import Census, Holder, HostProcess, KnownEngine, Verdict
from opsctl.gpu.reaper_trees import descendants, main_of, trees
from opsctl.gpu.reaper_words import Wishes, parse

_UNDEFINED_BY_SIGNAL = (
    "it is a client of an MPS server, which a signal to one client can damage for all; release it "
    "with nvidia-cuda-mps-control first"
)

_NEVER = {
    Verdict.PHANTOM: "no process owns this memory",
    Verdict.FAULT: "the GPU is at fault, not a process",
    Verdict.UNMAPPED: "its number cannot be matched with a process here for certain",
    Verdict.MANAGED: "it serves: use `opsctl stop` or `opsctl switch`",
    Verdict.STUCK: "no signal reaches it: the GPU needs a reset or the host a reboot",
}


@dataclass(frozen=True)
class Target:
    """A process to end: the signals it gets at most, in order, and why it may be ended."""

    holder: Holder
    signals: tuple[str, ...]
    why: str
    tree: int
    """The process its tree starts from, which is asked first."""
    nonce: str | None = None
    """Launch nonce of the engine it belonged to, where opsctl started it."""

    @property
    def pid(self) -> int:
        """Its number; a target always has one."""
        assert self.holder.pid is not None  # noqa: S101 - _refusal leaves nothing without
        return self.holder.pid

    @property
    def start_time(self) -> int:
        """Clock ticks since boot; with `pid` this is its identity."""
        assert self.holder.start_time is not None  # noqa: S101
        return self.holder.start_time

    @property
    def main(self) -> bool:
        """Whether it is the process of its tree that is asked first."""
        return self.pid == self.tree


@dataclass(frozen=True)
class Left:
    """A holder that is left alone, and the word that would change that (None: no word does)."""

    holder: Holder
    why: str
    word: str | None = None


@dataclass(frozen=True)
class Plan:
    """What would be done."""

    targets: tuple[Target, ...]
    left: tuple[Left, ...]
    census: Census
    gpus: tuple[int, ...] | None = None
    """The GPUs looked at; None for all."""
    nonces: frozenset[str] = frozenset()
    """Launches that are dead for certain: whoever carries one of these is ours to end."""
    spared: frozenset[int] = field(default=frozenset())

    @property
    def memory(self) -> dict[int, int | None]:
        """Bytes per GPU that come back; None where NVML does not say how much."""
        return expected_back(self.targets)


def expected_back(targets: Sequence[Target]) -> dict[int, int | None]:
    """Bytes per GPU that these targets hold; None where NVML does not say how much."""
    total: dict[int, int | None] = {}
    for target in targets:
        for gpu, held in target.holder.per_gpu.items():
            known = total.get(gpu, 0)
            total[gpu] = None if held is None or known is None else known + held
    return dict(sorted(total.items()))


def plan(
    census: Census,
    *,
    gpus: Sequence[int] | None = None,
    include: Sequence[str] = (),
    user: str | None = None,
    caller_uid: int,
    me: int,
    spared: Collection[int] = (),
    processes: Mapping[int, HostProcess] | None = None,
    engines: Sequence[KnownEngine] = (),
) -> Plan:
    """Sort the holders of `census` into those to end and those to leave alone.

    `gpus` limits it to trees that hold one of these. `include` has the words `stray` and
    `foreign:PID@STARTTIME`; `user` says whose strays (`all` for root). `spared` are opsctl's
    ancestors and supervisors; `processes` (default: the census's) tells the children that hold
    nothing themselves; `engines` the recorded main processes.
    Raises UsageError for words that mean nothing or name a process that holds nothing.
    """
    wishes = parse(include, user, caller_uid)
    wishes.check(census.holders)
    table = census.processes if processes is None else processes
    living = frozenset(engine.nonce for engine in engines if engine.alive)
    judge = _Judge(census, wishes, frozenset({me, *spared}), living)
    wanted, left = [], []
    for holder in census.holders:
        refusal = judge.refusal(holder)
        if refusal is None:
            wanted.append(holder)
        else:
            left.append(refusal)
    targets: list[Target] = []
    zombies = {
        _group(entry.holder)
        for entry in left
        if entry.holder.verdict is Verdict.ZOMBIE and _in_scope(entry.holder, gpus)
    } - {None}
    spare = judge.spared | {holder.pid for holder in census.holders if holder.pid is not None}
    spare |= {process.pid for process in table.values() if process.nonce in living}
    for members, nonce in trees(wanted, engines):
        if any(_in_scope(member, gpus) or _group(member) in zombies for member in members):
            family = [*members, *descendants(members, table, spare)]
            targets += _targets(family, nonce, engines, wishes)
    return Plan(
        targets=tuple(targets),
        left=tuple(entry for entry in left if _in_scope(entry.holder, gpus)),
        census=census,
        gpus=None if gpus is None else tuple(gpus),
        nonces=frozenset(target.nonce for target in targets if target.nonce),
        spared=judge.spared,
    )


def agreed(shown: Plan, fresh: Plan) -> Plan:
    """The fresh plan, limited to processes that were shown.

    While somebody thought about the plan, a server may have taken an orphan over.
    """
    approved = {(target.pid, target.start_time) for target in shown.targets}
    targets = [one for one in fresh.targets if (one.pid, one.start_time) in approved]
    return replace(fresh, targets=tuple(targets))


def blocking(holders: Sequence[Holder], gpus: Sequence[int] | None) -> tuple[Holder, ...]:
    """Holders of memory that keep the next engine out: neither serving nor infrastructure.

    A share that NVML does not tell may be large.
    """
    return tuple(
        holder
        for holder in holders
        if _in_scope(holder, gpus)
        and holder.verdict is not Verdict.MANAGED
        and (holder.verdict is Verdict.FAULT or any(v != 0 for v in holder.per_gpu.values()))
        and not (holder.process and protected.kind_of(holder.process) == "infrastructure")
    )


class _Judge:
    def __init__(
        self, census: Census, wishes: Wishes, spared: frozenset[int], living: frozenset[str]
    ) -> None:
        self.spared = spared
        self._living = living
        self._wishes = wishes
        self._state = census.snapshot.state
        self._strays = {
            holder.pid: holder.process
            for holder in census.holders
            if holder.verdict is Verdict.STRAY
        }
        self._mps_clients = {use.pid for use in census.snapshot.uses if use.kind == "mps"}
        self._mps_gpus = {
            gpu
            for holder in census.holders
            if holder.process and protected.kind_of(holder.process) == "mps"
            for gpu in holder.gpus
        }

    def refusal(self, holder: Holder) -> Left | None:
        """Why a holder is left alone; None when it may be ended."""
        why = next(self._out_of_reach(holder), None)
        if why is not None:
            return Left(holder, why)
        if self._wishes.names(holder):
            return None
        special = protected.kind_of(holder.process) if holder.process else None
        if special is not None and holder.process is not None:
            # It can be named exactly, but that is not advice to give.
            return Left(holder, f"{protected.reason(holder.process)}: stop it by its own means")
        if holder.verdict is Verdict.ORPHAN:
            return None
        if holder.verdict is Verdict.STRAY:
            return self._stray(holder)
        return Left(holder, "it is not opsctl's", _exactly(holder))

    def _out_of_reach(self, holder: Holder) -> Iterator[str]:
        """Reasons no word overrides."""
        process, pid = holder.process, holder.pid
        if holder.verdict in _NEVER:
            yield _NEVER[holder.verdict]
        if pid is None or holder.start_time is None or process is None:
            yield "it cannot be identified for certain"
            return
        if (process.pid, process.start_time) != (pid, holder.start_time):
            yield "its number belongs to another process by now"
        if pid in self.spared:
            yield "it is opsctl itself, or what opsctl runs below"
        if process.nonce in self._living:
            yield "its engine serves: use `opsctl stop` or `opsctl switch`"
        if holder.verdict is Verdict.ZOMBIE or process.state in "ZX":
            yield f"it is dead already; its parent {process.ppid} does not reap it"
        special = protected.kind_of(process)
        if special in {"init", "kernel", "mps"}:
            yield protected.reason(process)
        if pid in self._mps_clients or self._mps_gpus & set(holder.gpus):
            yield _UNDEFINED_BY_SIGNAL
        if self._state in {"unresponsive", "fault"} and holder.verdict is not Verdict.ORPHAN:
            yield "the driver does not answer: only what is proved to be ours is ended blindly"

    def _stray(self, holder: Holder) -> Left | None:
        owner = self._owner(holder.process)
        if owner is not None and self._wishes.takes_stray_of(owner):
            return None
        whose = "somebody" if owner is None else owner.user or str(owner.uid)
        words = "--include stray"
        if owner is None or owner.uid != self._wishes.caller_uid:
            words = _exactly(holder) if owner is None else f"{words} --user {whose}"
        return Left(holder, f"a server that nobody supervises, of user {whose}", words)

    def _owner(self, process: HostProcess | None) -> HostProcess | None:
        """Who tells the user: the process, or the nearest parent in its server that was looked at.

        Of the workers of a server only those near a GPU are read in full.
        """
        seen = set()
        while process is not None and process.uid is None and process.pid not in seen:
            seen.add(process.pid)
            process = self._strays.get(process.ppid)
        return process if process is not None and process.uid is not None else None


def _targets(
    family: Sequence[Holder],
    nonce: str | None,
    engines: Sequence[KnownEngine],
    wishes: Wishes,
) -> list[Target]:
    main = main_of(family, nonce, engines)
    return [
        Target(
            holder=holder,
            signals=_signals(holder),
            why=_why(holder, nonce, wishes),
            tree=main[holder.pid] if holder.pid is not None else 0,
            nonce=nonce,
        )
        for holder in sorted(family, key=lambda one: (main.get(one.pid or 0) != one.pid, one.pid))
    ]


def _signals(holder: Holder) -> tuple[str, ...]:
    """A stopped process would not see the TERM before it goes on."""
    stopped = holder.process is not None and holder.process.state in "Tt"
    return ("TERM", "CONT", "KILL") if stopped else ("TERM", "KILL")


def _why(holder: Holder, nonce: str | None, wishes: Wishes) -> str:
    if wishes.names(holder):
        return "named exactly"
    reason = {
        Verdict.ORPHAN: "left by an engine of opsctl that is gone",
        Verdict.STRAY: "a server that nobody supervises",
    }.get(holder.verdict, "asked for")
    return ": ".join(part for part in (reason, "; ".join(holder.evidence)) if part)


def _in_scope(holder: Holder, gpus: Sequence[int] | None) -> bool:
    return gpus is None or bool(set(holder.gpus) & set(gpus))


def _group(holder: Holder) -> int | None:
    """Process group of a zombie or of what may live on in a zombie's group."""
    return holder.process.group if holder.process is not None and holder.process.group else None


def _exactly(holder: Holder) -> str:
    return f"--include foreign:{holder.pid}@{holder.start_time}"
