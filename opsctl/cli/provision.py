"""`opsctl provision`: a bare host becomes a serving host."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsctl.cli.loading import load_config, paths
from opsctl.cli.options import ConfigOption, Output, OutputOption, StateDirOption
from opsctl.cli.output import emit, grid, message
from opsctl.errors import PreconditionError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    from opsctl.config.provision import HostConfig, ProvisionConfig
    from opsctl.provision.progress import RoleProgress
    from opsctl.provision.report import Report

SCHEMA = "opsctl/provision/v1"


class Reboot(StrEnum):
    """When a host that needs it is rebooted."""

    NEVER = "never"
    IF_NEEDED = "if-needed"
    ASK = "ask"


class State(StrEnum):
    """What hosts become."""

    PRESENT = "present"
    ABSENT = "absent"


def provision(
    limit: Annotated[
        list[str] | None, typer.Option("--limit", metavar="HOST", help="Only this host; repeat.")
    ] = None,
    tags: Annotated[
        list[str] | None,
        typer.Option("--tags", metavar="ROLE,...", help="Only these roles, comma separated."),
    ] = None,
    state: Annotated[
        State, typer.Option("--state", help="absent takes away what was installed, keeps models.")
    ] = State.PRESENT,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit code 3 when something would.")
    ] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show what changes in files.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    reboot: Annotated[
        Reboot, typer.Option("--reboot", help="What to do with hosts that need one.")
    ] = Reboot.NEVER,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Bring hosts up: driver, CUDA, SGLang, patches, models, opsctl and its systemd unit.

    Run again it changes nothing; success is the verifier's verdict. Exit code 3 with --check when
    changes are pending, 5 when some hosts failed and others did not, 1 when all failed.
    """
    from opsctl.config.state_dir import state_dir as find_state_dir
    from opsctl.provision.inventory import Request, hosts
    from opsctl.provision.provision import Options, Watcher, provision

    loaded = load_config(config)
    request = Request(loaded.config, _text(config), state.value)
    chosen = hosts(loaded.config, limit or [])
    roles = [name for item in tags or [] for name in item.split(",") if name]
    _show_plan(loaded.config.provision, chosen, roles, state, check)
    if not check and not yes:
        _ask(f"{'Change' if state is State.PRESENT else 'Take away from'} {len(chosen)} host(s)?")
    report = provision(
        request,
        chosen,
        Options(tags=roles, check=check, diff=diff, reboot=reboot.value),
        find_state_dir(state_dir, loaded.config, os.environ),
        Watcher(
            role_over=_Lines(),
            diff=message,
            may_reboot=lambda host: _confirmed(f"Reboot {host} now?"),
        ),
    )
    _show(report, output)
    if report.exit_code:
        raise typer.Exit(report.exit_code)


class _Lines:
    """One line on stderr for each role that is over, with the time since the last one."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._begun = time.monotonic()

    def __call__(self, role: RoleProgress) -> None:
        now = time.monotonic()
        seconds = now - self._since.get(role.host, self._begun)
        self._since[role.host] = now
        counts = f"ok {role.ok}, changed {role.changed}, skipped {role.skipped}"
        told = f"FAILED: {role.failed}" if role.failed else counts
        message(f"{role.host}: {role.role}: {told} ({seconds:.0f} s)")
        for unknown in role.unknown:
            message(f"{role.host}: {role.role}: {unknown}")


def _text(config: str | None) -> str:
    """The configuration as it is written; the host's service runs with the same text."""
    files = paths(config)
    if len(files) != 1:
        raise PreconditionError(
            f"the configuration is in {len(files)} files; a host gets exactly one",
            hint="give one file with --config",
        )
    return files[0].read_text(encoding="utf-8")


def _show_plan(
    config: ProvisionConfig,
    chosen: Mapping[str, HostConfig],
    roles: Sequence[str],
    state: State,
    check: bool,
) -> None:
    from opsctl.provision.inventory import ROLES

    verb = "would be checked" if check else f"will be made {state.value}"
    for name, host in chosen.items():
        where = f"{host.user}@{host.address}:{host.port}" if host.address else "this machine"
        message(f"{name} ({where}): {verb}")
    for role in ROLES:
        if roles and role not in roles:
            continue
        left = getattr(getattr(config, role), "manage", True) is False
        message(f"  {role}: {'left alone (manage: false)' if left else _about(config, role)}")


def _about(config: ProvisionConfig, role: str) -> str:
    section = getattr(config, role)
    details = {
        "nvidia_driver": lambda: f"open driver, branch {config.nvidia_driver.branch}",
        "cuda_toolkit": lambda: f"CUDA {config.cuda_toolkit.version}",
        "engine_env": lambda: f"SGLang {config.engine_env.sglang} in {config.engine_env.path}",
        "opsctl_service": lambda: f"opsctl in {config.opsctl_service.path}, systemd unit",
    }
    return details[role]() if role in details else (type(section).__doc__ or "").splitlines()[0]


def _ask(question: str) -> None:
    if not sys.stdin.isatty():
        raise UsageError("there is nobody to ask", hint="give --yes, or look first with --check")
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


def _confirmed(question: str) -> bool:
    return sys.stdin.isatty() and typer.confirm(question, err=True)


def _show(report: Report, output: Output) -> None:
    emit(report.document(), output, schema=SCHEMA, table=lambda: _table(report))
    for name, host in report.hosts.items():
        for why in host.why:
            message(f"{name}: {why}")
        for note in host.pending:
            message(f"{name}: pending: {note}")
    message(f"log: {Path(report.log)}")


def _table(report: Report) -> RenderableType:
    rows = [
        (name, x.verdict, x.changed, x.ok, x.failed, x.unreachable, len(x.pending))
        for name, x in report.hosts.items()
    ]
    return grid(("HOST", "VERDICT", "CHANGED", "OK", "FAILED", "UNREACHABLE", "PENDING"), rows)
