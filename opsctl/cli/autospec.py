"""`opsctl autospec`: when speculation pays, asked before anything is switched."""

from __future__ import annotations

import typer

from opsctl.cli.autospec_advise import advise
from opsctl.cli.autospec_replay import replay
from opsctl.cli.autospec_surface import import_table, show

app = typer.Typer(
    help="Find out when speculation pays, and what a policy would do.",
    rich_markup_mode=None,
    no_args_is_help=True,
)
surface = typer.Typer(
    help="Read and show surfaces: tok/s over concurrency and context.",
    rich_markup_mode=None,
    no_args_is_help=True,
)
surface.command("import", short_help="Read a published table into a file of surfaces.")(
    import_table
)
surface.command("show", short_help="Show tok/s, the ratio, and where a pair crosses.")(show)
app.command("advise")(advise)
app.command("replay")(replay)
app.add_typer(surface, name="surface")


@app.callback()
def root() -> None:
    """Find out when speculation pays, and what a policy would do."""
