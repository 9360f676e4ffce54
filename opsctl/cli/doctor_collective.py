"""`opsctl doctor collective`: two GPUs sum a tensor, with a deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl.cli.options import ConfigOption, Output, OutputOption
from opsctl.cli.output import emit, grid
from opsctl.errors import PreconditionError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from opsctl.doctor.collective import Collective, Setting

SCHEMA = "opsctl/doctor-collective/v1"
_FIXES = {
    "ok without peer-to-peer": "manual: BIOS: IOMMU and ACS off; else set NCCL_P2P_DISABLE=1 in "
    "the profile's environment",
    "hangs": "manual: see `opsctl doctor --only iommu --only acs --only xid`; reboot if GPUs hang",
    "fails": "manual: see the message above; `opsctl doctor` for the environment",
}


def collective(
    gpus: Annotated[
        str, typer.Option("--gpus", metavar="A,B", help="The two GPUs, as NVML numbers them.")
    ] = "0,1",
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="For each of at most two tries.")
    ] = "60s",
    python: Annotated[
        str | None,
        typer.Option(
            "--python", metavar="PATH", help="Interpreter with torch; else that of the profiles."
        ),
    ] = None,
    backend: Annotated[str, typer.Option("--backend", hidden=True)] = "nccl",
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let two GPUs sum a tensor with NCCL in the engine's environment, and check the sum.

    Where that hangs, fails or gives a wrong sum, it is tried once more with NCCL_P2P_DISABLE=1.
    Uses GPU memory: refused while something holds these GPUs. Whatever hangs is killed. Exit code
    0 when a way works, 4 otherwise.
    """
    from opsctl.doctor.collective import Setting
    from opsctl.doctor.collective import collective as run

    setting = Setting(_python(python, config), _pair(gpus), _seconds(timeout), backend)
    if backend == "nccl":
        _require_free(setting)
    try:
        found = run(setting)
    except OSError as error:
        raise PreconditionError(
            f"{setting.python} cannot be started: {error.strerror}", hint="give --python PATH"
        ) from None
    document = _document(setting, found)
    emit(document, output, schema=SCHEMA, table=lambda: _table(document))
    if not found.verdict.good:
        raise typer.Exit(4)


def _pair(text: str) -> tuple[int, int]:
    words = text.split(",")
    if len(words) != 2 or not all(x.isascii() and x.isdigit() for x in words):
        raise UsageError(f"--gpus: {text!r} is not two numbers such as 0,1")
    first, second = map(int, words)
    if first == second:
        raise UsageError("--gpus: two different GPUs are needed")
    return first, second


def _seconds(text: str) -> float:
    from opsctl.config.units import parse_duration

    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--timeout: {error}") from None
    if seconds < 1:
        raise UsageError("--timeout: at least 1s")
    return seconds


def _python(explicit: str | None, config: str | None) -> str:
    import os

    from opsctl.cli.loading import load_config
    from opsctl.config.names import expand_home
    from opsctl.patching.preflight import interpreters

    if explicit is not None:
        return expand_home(explicit, os.environ.get("HOME"))
    found = sorted(interpreters(load_config(config, warn=False).config))
    if len(found) != 1:
        told = ", ".join(found) or "no profile runs SGLang"
        raise UsageError(f"which interpreter? {told}", hint="give --python PATH")
    return found[0]


def _require_free(setting: Setting) -> None:
    """Refuse GPUs that are not there, or that something holds."""
    from opsctl.gpu.survey import look

    census = look()
    if census.snapshot.state != "ok":
        raise PreconditionError(f"no GPU can be used: {census.snapshot.why}")
    there = {gpu.index for gpu in census.snapshot.gpus}
    if absent := sorted(set(setting.gpus) - there):
        raise PreconditionError(f"there is no GPU {', '.join(map(str, absent))}")
    holders = [x for x in census.holders if set(x.gpus) & set(setting.gpus)]
    if holders:
        told = ", ".join(f"pid {x.pid} ({x.verdict})" for x in holders)
        raise PreconditionError(
            f"GPU {setting.gpus[0]} or {setting.gpus[1]} is in use: {told}",
            hint="stop the engine first, or choose other GPUs with --gpus",
        )


def _document(setting: Setting, found: Collective) -> dict[str, Any]:
    return {
        "verdict": found.verdict.verdict,
        "why": found.verdict.why,
        "fix": _FIXES.get(found.verdict.verdict),
        "gpus": list(setting.gpus),
        "backend": setting.backend,
        "python": setting.python,
        "left": list(found.left),
        "runs": [{**vars(run), "seconds": round(run.seconds, 1)} for run in found.runs],
    }


def _table(document: dict[str, Any]) -> RenderableType:
    """The verdict first, then one row a try."""
    rows: list[tuple[str, object]] = [(name, document[name]) for name in ("verdict", "why", "fix")]
    rows += [
        (
            "with peer-to-peer" if run["peer_to_peer"] else "without",
            f"{run['outcome']} in {run['seconds']} s, stage {run['stage']}, "
            f"transport {run['transport'] or 'unknown'}",
        )
        for run in document["runs"]
    ]
    if document["left"]:
        rows.append(("cannot be ended", f"pids {', '.join(map(str, document['left']))}"))
    return grid(("", ""), rows)
