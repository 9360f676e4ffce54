"""`opsctl tune`: from measurements to settings, or to the finding that none follow."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl.cli.bench_compare import ResultsArgument
from opsctl.cli.options import ConfigOption, Output, OutputOption, StateDirOption
from opsctl.cli.output import emit, grid, message
from opsctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from opsctl.bench.tune import Tuning
    from opsctl.bench.tune_write import Change

SCHEMA = "opsctl/tune/v1"


def tune(
    results: ResultsArgument,
    workload: Annotated[
        str | None,
        typer.Option("--workload", metavar="NAME", help="Of results of several, use this one."),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            "--context", metavar="N,...", help="Judge at these contexts only; else at all measured."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; exit code 3 when something would.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Set opsctl to what was measured on this host, after showing what changes.

    Writes the surfaces of the measured profiles to the state directory, and conf.d/90-tuned.yaml:
    water marks and SGLang's adaptive file, only where the intervals do not overlap. Exit code 4
    when no setting follows from the results; the finding is said in words.
    """
    from opsctl.bench import tune_write
    from opsctl.bench.imports import load_sources
    from opsctl.bench.tune import Wanted
    from opsctl.bench.tune import tune as tuned
    from opsctl.cli.loading import load_config
    from opsctl.config.state_dir import state_dir as find_state_dir

    loaded = load_config(config)
    wanted = Wanted(loaded.config, _host(), _now(), workload, _contexts(context))
    found = tuned(load_sources(results), wanted)
    places = tune_write.Places(loaded.files, find_state_dir(state_dir, loaded.config, os.environ))
    changes = tune_write.changes(found, loaded.config, places, os.environ)
    _tell(found, changes)
    if tune_write.stale(found, places):
        message(f"{places.drop_in} is of an earlier measurement and still in force: remove it")
    pending = any(change.state != "same" for change in changes)
    if not pending:
        message("nothing to change")
    elif not dry_run:
        _write(changes, yes)
    content = _document(found, changes, written=pending and not dry_run)
    emit(content, output, schema=SCHEMA, table=lambda: _table(content))
    if not found.decides:
        raise typer.Exit(4)
    raise typer.Exit(3 if dry_run and pending else 0)


def _host() -> Mapping[str, Any]:
    import asyncio

    from opsctl.bench.environment import host

    return asyncio.run(host())


def _now() -> str:
    from datetime import UTC, datetime

    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _contexts(text: str | None) -> tuple[int, ...] | None:
    from opsctl.bench.grid import numbers

    return None if text is None else numbers(text, "--context", least=0)


def _tell(found: Tuning, changes: Sequence[Change]) -> None:
    """Say on stderr what was found and what would change."""
    for note in (*found.notes, *found.marks.notes):
        message(f"note: {note}")
    names = f"{found.pair.profile.name} against {found.pair.baseline.name}"
    message(f"{names} ({found.pair.workload}): {found.pair.finding}")
    if not found.marks.found:
        message(f"no water marks: {found.marks.why_not}")
    if not found.adaptive.slots:
        message(f"no adaptive file for SGLang: {found.adaptive.why_not}")
    for change in changes:
        if change.state != "same" and change.path.parent.name != "surfaces":
            message(change.diff().rstrip())


def _write(changes: Sequence[Change], yes: bool) -> None:
    from opsctl.bench.tune_write import write

    if not yes and not sys.stdin.isatty():
        raise UsageError("there is nobody to ask", hint="give --yes, or look first with --dry-run")
    if not yes and not typer.confirm("Write this?", err=True):
        raise typer.Exit(1)
    write(changes)
    message("written; a running opsctl takes it up with `opsctl reload`")


def _document(found: Tuning, changes: Sequence[Change], *, written: bool) -> dict[str, Any]:
    from opsctl.bench.compare_document import document
    from opsctl.bench.compare_model import Comparison

    pair = found.pair
    contexts = document(Comparison((pair,), (), ()))["contexts"]
    return {
        "speculative": pair.profile.name,
        "baseline": pair.baseline.name,
        "workload": pair.workload,
        "finding": pair.finding,
        "contexts": contexts,
        "marks": {"low": found.marks.low, "high": found.marks.high} if found.marks.found else None,
        "marks_refused": found.marks.why_not,
        "adaptive": [{"batch": x.batch, "candidate_steps": x.steps} for x in found.adaptive.slots],
        "adaptive_refused": found.adaptive.why_not,
        "written": written,
        "files": [
            {"path": str(x.path), "state": x.state, "diff": x.diff() if x.state != "same" else ""}
            for x in changes
        ],
        "notes": [*found.notes, *found.marks.notes],
    }


def _table(content: dict[str, Any]) -> RenderableType:
    return grid(("FILE", "STATE"), [(item["path"], item["state"]) for item in content["files"]])
