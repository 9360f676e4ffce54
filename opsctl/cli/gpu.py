"""`opsctl gpu`: who holds the GPUs, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl.cli.gpu_reap import reap
from opsctl.cli.options import Output, OutputOption

if TYPE_CHECKING:
    from opsctl.gpu.model import Census
    from opsctl.gpu.nvml import Nvml

SCHEMA = "opsctl/gpu/v1"
INTERVAL = 2.0
"""Seconds between two looks of `--watch`."""

app = typer.Typer(
    help="Show who holds the GPUs and why.", rich_markup_mode=None, no_args_is_help=True
)

app.command()(reap)


def _or_from_root(ctx: typer.Context, value: list[str] | None) -> list[str]:
    context: Any = ctx
    while not value and context.parent is not None:
        context = context.parent
        above = context.params.get("state_dir")
        value = [above] if above else None
    return value or []


StateDirsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--state-dir",
        metavar="DIR",
        callback=_or_from_root,
        help="Also look for recorded engines here; may be given several times.",
    ),
]


@app.command()
def ps(
    state_dir: StateDirsOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every 2 seconds.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show every GPU, every process that holds one, what it is, and why that is believed.

    Only reads. Exit code 4 when the driver is faulty or does not answer; 0 otherwise, also where
    there is no GPU.
    """
    directories = state_dir or []
    if watch:
        from opsctl.cli.gpu_render import watch_census
        from opsctl.gpu.nvml import Nvml

        with Nvml() as reader:
            watch_census(lambda: _look(directories, reader=reader), output, SCHEMA, INTERVAL)
    census = _look(directories)
    _show(census, output)
    if census.snapshot.state in {"fault", "unresponsive"}:
        raise typer.Exit(4)


@app.command()
def explain(
    pid: Annotated[int, typer.Argument(min=1, help="Number of a process, as `gpu ps` shows it.")],
    state_dir: StateDirsOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show everything that is known about one process: what it is, why, and what a reap would do.

    Any number may be asked for, also one that holds nothing. Only reads.
    """
    from opsctl.cli.gpu_explain import explanation, explanation_table
    from opsctl.cli.output import emit

    document = explanation(_look(state_dir or [], about=[pid]), pid)
    emit(
        document,
        output,
        schema="opsctl/gpu-explain/v1",
        table=lambda: explanation_table(document),
    )


def _look(
    directories: Sequence[str], about: Sequence[int] = (), reader: Nvml | None = None
) -> Census:
    from opsctl.gpu.survey import look

    return look(directories, about=about, reader=reader)


def _show(census: Census, output: Output) -> None:
    from opsctl.cli.gpu_render import census_table, document
    from opsctl.cli.output import emit

    emit(document(census), output, schema=SCHEMA, table=lambda: census_table(census))
