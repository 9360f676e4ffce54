"""`opsctl unit`: the systemd unit that runs `opsctl serve`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsctl.cli.loading import load_config
from opsctl.cli.options import ConfigOption, Output, OutputOption, StateDirOption
from opsctl.cli.output import emit, grid, message
from opsctl.errors import PreconditionError

if TYPE_CHECKING:
    from opsctl.provision.unit import Service

SCHEMA = "opsctl/unit/v1"

app = typer.Typer(
    help="Make, install and check the systemd unit of `opsctl serve`.",
    rich_markup_mode=None,
    no_args_is_help=True,
)

InstanceOption = Annotated[
    str | None,
    typer.Option(
        "--instance",
        metavar="NAME",
        help="One of several on this host: opsctl@NAME, from /etc/opsctl/NAME.yaml.",
    ),
]
UserOption = Annotated[
    str | None,
    typer.Option("--user", metavar="U", help="Who serves; else provision.opsctl_service.user."),
]
AutoSpecOption = Annotated[
    bool | None,
    typer.Option(
        "--auto-spec/--no-auto-spec",
        help="Serve with --auto-spec; else when the configuration has a pair of profiles.",
    ),
]
RootOption = Annotated[
    Path, typer.Option("--root", metavar="DIR", help="Tree of another system, such as an image.")
]


@app.command()
def render(
    instance: InstanceOption = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    user: UserOption = None,
    auto_spec: AutoSpecOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print the unit that the configuration asks for; nothing is written.

    JSON and YAML hold every file that `install` writes.
    """
    from opsctl.provision.unit import render as files_of

    files = files_of(_service(instance, config, state_dir, user, auto_spec))
    if output is not Output.TABLE:
        document = {"files": [{"path": x.path, "content": x.content} for x in files]}
        emit(document, output, schema=SCHEMA)
        return
    units = [file for file in files if "/systemd/system/" in file.path]
    parts = [f"# {x.path}\n{x.content}" if len(units) > 1 else x.content for x in units]
    sys.stdout.write("\n".join(parts))


@app.command()
def install(
    instance: InstanceOption = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    user: UserOption = None,
    auto_spec: AutoSpecOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; exit code 3 when something would.")
    ] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show the changed lines.")] = False,
    enable: Annotated[bool, typer.Option("--enable", help="Have it started at boot.")] = False,
    root: RootOption = Path("/"),
    output: OutputOption = Output.TABLE,
) -> None:
    """Write the unit and have systemd read it. Nothing is started or restarted.

    Exit code 4 when a file that opsctl did not write is in the way.
    """
    from opsctl.provision import unit_install
    from opsctl.provision.unit import render as files_of

    service = _service(instance, config, state_dir, user, auto_spec)
    changes = unit_install.changes(files_of(service), root)
    enabling = enable and not unit_install.is_enabled(service.name, root)
    if not dry_run and (changes or enabling):
        _refuse_unless_it_could_run(service, root)
        unit_install.apply(changes, root)
        if enabling:
            unit_install.enable(service.name, root)
    rows = [{"path": x.path, "change": x.what} for x in changes]
    rows += [{"path": service.name, "change": "enabled"}] if enabling else []
    if diff:
        sys.stdout.write("".join(change.diff() for change in changes))
    if output is not Output.TABLE:
        emit({"dry_run": dry_run, "changes": rows}, output, schema="opsctl/unit-install/v1")
    for row in rows:
        message(f"{'would be ' if dry_run else ''}{row['change']}: {row['path']}")
    if not rows:
        message("nothing to change")
    if dry_run and rows:
        raise typer.Exit(3)


@app.command()
def verify(
    instance: InstanceOption = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    user: UserOption = None,
    auto_spec: AutoSpecOption = None,
    root: RootOption = Path("/"),
    output: OutputOption = Output.TABLE,
) -> None:
    """Check the installed unit: as the configuration wants it, and by systemd's own judgement.

    Only reads. Exit code 4 when something is wrong.
    """
    from opsctl.provision.unit import render as files_of
    from opsctl.provision.unit_verify import verify as checks_of

    service = _service(instance, config, state_dir, user, auto_spec)
    checks = checks_of(service, files_of(service), root)
    document = {"checks": [{"id": x.id, "status": x.status, "why": x.why} for x in checks]}
    rows = [(x.id, x.status, x.why) for x in checks]
    emit(
        document,
        output,
        schema="opsctl/unit-verify/v1",
        table=lambda: grid(("CHECK", "STATUS", "WHY"), rows),
    )
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(4)


def _service(
    instance: str | None,
    config: str | None,
    state_dir: str | None,
    user: str | None,
    auto_spec: bool | None,
) -> Service:
    from opsctl.cli.loading import paths
    from opsctl.provision.unit_service import service_of

    explicit = config or (f"/etc/opsctl/{instance}.yaml" if instance else None)
    loaded = load_config(explicit, warn=False).config
    return service_of(
        loaded,
        config_path=str(paths(explicit)[0].absolute()),
        instance=instance or "",
        state_dir=state_dir,
        user=user,
        auto_spec=auto_spec,
    )


def _refuse_unless_it_could_run(service: Service, root: Path) -> None:
    if root != Path("/"):
        return
    if os.geteuid() != 0:
        raise PreconditionError("only root can install a unit", hint="sudo, or --dry-run to see")
    if service.home is None:
        raise PreconditionError(
            f"there is no user {service.user!r}",
            hint=f"useradd --system --home-dir {service.state_dir} {service.user}",
        )
