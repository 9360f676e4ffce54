"""`opsctl bench report`: what was measured, to look at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsctl.cli.bench_compare import BaselineOption, ResultsArgument
from opsctl.cli.options import Output, OutputOption
from opsctl.cli.output import emit, message
from opsctl.errors import OpsctlError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from opsctl.bench.report import Report

SCHEMA = "opsctl/bench-report/v1"


def report(
    results: ResultsArgument,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write one page that needs nothing else."),
    ] = None,
    baseline: BaselineOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show measured profiles: a plot here, and a page with charts with --html.

    The page is one file without scripts and without a network; it prints, and follows light and
    dark.
    """
    from opsctl.bench.imports import load_sources
    from opsctl.bench.report import document
    from opsctl.bench.report import report as reported

    found = reported(load_sources(results), baseline)
    if html is not None:
        _write(html, found)
    emit(document(found), output, schema=SCHEMA, table=lambda: _plots(found))
    if output is Output.TABLE:
        for note in found.comparison.notes:
            message(f"note: {note}")
        for item in found.comparison.left_out:
            message(f"does not count: {item}")
        for pair in found.comparison.pairs:
            message(f"{pair.profile.name} against {pair.baseline.name}: {pair.finding}")
    if html is not None:
        message(f"written: {html}")


def _write(path: Path, found: Report) -> None:
    from opsctl.bench.report_html import page
    from opsctl.system.files import write_atomic

    try:
        write_atomic(path, page(found), mode=0o644)
    except OSError as error:
        raise OpsctlError(f"{path}: cannot be written: {error.strerror}") from error


def _plots(found: Report) -> RenderableType:
    import shutil

    from rich.text import Text

    from opsctl.bench.report_plot import plot

    width = min(shutil.get_terminal_size((80, 24)).columns, 100)
    return Text("\n\n".join(plot(panel, width=width) for panel in found.panels))
