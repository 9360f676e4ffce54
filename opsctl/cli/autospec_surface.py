"""`opsctl autospec surface import` and `show`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl.cli.autospec_sources import BaselineOption, CaseOption, SpeculativeOption
from opsctl.cli.options import ConfigOption, Output, OutputOption, StateDirOption
from opsctl.cli.output import emit, grid, message
from opsctl.errors import OpsctlError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from opsctl.autospec.bands import Band
    from opsctl.autospec.surface import Surface
    from opsctl.autospec.surface_sets import Case, Chosen, Roles

SCHEMA = "opsctl/surface-show/v1"


def import_table(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Table of cases, in YAML or JSON; or surfaces.")
    ],
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="Where to write.")],
    case: CaseOption = None,
    profile: Annotated[
        list[str] | None,
        typer.Option("--profile", metavar="NAME", help="Take this profile; may be repeated."),
    ] = None,
    speculative: SpeculativeOption = None,
    baseline: BaselineOption = None,
) -> None:
    """Read a table of throughputs, as people publish them, into a file of surfaces.

    All cases are taken unless --case names one. Which profile speculates is told by its name
    (baseline; eagle, spec, mtp, draft), by --speculative and --baseline, or by the other one. Such
    surfaces are good for `replay` and `advise`; `serve` refuses them, as they are of no profile
    of this host. Exit code 2 when the table is wrong: every fault with its line.
    """
    from opsctl.autospec.surface_sets import Roles, dump, one_case
    from opsctl.cli.autospec_sources import cases_of
    from opsctl.system.files import write_atomic

    cases = cases_of(file, Roles(speculative, baseline))
    if case is not None:
        cases = (one_case(cases, case, file),)
    if profile:
        cases = tuple(_only(found, profile, file) for found in cases)
    try:
        write_atomic(Path(out), dump(cases), mode=0o644)
    except OSError as error:
        raise OpsctlError(f"{out}: cannot be written: {error.strerror}") from error
    for found in cases:
        names = ", ".join(
            f"{x.profile} ({_points(x)}{', speculates' if x.speculative else ''})"
            for x in found.surfaces
        )
        message(f"{found.case}: {names}" if found.case else names)
    message(f"written: {out}")


def _points(surface: Surface) -> str:
    return f"{len(surface.points)} point{'' if len(surface.points) == 1 else 's'}"


def _only(case: Case, names: list[str], where: str) -> Case:
    have = [surface.profile for surface in case.surfaces]
    for name in names:
        if name not in have:
            what = f"{where}: no profile {name!r} in {case.case or 'it'}"
            raise UsageError(what, hint=f"there are {', '.join(have)}")
    kept = tuple(surface for surface in case.surfaces if surface.profile in names)
    return case.model_copy(update={"surfaces": kept})


def show(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE|PROFILE]...",
            help="Files, or profiles measured on this host; else the pair of the configuration.",
        ),
    ] = None,
    case: CaseOption = None,
    speculative: SpeculativeOption = None,
    baseline: BaselineOption = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show tok/s by concurrency and context; of a pair also the ratio, and where they cross."""
    from opsctl.autospec.surface_sets import Roles

    roles = Roles(speculative, baseline)
    found = _found(what or [], case, roles, (config, state_dir))
    chosen = _pair(found, roles)
    bands = _bands(chosen)
    content = _document(found, chosen, bands)
    emit(content, output, schema=SCHEMA, table=lambda: _table(content))
    if output is not Output.TABLE:
        return
    for note in chosen.notes if chosen else ():
        message(f"note: {note}")
    for band in bands:
        message(f"context {band.context}: {band.words}")


def _found(what: list[str], case: str | None, roles: Roles, places: Any) -> Case:
    """The surfaces of files, of profiles by name, or of the configuration's pair."""
    from opsctl.autospec.surface_sets import Case
    from opsctl.cli.autospec_sources import case_of

    if what and all(Path(name).is_file() or "/" in name for name in what):
        return case_of(what, case, roles)
    return Case(surfaces=_measured(what, *places))


def _measured(names: list[str], config: str | None, state_dir: str | None) -> tuple[Surface, ...]:
    from opsctl.autospec import surface_files
    from opsctl.cli.loading import load_config
    from opsctl.config.state_dir import state_dir as find_state_dir

    loaded = load_config(config).config
    folder = find_state_dir(state_dir, loaded, os.environ)
    wanted = names or [loaded.auto_spec.speculative, loaded.auto_spec.baseline]
    if not all(wanted):
        raise UsageError("the configuration names no pair", hint="name a FILE or a PROFILE")
    for name in names:
        if name not in loaded.profiles and not surface_files.path_of(folder, name).exists():
            raise UsageError(f"{name}: neither a file nor a profile")
    found = [surface_files.load(folder, name) for name in wanted]
    surfaces = tuple(surface for surface in found if surface is not None)
    for name, surface in zip(wanted, found, strict=True):
        if surface is None:
            message(f"{name} was never measured on this host (`opsctl bench run`, `opsctl tune`)")
    if not surfaces:
        raise OpsctlError("no surface was found", hint="measure: `opsctl bench run`, `opsctl tune`")
    return surfaces


def _pair(case: Case, roles: Roles) -> Chosen | None:
    """The pair, when there is one: a single surface, or several of one kind, is shown as it is."""
    from opsctl.autospec.surface_sets import choose

    if roles.speculative or roles.baseline:
        return choose(case.surfaces, roles)
    try:
        return choose(case.surfaces, roles)
    except UsageError:
        return None


def _bands(chosen: Chosen | None) -> tuple[Band, ...]:
    from opsctl.autospec.bands import bands

    return bands(chosen.speculative, chosen.baseline) if chosen else ()


def _document(case: Case, chosen: Chosen | None, bands: tuple[Band, ...]) -> dict[str, Any]:
    from opsctl.autospec.advise import band_document

    surfaces = (chosen.speculative, chosen.baseline) if chosen else case.surfaces
    ratios = {(c.concurrency, c.context): c.ratio for band in bands for c in band.cells}
    measured = {
        (point.context, point.concurrency): None for surface in surfaces for point in surface.points
    }
    return {
        "case": case.case,
        "source": case.source,
        "profiles": [surface.profile for surface in surfaces],
        "speculative": chosen.speculative.profile if chosen else None,
        "baseline": chosen.baseline.profile if chosen else None,
        "cells": [
            {
                "context": context,
                "concurrency": concurrency,
                "tok_s": {x.profile: _tok_s(x, concurrency, context) for x in surfaces},
                "ratio": ratios.get((concurrency, context)),
            }
            for context, concurrency in sorted(measured)
        ],
        "contexts": [band_document(band) for band in bands],
    }


def _tok_s(surface: Surface, concurrency: int, context: int) -> float | None:
    """As measured; None where it was not, though it could be interpolated."""
    for point in surface.points:
        if (point.concurrency, point.context) == (concurrency, context):
            return point.tok_s
    return None


def _table(content: dict[str, Any]) -> RenderableType:
    paired = content["baseline"] is not None
    rows = [
        (
            cell["context"],
            cell["concurrency"],
            *(None if value is None else f"{value:.1f}" for value in cell["tok_s"].values()),
            *([None if cell["ratio"] is None else f"{cell['ratio']:.3f}"] if paired else []),
        )
        for cell in content["cells"]
    ]
    names = [name.upper() for name in content["profiles"]]
    return grid(("CONTEXT", "CONCURRENCY", *names, *(["RATIO"] if paired else [])), rows)
