"""`opsctl profile lint`: what is wrong with a launch profile before it loads for minutes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsctl.cli.loading import load_config
from opsctl.cli.options import ConfigOption, Output, OutputOption
from opsctl.cli.output import emit, message
from opsctl.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from opsctl.config.load import Loaded
    from opsctl.config.schema import LaunchProfile
    from opsctl.profiles.catalogue import Catalogue
    from opsctl.profiles.lint import Finding
    from opsctl.profiles.lint_gather import Gpus
    from opsctl.profiles.lint_model import Patches

SCHEMA = "opsctl/profile-lint/v1"


class GpuKind(StrEnum):
    """Whose rules apply."""

    SM120 = "sm120"
    SM100 = "sm100"
    SM90 = "sm90"
    DETECT = "detect"
    NONE = "none"


CAPABILITIES = {GpuKind.SM120: (12, 0), GpuKind.SM100: (10, 0), GpuKind.SM90: (9, 0)}


def lint(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PROFILE]...", help="Launch profiles; all when left out."),
    ] = None,
    sglang: Annotated[
        str | None,
        typer.Option(
            "--sglang",
            metavar="PATH",
            help="Interpreter, environment or site-packages of the SGLang to lint against; "
            "else that of the profile's `python`.",
        ),
    ] = None,
    sglang_version: Annotated[
        str | None,
        typer.Option(
            "--sglang-version", metavar="V", help="Release to lint against, such as 0.5.23."
        ),
    ] = None,
    gpu: Annotated[
        GpuKind,
        typer.Option("--gpu", help="GPUs to lint for; detect asks NVML and else assumes sm120."),
    ] = GpuKind.DETECT,
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Find what would crash, be ignored or mislead, before the engine loads for minutes.

    Exit code 4 when there are errors; warnings and notes do not count.
    """
    from opsctl.profiles.lint_gather import check, in_order

    loaded = load_config(config, warn=False)
    chosen = _chosen(loaded, names or [])
    catalogue = _catalogue(sglang, sglang_version)
    gpus = _gpus(gpu)
    positions = {key: str(origin) for key, origin in loaded.origins.items()}
    findings: list[Finding] = []
    for name in chosen:
        profile = loaded.config.profiles[name]
        found = check(
            name,
            profile,
            gpus,
            catalogue=catalogue,
            config=loaded.config,
            patches=_patches(profile, sglang, sglang_version),
        )
        findings += in_order(found, positions)
    _show(findings, chosen, output)
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(4)


def _chosen(loaded: Loaded, names: Sequence[str]) -> tuple[str, ...]:
    from opsctl.config.extends import suggestion
    from opsctl.config.rules import launchable

    known = loaded.config.profiles
    for name in names:
        if name not in known:
            raise UsageError(
                f"there is no profile {name!r}{suggestion(name, known)}",
                hint=f"profiles: {', '.join(known)}",
            )
    return tuple(dict.fromkeys(names)) or launchable(loaded.config)


def _catalogue(path: str | None, version: str | None) -> Catalogue | None:
    """The SGLang named on the command line; None leaves it to each profile's `python`."""
    from opsctl.profiles import catalogue as catalogues

    if path is not None and version is not None:
        raise UsageError("--sglang and --sglang-version exclude each other")
    if version is not None and version not in catalogues.KNOWN_VERSIONS:
        raise UsageError(
            f"--sglang-version: SGLang {version} is not known",
            hint=f"known: {', '.join(catalogues.KNOWN_VERSIONS)}; or give --sglang PATH",
        )
    if version is not None:
        return catalogues.shipped(version)
    if path is None:
        return None
    found = catalogues.site_packages_of(path)
    if found is None:
        raise UsageError(
            f"--sglang: {path} is no interpreter, environment or site-packages directory"
        )
    return catalogues.installed(Path(found))


def _patches(profile: LaunchProfile, path: str | None, version: str | None) -> Patches:
    """What is patched in the SGLang that is linted against; a bare release is not patched."""
    from opsctl.patching.environment import locate
    from opsctl.patching.preflight import of_profile
    from opsctl.profiles.lint_model import Patches

    if version is not None:
        return Patches()
    return of_profile(profile, locate(path) if path is not None else None)


def _gpus(kind: GpuKind) -> Gpus:
    from opsctl.profiles.lint_gather import Gpus

    if kind is not GpuKind.DETECT:
        return Gpus(CAPABILITIES.get(kind))
    from opsctl.gpu import nvml

    snapshot = nvml.read(deadline=2.0)
    known = [gpu.compute_capability for gpu in snapshot.gpus if gpu.compute_capability]
    if snapshot.state == "ok" and known:
        return Gpus(min(known), len(snapshot.gpus))
    message("no GPU found here: linting for sm120 (--gpu none leaves these rules out)")
    return Gpus(CAPABILITIES[GpuKind.SM120])


def _show(findings: Sequence[Finding], chosen: Sequence[str], output: Output) -> None:
    rows = [vars(finding) for finding in findings]
    emit({"findings": rows}, output, schema=SCHEMA, table=lambda: _table(findings))
    if output is Output.TABLE:
        count = {s: sum(x.severity == s for x in findings) for s in ("error", "warning", "info")}
        told = ", ".join(f"{number} {word}" for word, number in _words(count).items())
        profiles = f"{len(chosen)} profile{'' if len(chosen) == 1 else 's'}"
        message(f"{profiles}: {told}")


def _words(count: dict[str, int]) -> dict[str, int]:
    plural = {"error": "errors", "warning": "warnings", "info": "notes"}
    single = {"error": "error", "warning": "warning", "info": "note"}
    return {(single if n == 1 else plural)[word]: n for word, n in count.items()}


def _table(findings: Sequence[Finding]) -> RenderableType:
    """Two lines for each, as compilers tell it: a table of seven columns fits no terminal."""
    from rich.text import Text

    lines: list[str] = []
    for x in findings:
        where = f"{x.at}: " if x.at else ""
        lines.append(f"{where}{x.severity}: {x.profile}: {x.key}: {x.message} [{x.code}]")
        lines.append(f"    {x.fix}")
    return Text("\n".join(lines))
