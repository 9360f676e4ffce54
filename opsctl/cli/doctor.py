"""`opsctl doctor`: whether this host can serve, and what to do where it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from opsctl.cli.doctor_collective import collective
from opsctl.cli.options import ConfigOption, Output, OutputOption
from opsctl.cli.output import emit, message
from opsctl.errors import ConfigError

if TYPE_CHECKING:
    from opsctl.config.schema import Config

SCHEMA = "opsctl/doctor/v1"

app = typer.Typer(
    help="Check whether this host can serve, and say what to do where it cannot.",
    rich_markup_mode=None,
)

app.command()(collective)

OnlyOption = Annotated[
    list[str] | None, typer.Option("--only", metavar="CHECK", help="This check; may be repeated.")
]
PythonOption = Annotated[
    str | None,
    typer.Option(
        "--python",
        metavar="PATH",
        help="Interpreter of an engine's environment; else those of the profiles.",
    ),
]
HostOption = Annotated[
    list[str] | None,
    typer.Option(
        "--host", metavar="HOST", help="Ask on this provisioned host instead; may be repeated."
    ),
]


@app.callback(invoke_without_command=True)
def examine(
    ctx: typer.Context,
    only: OnlyOption = None,
    python: PythonOption = None,
    host: HostOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check this host: what was found, what is wanted, why, and the fix.

    Only reads, creates no CUDA context, and is safe beside a serving engine. What cannot be read
    is `unknown`, with the reason. Exit code 4 when a check fails, else 0.
    """
    if ctx.invoked_subcommand is not None:
        return
    if host:
        from opsctl.cli.doctor_hosts import examine_hosts

        examine_hosts(host, only or (), config, output)
        return
    from opsctl.cli.doctor_render import document, results_table, summary
    from opsctl.doctor.run import failed, run

    known, reason = _config(config)
    results = run(only or (), known, python=python, no_config=reason)
    emit(document(results), output, schema=SCHEMA, table=lambda: results_table(results))
    if output is Output.TABLE:
        message(summary(results))
    if failed(results):
        raise typer.Exit(4)


@app.command("list")
def list_checks(output: OutputOption = Output.TABLE) -> None:
    """List all checks."""
    from opsctl.cli.doctor_render import catalogue, catalogue_table
    from opsctl.doctor.registry import CHECKS

    entries = catalogue(CHECKS)
    emit(
        {"checks": entries},
        output,
        schema="opsctl/doctor-checks/v1",
        table=lambda: catalogue_table(entries),
    )


@app.command()
def explain(
    check: Annotated[str, typer.Argument(metavar="CHECK", help="As `doctor list` names it.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Explain a check: what it reads, what it wants and why, where that is known from, the fix."""
    from opsctl.cli.doctor_render import catalogue, explanation_table
    from opsctl.doctor.registry import named

    [entry] = catalogue([named(check)])
    emit(entry, output, schema="opsctl/doctor-check/v1", table=lambda: explanation_table(entry))


def _config(explicit: str | None) -> tuple[Config | None, str]:
    """The configuration, or why there is none; one that is named must be right."""
    import os
    from pathlib import Path

    from opsctl.cli.loading import load_config
    from opsctl.config.locate import locate

    try:
        locate(explicit, environment=os.environ, cwd=Path.cwd())
    except ConfigError:
        if explicit or os.environ.get("OPSCTL_CONFIG"):
            raise
        return None, "there is no configuration"
    return load_config(explicit, warn=False).config, ""
