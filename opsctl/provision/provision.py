"""One provisioning: the play, what it left on the hosts, reboots, the report."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.resources import as_file
from pathlib import Path
from typing import Literal

from opsctl.config.provision import HostConfig
from opsctl.errors import UsageError
from opsctl.provision.fitness import refuse_unfit
from opsctl.provision.inventory import ROLES, Request, Variables, inventory
from opsctl.provision.places import runs
from opsctl.provision.progress import Event, Follower, HostResult, RoleProgress
from opsctl.provision.report import HostReport, Report, Seen, judge, seen
from opsctl.provision.run import Play, available, run
from opsctl.system import resources
from opsctl.system.lock import lock

Reboot = Literal["never", "if-needed", "ask"]
REBOOT_NOTE = "reboot"
"""A pending note that a reboot would settle begins with it."""


@dataclass(frozen=True)
class Options:
    """How a run is to go."""

    tags: Sequence[str] = ()
    check: bool = False
    diff: bool = False
    reboot: Reboot = "never"


@dataclass(frozen=True)
class Watcher:
    """Whom a run tells of its progress; `may_reboot` answers for a host that needs it."""

    role_over: Callable[[RoleProgress], None]
    diff: Callable[[str], None]
    may_reboot: Callable[[str], bool]


def provision(
    request: Request,
    hosts: Mapping[str, HostConfig],
    options: Options,
    state_dir: Path,
    watcher: Watcher,
) -> Report:
    """Provision hosts and report. One at a time from a state directory.

    Raises PreconditionError where Ansible is missing or a profile would break, UsageError for an
    unknown role, KeyboardInterrupt with nothing left running.
    """
    available()
    unknown = [tag for tag in options.tags if tag not in ROLES]
    if unknown:
        raise UsageError(f"no role {', '.join(unknown)}", hint=f"roles: {', '.join(ROLES)}")
    if request.state == "present":
        refuse_unfit(request.config)
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    folder = runs(state_dir) / stamp
    with lock(runs(state_dir) / "lock", what="provisioning"), _playbooks() as playbooks:
        rounds = _Rounds(playbooks, inventory(request, hosts), folder, options, watcher)
        report = rounds.once("site", tuple(hosts))
        rebooting = rounds.to_reboot(report, hosts)
        if rebooting:
            rounds.reboot(rebooting)
            again = rounds.once("site-after-reboot", rebooting)
            report = replace(report, hosts={**report.hosts, **_added(report, again)})
        return report


def _added(first: Report, second: Report) -> dict[str, HostReport]:
    """The second round's findings, with what both rounds changed."""
    return {
        name: replace(host, changed=host.changed + first.hosts[name].changed)
        for name, host in second.hosts.items()
    }


@dataclass(frozen=True)
class _Rounds:
    playbooks: Path
    inventory: Variables
    folder: Path
    options: Options
    watcher: Watcher

    def once(self, name: str, hosts: tuple[str, ...]) -> Report:
        follower = Follower(hosts)
        play = self._play("site.yml", name, hosts, tags=self.options.tags)

        def take(event: Event) -> None:
            self._show_diff(event)
            for role in follower.take(event):
                if not self.options.tags or role.role in self.options.tags:
                    self.watcher.role_over(role)  # of others only their arguments were checked

        code = run(play, take)
        if code and not any(x.failed or x.unreachable for x in follower.hosts.values()):
            self._blame(follower.hosts, play)
        found = {} if self._nothing_reachable(follower) else self._look(name, hosts)
        verified = not self.options.tags or "verify" in self.options.tags
        reports = {
            host: judge(
                result,
                found.get(host, Seen()),
                check=self.options.check,
                verified=verified and self.inventory["all"]["vars"]["opsctl_state"] == "present",
            )
            for host, result in follower.hosts.items()
        }
        return Report(reports, str(play.log), check=self.options.check)

    def to_reboot(self, report: Report, hosts: Mapping[str, HostConfig]) -> tuple[str, ...]:
        """Hosts to reboot: never this one, which would end the run itself."""
        if self.options.reboot == "never" or self.options.check:
            return ()
        return tuple(
            name
            for name, host in report.hosts.items()
            if any(note.startswith(REBOOT_NOTE) for note in host.pending)
            and hosts[name].address is not None
            and (self.options.reboot == "if-needed" or self.watcher.may_reboot(name))
        )

    def reboot(self, hosts: tuple[str, ...]) -> None:
        run(self._play("reboot.yml", "reboot", hosts, check=False), lambda event: None)

    def _look(self, name: str, hosts: tuple[str, ...]) -> dict[str, Seen]:
        texts: dict[tuple[str, str], str] = {}

        def take(event: Event) -> None:
            if event["event"] in {"runner_on_ok", "runner_on_failed"}:
                outcome = event.get("res") or {}
                texts[event["host"], event["task"]] = str(outcome.get("stdout") or "")

        run(self._play("report.yml", f"{name}-report", hosts, check=False), take)
        return {
            host: seen(
                texts.get((host, "Read what is pending"), ""),
                texts.get((host, "Read the verdict"), ""),
            )
            for host in hosts
        }

    def _nothing_reachable(self, follower: Follower) -> bool:
        return all(result.unreachable for result in follower.hosts.values())

    def _blame(self, hosts: Mapping[str, HostResult], play: Play) -> None:
        """Ansible ended without a failed task: its own last words are all there is."""
        lines = play.log.read_text(errors="replace").splitlines() if play.log.exists() else []
        told = [line.strip() for line in lines if line.strip()]
        for result in hosts.values():
            result.failed += 1
            result.failures.append(f"ansible: {told[-1] if told else 'it ended without a word'}")

    def _show_diff(self, event: Event) -> None:
        if self.options.diff and event["event"] == "runner_on_ok":
            for text in diffs(event.get("res") or {}):
                self.watcher.diff(f"{event.get('host')}: {event.get('task')}\n{text}")

    def _play(
        self,
        playbook: str,
        name: str,
        hosts: tuple[str, ...],
        *,
        tags: Sequence[str] = (),
        check: bool | None = None,
    ) -> Play:
        everything = self.inventory["all"]
        chosen = {host: everything["hosts"][host] for host in hosts}
        return Play(
            playbook=self.playbooks / playbook,
            inventory={"all": {**everything, "hosts": chosen}},
            folder=self.folder / name,
            tags=tags,
            check=self.options.check if check is None else check,
            diff=self.options.diff,
        )


def diffs(outcome: Mapping[str, object]) -> Iterator[str]:
    """Return the prepared texts of a task's differences."""
    found = outcome.get("diff")
    for item in found if isinstance(found, list) else [found]:
        if isinstance(item, Mapping):
            before, after = item.get("before"), item.get("after")
            if isinstance(before, str) and isinstance(after, str) and before != after:
                yield _unified(before, after)


def _unified(before: str, after: str) -> str:
    import difflib  # noqa: PLC0415 - only for --diff

    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=2)
    return "\n".join(lines)


@contextmanager
def _playbooks() -> Iterator[Path]:
    with as_file(resources.tree("playbooks")) as folder:
        yield folder
