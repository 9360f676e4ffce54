"""What the runs of two ranks mean. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

RunOutcome = Literal["ok", "hang", "wrong sum", "error", "impossible"]
VerdictName = Literal["ok", "ok without peer-to-peer", "hangs", "fails", "not possible"]

_STAGE = re.compile(r"^opsctl-stage (\w+) ?(.*)$", re.MULTILINE)
_CHANNEL = re.compile(r"NCCL INFO Channel [^\n]*\bvia (\w+)")
_BEFORE_TORCH = frozenset({"", "importing"})
_CODES: dict[int, RunOutcome] = {
    0: "ok",
    10: "impossible",
    11: "impossible",
    12: "impossible",
    20: "wrong sum",
}
_LAST_LINES = 3


@dataclass(frozen=True)
class Rank:
    """How one rank ended. `code` is None when it had to be killed; `log` is all it wrote."""

    code: int | None
    log: str

    @property
    def stages(self) -> list[tuple[str, str]]:
        """The stages it said it reached, with their details."""
        return _STAGE.findall(self.log)

    @property
    def stage(self) -> str:
        """The last stage it reached; empty when it said nothing."""
        return self.stages[-1][0] if self.stages else ""


@dataclass(frozen=True)
class Run:
    """One try of both ranks."""

    peer_to_peer: bool
    """Whether NCCL was left free to use it."""
    outcome: RunOutcome
    seconds: float
    stage: str
    """The last stage that both ranks reached, or the slower one."""
    transport: str | None
    """How NCCL connected the ranks, such as P2P or SHM; None when its log does not say."""
    detail: str


@dataclass(frozen=True)
class Verdict:
    """What two GPUs can do together."""

    verdict: VerdictName
    why: str

    @property
    def good(self) -> bool:
        """Whether an engine can serve on them."""
        return self.verdict in {"ok", "ok without peer-to-peer"}


def outcome(ranks: Sequence[Rank], seconds: float, *, peer_to_peer: bool) -> Run:
    """Judge one try. The rank that came less far decides which stage it was."""
    slowest = min(ranks, key=lambda rank: len(rank.stages))
    found = _outcome(ranks)
    transports = {kind for rank in ranks for kind in _CHANNEL.findall(rank.log)}
    return Run(
        peer_to_peer,
        found,
        seconds,
        slowest.stage or "start",
        ", ".join(sorted(transports)) or None,
        _detail(found, ranks),
    )


def _outcome(ranks: Sequence[Rank]) -> RunOutcome:
    """A rank that fails leaves the other one waiting: the failure counts, not the wait."""
    ended = [_CODES.get(rank.code, "error") for rank in ranks if rank.code is not None]
    for kind in ("impossible", "wrong sum", "error"):
        if kind in ended:
            return kind
    if len(ended) == len(ranks):
        return "ok"
    late = [rank for rank in ranks if rank.code is None]
    return "impossible" if any(rank.stage in _BEFORE_TORCH for rank in late) else "hang"


def _detail(found: RunOutcome, ranks: Sequence[Rank]) -> str:
    if found in {"impossible", "wrong sum"}:
        said = [text for rank in ranks for name, text in rank.stages if name in _SAID]
        return said[0] if said else "torch was not imported in time"
    if found != "error":
        return ""
    [failed, *_] = [rank for rank in ranks if rank.code not in {None, 0}]
    lines = [line for line in failed.log.splitlines() if line and not _STAGE.match(line)]
    return f"exit code {failed.code}: " + " | ".join(lines[-_LAST_LINES:])


_SAID = frozenset({"impossible", "wrong"})


def needs_second(first: Run) -> bool:
    """Whether it is worth a try without peer-to-peer access."""
    return first.outcome in {"hang", "wrong sum", "error"}


def verdict(first: Run, second: Run | None = None) -> Verdict:
    """Join the try with peer-to-peer access and, where there was one, the try without."""
    if first.outcome == "impossible":
        return Verdict("not possible", first.detail)
    if first.outcome == "ok":
        if first.transport is not None and "P2P" not in first.transport:
            why = f"NCCL itself chose {first.transport} between these GPUs"
            return Verdict("ok without peer-to-peer", why)
        return Verdict("ok", f"by {first.transport or 'a transport its log does not name'}")
    told = f"with peer-to-peer access: {_told(first)}"
    if second is not None and second.outcome == "ok":
        return Verdict("ok without peer-to-peer", f"{told}; NCCL_P2P_DISABLE=1 works")
    if second is not None:
        told += f"; without: {_told(second)}"
    hung = "hang" in {first.outcome, second.outcome if second else None}
    return Verdict("hangs" if hung else "fails", told)


def _told(run: Run) -> str:
    if run.outcome == "hang":
        return f"no end within {run.seconds:.0f} s, last stage {run.stage}"
    return f"{run.outcome} ({run.detail})" if run.detail else run.outcome
