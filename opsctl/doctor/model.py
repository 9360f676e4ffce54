"""What a check is and what it finds. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from opsctl.doctor.host import Facts

Status = Literal["ok", "warn", "fail", "unknown"]
Severity = Literal["fail", "warn"]


@dataclass(frozen=True)
class Verdict:
    """What a check says of a host. `fix` replaces the check's own; None keeps it."""

    status: Status
    value: str
    why: str | None = None
    fix: str | None = None


@dataclass(frozen=True)
class Result:
    """One check of one host, as `opsctl doctor -o json` shows it."""

    id: str
    status: Status
    severity: Severity
    value: str | None
    """What was found; None when it is not known."""
    wanted: str
    why: str
    """Why it matters; for `unknown`, why it is not known."""
    fix: str | None
    """A command, or `manual: ...`; None when nothing is to be done."""


@dataclass(frozen=True)
class Check:
    """One thing a host should be like.

    `severity` is the worst it can say. `reads` names the fields of Facts it looks at: where one
    of them could not be read, the check is not asked and the result is `unknown`. `uses` names
    fields it looks at when they are there, and does without when not.
    """

    id: str
    title: str
    severity: Severity
    reads: tuple[str, ...]
    uses: tuple[str, ...]
    wanted: str
    why: str
    source: str
    fix: str
    judge: Callable[[Facts], Verdict]


def check(
    name: str,
    title: str,
    *,
    severity: Severity,
    reads: tuple[str, ...],
    wanted: str,
    why: str,
    source: str,
    fix: str,
    uses: tuple[str, ...] = (),
) -> Callable[[Callable[[Facts], Verdict]], Check]:
    """Make a check of a function that judges."""

    def make(judge: Callable[[Facts], Verdict]) -> Check:
        return Check(name, title, severity, reads, uses, wanted, why, source, fix, judge)

    return make


def ok(value: str) -> Verdict:
    """Say that it is as wanted."""
    return Verdict("ok", value)


def warn(value: str, why: str | None = None, fix: str | None = None) -> Verdict:
    """Say that it will do, but costs something or may break."""
    return Verdict("warn", value, why, fix)


def fail(value: str, why: str | None = None, fix: str | None = None) -> Verdict:
    """Say that the host cannot serve so."""
    return Verdict("fail", value, why, fix)


def unknown(why: str, value: str = "") -> Verdict:
    """Say that it cannot be told, and why; `value` is the part that is known."""
    return Verdict("unknown", value, why)


def result_of(one: Check, facts: Facts) -> Result:
    """Ask a check about a host."""
    for name in one.reads:
        if name in facts.unread:
            return _result(one, unknown(facts.unread[name]))
    return _result(one, one.judge(facts))


def _result(one: Check, verdict: Verdict) -> Result:
    healthy = verdict.status in {"ok", "unknown"}
    return Result(
        id=one.id,
        status=verdict.status,
        severity=one.severity,
        value=verdict.value or None,
        wanted=one.wanted,
        why=verdict.why or one.why,
        fix=None if healthy else verdict.fix or one.fix,
    )
