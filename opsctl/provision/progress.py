"""Follows a run by its events: what each role did on each host, and what went wrong. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Event = Mapping[str, Any]


@dataclass
class RoleProgress:
    """One role on one host."""

    host: str
    role: str
    ok: int = 0
    changed: int = 0
    skipped: int = 0
    failed: str = ""
    """What the failing task said; empty while nothing failed."""
    unknown: list[str] = field(default_factory=list)
    """What a check cannot tell yet."""


@dataclass
class HostResult:
    """One host at the end of a run."""

    ok: int = 0
    changed: int = 0
    failed: int = 0
    unreachable: bool = False
    failures: list[str] = field(default_factory=list)
    """Role, task and message of each failed task."""
    unknown: list[str] = field(default_factory=list)


class Follower:
    """Takes events in order; `hosts` is the result so far."""

    def __init__(self, hosts: Iterator[str] | tuple[str, ...]) -> None:
        self.hosts: dict[str, HostResult] = {name: HostResult() for name in hosts}
        self._current: dict[str, RoleProgress] = {}

    def take(self, event: Event) -> Iterator[RoleProgress]:
        """Count an event, and return the roles that it shows to be over."""
        kind, host, role = event["event"], event.get("host", ""), event.get("role", "")
        if kind == "runner_on_start" and host:
            yield from self._enter(host, role)
        elif kind == "playbook_on_stats":
            yield from self._over()
        elif host in self.hosts:
            yield from self._enter(host, role)
            self._count(kind, host, event)

    def _enter(self, host: str, role: str) -> Iterator[RoleProgress]:
        current = self._current.get(host)
        if current is not None and current.role == role:
            return
        if current is not None and current.role:
            yield current
        self._current[host] = RoleProgress(host, role)

    def _over(self) -> Iterator[RoleProgress]:
        for progress in self._current.values():
            if progress.role:
                yield progress
        self._current.clear()

    def _count(self, kind: str, host: str, event: Event) -> None:
        progress, result = self._current[host], self.hosts[host]
        outcome: Event = event.get("res") or {}
        if kind == "runner_on_ok":
            progress.ok += 1
            result.ok += 1
            if outcome.get("changed"):
                progress.changed += 1
                result.changed += 1
            unknown = outcome.get("msg")
            if isinstance(unknown, str) and unknown.startswith("unknown until"):
                progress.unknown.append(unknown)
                result.unknown.append(f"{progress.role}: {unknown}")
        elif kind == "runner_on_skipped":
            progress.skipped += 1
        elif kind == "runner_on_unreachable":
            result.unreachable = True
            progress.failed = f"cannot be reached: {said(outcome)}"
            result.failures.append(progress.failed)
        elif kind == "runner_on_failed" and not event.get("ignore_errors"):
            result.failed += 1
            progress.failed = f"{event.get('task', '')}: {said(outcome)}"
            result.failures.append(f"{progress.role}: {progress.failed}")


def said(outcome: Event) -> str:
    """What a module said of its failure, in one line: its message, and the end of its output."""
    censored = outcome.get("censored")
    if censored:
        return "it failed, and may not tell more because it handles a secret"
    message = str(outcome.get("msg") or "it failed").strip()
    for result in outcome.get("results") or ():
        if isinstance(result, Mapping) and result.get("failed"):
            return said(result)
    for key in ("stderr", "module_stderr", "stdout", "module_stdout"):
        lines = [line.strip() for line in str(outcome.get(key) or "").splitlines() if line.strip()]
        if lines and lines[-1] not in message:
            message = f"{message}: {lines[-1]}"
            break
    return " ".join(message.split())
