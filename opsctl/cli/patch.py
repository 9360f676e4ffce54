"""`opsctl patch`: SM120 patches for an installed SGLang and FlashInfer."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsctl.cli.loading import load_config
from opsctl.cli.options import Output, OutputOption
from opsctl.cli.output import emit, message
from opsctl.cli.patch_options import Change, Chosen, DiffOption, taking
from opsctl.errors import UsageError

if TYPE_CHECKING:
    from opsctl.patching.environment import Environment
    from opsctl.patching.series import Series

SCHEMA = "opsctl/patch/v1"
NOTHING_CHOSEN = "say which patches: --all, --required, or --only NAME (several times if need be)"

app = typer.Typer(
    help="Show, apply and take back SM120 patches of an installed SGLang and FlashInfer.",
    rich_markup_mode=None,
    no_args_is_help=True,
)


@app.command("list")
def list_patches(output: OutputOption = Output.TABLE) -> None:
    """List the patches there are, the releases each is for, and what is recommended instead."""
    from opsctl.cli.patch_render import catalogue, catalogue_table
    from opsctl.patching.series import load

    document = catalogue(load())
    emit(document, output, schema="opsctl/patches/v1", table=lambda: catalogue_table(document))


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A patch, as `patch list` names it.")],
    release: Annotated[
        str | None,
        typer.Option("--release", metavar="V", help="Only the file for this release."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a patch: what it is for, and its files with header and diff."""
    from opsctl.cli.patch_render import description, description_text
    from opsctl.patching.series import load

    series = load()
    document = description(series, series.patch(name), release)
    if output is Output.TABLE:
        typer.echo(description_text(document))
    else:
        emit(document, output, schema="opsctl/patch-show/v1")


@app.command()
@taking(Chosen)
def status(chosen: Chosen, *, diff: DiffOption = False) -> None:
    """Show the state of every patch in an environment. Only reads; imports nothing of it.

    applied; applicable; not needed: the release has not the problem; superseded: it has a fix of
    its own; drifted: a file is neither as released nor as patched; blocked: an engine runs from
    the environment, or the release is not known.
    """
    from opsctl.cli.patch_render import print_diff, print_states
    from opsctl.patching.apply import look, preview
    from opsctl.patching.series import load

    series, environment = load(), _environment(chosen)
    states = [x for x in look(series, environment) if _wanted(series, chosen, x.patch.name)]
    if diff:
        print_diff(preview(series, environment, [x.patch.name for x in states]))
    print_states(environment, states, chosen.output, SCHEMA)


@app.command()
@taking(Change)
def apply(
    asked: Change,
    *,
    required: Annotated[
        bool, typer.Option("--required", help="Those that the configured profiles require.")
    ] = False,
) -> None:
    """Apply patches, and those they need: all of the selection, or nothing.

    Refused with exit code 4 when a file has drifted, or an engine runs from the environment.
    """
    from opsctl.patching.series import load

    series, environment = load(), _environment(asked)
    if required:
        asked = replace(asked, only=[*(asked.only or []), *_required(asked, environment)])
        if not asked.only:
            message("no profile of this environment requires a patch (`requires_patches`)")
    names = _names(series, asked, chosen=required)
    _change(series, environment, series.with_needs(names), asked, apply=True)


@app.command()
@taking(Change)
def revert(asked: Change) -> None:
    """Take patches back: the files are again what the wheel installed, to the byte.

    Refused with exit code 4 when a file has drifted, when an engine runs from the environment, or
    while another applied patch needs it.
    """
    from opsctl.patching.series import load

    series, environment = load(), _environment(asked)
    _change(series, environment, _names(series, asked), asked, apply=False)


@app.command()
@taking(Chosen)
def verify(chosen: Chosen) -> None:
    """Check that what is applied is whole: content, changed symbols, RECORD, byte code, originals.

    Only reads. Exit code 4 when something is wrong.
    """
    from opsctl.cli.patch_render import print_states
    from opsctl.patching.apply import check
    from opsctl.patching.series import load

    series, environment = load(), _environment(chosen)
    found, findings = check(series, environment)
    states = [x for x in found if _wanted(series, chosen, x.patch.name)]
    wrong = [x for x in findings if _wanted(series, chosen, x.patch)]
    more = {"findings": [{"name": x.patch, "path": x.path, "what": x.what} for x in wrong]}
    print_states(environment, states, chosen.output, SCHEMA, more)
    for finding in wrong:
        message(f"{finding.patch}: {finding.path} {finding.what}".replace("  ", " "))
    if wrong:
        raise typer.Exit(4)


def _change(
    series: Series, environment: Environment, names: Collection[str], asked: Change, *, apply: bool
) -> None:
    from opsctl.cli.patch_render import print_diff, print_states
    from opsctl.patching.apply import change

    dry_run, known = asked.dry_run, asked.jit_cache or _own_caches()
    done = change(series, environment, names, apply=apply, dry_run=dry_run, caches=known)
    if done.taken_back:
        message("an interrupted change was taken back first")
    if asked.diff:
        print_diff(done.edits)
    more = {
        "dry_run": dry_run,
        "changed": [edit.path for edit in done.edits],
        "wiped": [str(path) for path in done.wiped],
    }
    print_states(environment, done.states, asked.output, SCHEMA, more)
    for path in done.wiped:
        message(f"{'would wipe' if dry_run else 'wiped'} the stale build {path}")
    verb = "would change" if dry_run else "changed"
    message(f"{verb} {len(done.edits)} files" if done.edits else "nothing to change")
    if done.edits and apply and not dry_run:
        for name in names:
            caution = series.patch(name).entry.caution
            if caution:
                message(f"{name}: {caution}")
    if dry_run and done.edits:
        raise typer.Exit(3)


def _own_caches() -> list[Path]:
    from opsctl.gpu.jit_locks import flashinfer_cache

    return [flashinfer_cache(os.geteuid(), os.environ)]


def _names(series: Series, asked: Change, *, chosen: bool = False) -> tuple[str, ...]:
    if asked.all_ and asked.only:
        raise UsageError("--all and --only exclude each other")
    if not asked.all_ and not asked.only and not chosen:
        raise UsageError("no patch was chosen", hint=NOTHING_CHOSEN)
    names = [x.name for x in series.patches] if asked.all_ else asked.only or []
    return tuple(series.patch(name).name for name in names)


def _wanted(series: Series, chosen: Chosen, name: str) -> bool:
    return not chosen.only or name in {series.patch(x).name for x in chosen.only}


def _environment(chosen: Chosen) -> Environment:
    from opsctl.patching.environment import locate

    python = chosen.python
    if python is not None and chosen.site_packages is not None:
        raise UsageError("--python and --site-packages exclude each other")
    if python is None and chosen.site_packages is None:
        python = _configured(chosen.config)
    return locate(python, chosen.site_packages)


def _configured(config: str | None) -> str:
    from opsctl.patching.preflight import interpreters

    found = sorted(interpreters(load_config(config, warn=False).config))
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(
            "the configuration has no profile that runs SGLang", hint="give --python PATH"
        )
    raise UsageError(
        f"the profiles use several interpreters: {', '.join(found)}", hint="give --python PATH"
    )


def _required(asked: Change, environment: Environment) -> list[str]:
    from opsctl.patching.preflight import required

    return sorted(required(load_config(asked.config, warn=False).config, environment))
