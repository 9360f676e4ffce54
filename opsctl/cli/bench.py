"""`opsctl bench`: measure launch profiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from opsctl.cli.bench_compare import compare
from opsctl.cli.bench_report import report
from opsctl.cli.options import ConfigOption, Output, OutputOption
from opsctl.cli.output import emit, grid, message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from opsctl.bench.results import Cell

app = typer.Typer(
    help="Measure launch profiles, and compare what was measured.",
    rich_markup_mode=None,
    no_args_is_help=True,
)


app.command("compare")(compare)
app.command("report")(report)


@app.callback()
def root() -> None:
    """Measure launch profiles, and compare what was measured."""


@app.command("run")
def run(
    profile: Annotated[
        list[str] | None,
        typer.Option("--profile", metavar="NAME", help="Profile to measure; may be repeated."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="Measure the server that runs there instead."),
    ] = None,
    concurrency: Annotated[
        str, typer.Option("--concurrency", metavar="N,...", help="Requests at once.")
    ] = "1,2,5,10,30,70,100,250",
    context: Annotated[
        str,
        typer.Option("--context", metavar="N,...", help="Tokens before the task; 4k is 4096."),
    ] = "0",
    duration: Annotated[
        str, typer.Option("--duration", metavar="TIME", help="Steady window of a cell.")
    ] = "30s",
    requests: Annotated[
        int | None,
        typer.Option("--requests", min=1, help="Instead: until so many have ended in it."),
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Times each cell.")] = 3,
    output_tokens: Annotated[
        int,
        typer.Option(
            "--output-tokens", min=8, help="Length of every answer; with latency the most."
        ),
    ] = 256,
    workload: Annotated[
        str,
        typer.Option(
            "--workload",
            metavar="NAME|FILE",
            help="coding, agentic, chat, long-document, fixed, or a JSONL file.",
        ),
    ] = "coding",
    latency: Annotated[
        bool, typer.Option("--latency", help="Let answers end by themselves (no ignore_eos).")
    ] = False,
    arrivals: Annotated[
        str | None,
        typer.Option("--arrivals", metavar="FILE", help="Open loop: send at the times in FILE."),
    ] = None,
    allow_prefix_cache: Annotated[
        bool, typer.Option("--allow-prefix-cache", help="Do not salt the prompts.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Measure the cells once more that were not valid.")
    ] = False,
    api_key_env: Annotated[
        str | None,
        typer.Option("--api-key-env", metavar="NAME", help="Variable with the key for --url."),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="Result directory; an unfinished one goes on."),
    ] = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Start each profile, measure every cell of the grid, stop it; results go to a directory.

    Interrupted or killed, it goes on where it was when the same directory is named again. Exit
    codes: 0 measured, 1 no cell is valid, 4 the host is not ready, 130 interrupted.
    """
    from opsctl.bench import arrivals as timetables
    from opsctl.bench.grid import Grid, numbers
    from opsctl.bench.loops import Extent
    from opsctl.bench.measure import Way
    from opsctl.bench.run import Order
    from opsctl.bench.workload import load
    from opsctl.cli.bench_run import Wanted, execute
    from opsctl.config.units import parse_duration
    from opsctl.errors import UsageError

    try:
        seconds = parse_duration(duration)
    except ValueError as error:
        raise UsageError(f"--duration: {error}") from None
    wanted = Wanted(profile or [], url, api_key_env, out, config)
    names = wanted.names()
    order = Order(
        grid=Grid(
            names,
            (1,) if arrivals else numbers(concurrency, "--concurrency", least=1),
            numbers(context, "--context", least=0),
            repeats,
        ),
        way=Way(
            Extent(duration=seconds, requests=requests),
            output_tokens,
            "latency" if latency or arrivals else "throughput",
            timetables.load(arrivals) if arrivals else None,
        ),
        workload=load(workload),
        salted=not allow_prefix_cache,
        again=again,
    )
    result, folder = execute(wanted, order)
    document = result.model_dump(mode="json", by_alias=True)
    schema = document.pop("schema")
    emit(document, output, schema=schema, table=lambda: _table(result.cells))
    invalid = sum(not cell.valid for cell in result.cells)
    message(f"{len(result.cells)} cells, {invalid} of them not valid; results in {folder}")
    raise typer.Exit(1 if invalid == len(result.cells) else 0)


def _table(cells: Sequence[Cell]) -> RenderableType:
    """One row a cell."""
    return grid(
        ("PROFILE", "CONCURRENCY", "CONTEXT", "REPEAT", "TOK/S", "PER STREAM", "TTFT P50",
         "ACCEPT", "VERDICT"),
        [
            (
                cell.profile, cell.concurrency, cell.context, cell.repeat + 1,
                f"{cell.throughput_tok_s:.1f}" if cell.valid else None,
                f"{cell.per_user_tok_s:.1f}" if cell.valid else None,
                f"{cell.ttft_s.p50:.3f} s" if cell.valid and cell.ttft_s else None,
                None if cell.accept_length is None else f"{cell.accept_length:.2f}",
                "valid" if cell.valid else cell.reason,
            )
            for cell in cells
        ],
    )  # fmt: skip
