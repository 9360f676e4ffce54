"""What a run of `opsctl provision` came to, host by host. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from opsctl.provision.progress import HostResult

Verdict = Literal["ok", "failed", "pending", "unchanged", "not verified"]


@dataclass(frozen=True)
class HostReport:
    """One host: counts, the verdict, and what is left to a person."""

    changed: int
    ok: int
    failed: int
    unreachable: bool
    verdict: Verdict
    pending: tuple[str, ...] = ()
    why: tuple[str, ...] = ()
    """Why it failed, or why the verifier does not agree."""
    unknown: tuple[str, ...] = ()
    """What a check cannot tell yet."""


@dataclass(frozen=True)
class Seen:
    """What was read from a host after the run."""

    pending: tuple[str, ...] = ()
    verdict: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Report:
    """All hosts, and where the log is."""

    hosts: Mapping[str, HostReport]
    log: str
    check: bool = False
    canceled: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """0 all is well, 3 a check found changes, 5 some hosts failed, 1 all did."""
        wrong = [host for host in self.hosts.values() if host.verdict == "failed"]
        if wrong:
            return 1 if len(wrong) == len(self.hosts) else 5
        if self.check and any(x.verdict == "pending" for x in self.hosts.values()):
            return 3
        return 0

    def document(self) -> dict[str, Any]:
        """As JSON types."""
        return {"hosts": {name: vars(host) for name, host in self.hosts.items()}, "log": self.log}


def judge(result: HostResult, seen: Seen, *, check: bool, verified: bool) -> HostReport:
    """Decide a host's verdict. `verified` says whether the role verify was part of the run.

    Success is the verifier's word, not the absence of failed tasks.
    """
    why = tuple(result.failures)
    verdict: Verdict
    if result.failed or result.unreachable:
        verdict = "failed"
    elif check:
        verdict = "pending" if result.changed or result.unknown else "unchanged"
    elif not verified:
        verdict = "not verified"
    else:
        verdict, why = _verifier(seen)
    return HostReport(
        changed=result.changed,
        ok=result.ok,
        failed=result.failed,
        unreachable=result.unreachable,
        verdict=verdict,
        pending=seen.pending,
        why=why,
        unknown=tuple(result.unknown),
    )


def _verifier(seen: Seen) -> tuple[Verdict, tuple[str, ...]]:
    if seen.verdict is None:
        return "failed", ("the verifier left no verdict on the host",)
    if seen.verdict.get("verdict") == "ok":
        return "ok", ()
    reasons = seen.verdict.get("why")
    return "failed", tuple(map(str, reasons)) if isinstance(reasons, list) else ("not told why",)


def seen(pending: str, verdict: str) -> Seen:
    """Read what the report play printed of a host: pending notes by line, the verdict as JSON."""
    try:
        document = json.loads(verdict) if verdict.strip() else None
    except ValueError:
        document = None
    notes = tuple(line.strip() for line in pending.splitlines() if line.strip())
    return Seen(notes, document if isinstance(document, dict) else None)
