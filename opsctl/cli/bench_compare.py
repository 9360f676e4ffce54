"""`opsctl bench compare`: which profile is faster, and where, as far as the numbers tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl.cli.options import Output, OutputOption
from opsctl.cli.output import emit, grid, message

if TYPE_CHECKING:
    from rich.console import RenderableType

SCHEMA = "opsctl/bench-compare/v1"

ResultsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="[NAME=]RESULT...",
        help="Result directories, JSONL of sglang.bench_serving, JSON of aiperf; NAME is the "
        "profile's name for the latter two.",
    ),
]
BaselineOption = Annotated[
    str | None,
    typer.Option(
        "--baseline",
        metavar="PROFILE",
        help="What the others are compared with; else the one that does not speculate.",
    ),
]


def compare(
    results: ResultsArgument,
    baseline: BaselineOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare measured profiles: ratio with its interval, verdict, and where they cross.

    Only valid cells count; the others are named. The interval (95 %) is a seeded bootstrap over
    the repeats: with one repeat the verdict is unknown.
    """
    from opsctl.bench.compare import compare as compared
    from opsctl.bench.compare_document import document
    from opsctl.bench.imports import load_sources

    content = document(compared(load_sources(results), baseline))
    emit(content, output, schema=SCHEMA, table=lambda: _table(content))
    if output is Output.TABLE:
        _tell(content)


def _table(content: dict[str, Any]) -> RenderableType:
    """One row a cell; the workload only where there are several."""
    several = len({cell["workload"] for cell in content["cells"]}) > 1
    headers = ("CONTEXT", "CONCURRENCY", "BASELINE", "TOK/S", "GAIN", "95 %", "VERDICT")
    rows = [
        (
            cell["profile"],
            *([cell["workload"]] if several else []),
            cell["context"],
            cell["concurrency"],
            f"{cell['baseline_tok_s']:.1f}",
            f"{cell['tok_s']:.1f}",
            f"{(cell['ratio'] - 1) * 100:+.1f} %",
            _bounds(cell),
            cell["verdict"],
        )
        for cell in content["cells"]
    ]
    return grid(("PROFILE", *(["WORKLOAD"] if several else []), *headers), rows)


def _bounds(cell: dict[str, Any]) -> str:
    if cell["low"] is None:
        return "-"
    return f"{(cell['low'] - 1) * 100:+.1f} to {(cell['high'] - 1) * 100:+.1f} %"


def _tell(content: dict[str, Any]) -> None:
    """Say on stderr what the table cannot hold."""
    for note in content["notes"]:
        message(f"note: {note}")
    for cell in content["cells"]:
        if cell["why"]:
            where = f"concurrency {cell['concurrency']}, context {cell['context']}"
            message(f"unknown: {cell['profile']}, {where}: {cell['why']}")
    for item in content["left_out"]:
        where = f"concurrency {item['concurrency']}, context {item['context']}"
        what = f"{item['profile']}, {where}, repeat {item['repeat']}"
        message(f"does not count: {item['source']}: {what}: {item['reason']}")
    for found in content["findings"]:
        pair = f"{found['profile']} against {found['baseline']} ({found['workload']})"
        message(f"{pair}: {found['finding']}")
