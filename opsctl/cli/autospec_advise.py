"""`opsctl autospec advise`: whether to speculate, how to switch, and what it would gain."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl.cli.autospec_replay import (
    HoursOption,
    MechanismName,
    PatternOption,
    SecondsOption,
    SeedOption,
    SurfaceOption,
)
from opsctl.cli.autospec_sources import BaselineOption, CaseOption, SpeculativeOption
from opsctl.cli.options import ConfigOption, Output, OutputOption, StateDirOption
from opsctl.cli.output import emit, grid, message
from opsctl.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from opsctl.autospec.mechanism import Choice
    from opsctl.cli.autospec_setting import Found, Wanted


def advise(
    surface: SurfaceOption = None,
    case: CaseOption = None,
    speculative: SpeculativeOption = None,
    baseline: BaselineOption = None,
    history: Annotated[
        str | None,
        typer.Option("--history", metavar="JOURNAL", help="Load: a load journal of `serve`."),
    ] = None,
    trace: Annotated[
        str | None, typer.Option("--trace", metavar="FILE", help="Load: a trace, as for replay.")
    ] = None,
    pattern: PatternOption = None,
    mechanism: Annotated[
        MechanismName | None,
        typer.Option("--mechanism", help="How a switch is made; else the cheapest that works."),
    ] = None,
    switch_seconds: SecondsOption = None,
    seed: SeedOption = 0,
    hours: HoursOption = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say whether to speculate: by context, with which mechanism, and what a day would gain.

    Judges the surfaces of --surface, else of the configuration's pair as measured on this host.
    With a load it also says what each policy would make of a day of it. What is not claimed is
    listed with its reason. Exit code 4 when no pair of surfaces is at hand.
    """
    from opsctl.cli.autospec_setting import Wanted

    if history is not None and trace is not None:
        raise UsageError("--history and --trace are both loads", hint="give one of them")
    _refuse_clients(pattern)
    wanted = Wanted(
        trace=history or trace,
        pattern=pattern,
        mechanism="restart" if mechanism is None else mechanism.value,
        switch_seconds=switch_seconds,
        surfaces=tuple(surface or ()),
        case=case,
        speculative=speculative,
        baseline=baseline,
        seed=seed,
        hours=hours,
        config=config,
        state_dir=state_dir,
        environment=os.environ,
    )
    content = _advice(wanted, chosen=mechanism is not None)
    from opsctl.autospec.advise import SCHEMA

    emit(content, output, schema=SCHEMA, table=lambda: _table(content))
    if output is Output.TABLE:
        _tell(content)


def _refuse_clients(pattern: str | None) -> None:
    """A day cannot be worked out of them: they send more when they are answered faster."""
    from opsctl.autospec.patterns import CLOSED

    if pattern in CLOSED:
        raise UsageError(
            f"--pattern {pattern}: its clients wait for their answers, so how much comes in a day "
            "depends on what serves",
            hint="opsctl autospec replay plays it",
        )


def _advice(wanted: Wanted, *, chosen: bool) -> dict[str, Any]:
    from dataclasses import replace

    from opsctl.autospec.advise import document
    from opsctl.autospec.bands import bands
    from opsctl.autospec.replay import replay
    from opsctl.cli.autospec_setting import measured_pair, setting_of

    found = measured_pair(wanted)
    choice = _choice(wanted, found)
    if choice is not None and not chosen:
        wanted = replace(wanted, mechanism=choice.mechanism)
    loaded = wanted.trace is not None or wanted.pattern is not None
    played = replay(setting_of(wanted, found)) if loaded else None
    judged = bands(found.pair.speculative, found.pair.baseline)
    return document(found.pair, found.label, judged, choice, played)


def _choice(wanted: Wanted, found: Found) -> Choice | None:
    """Which mechanism the configured profiles allow; None without a configuration of this pair."""
    from opsctl.autospec.mechanism import choose
    from opsctl.cli.autospec_setting import configuration
    from opsctl.engine.capability import facts, slots_of

    config = configuration(wanted)
    if config is None:
        return None
    pair = config.auto_spec.speculative, config.auto_spec.baseline
    if pair != found.pair.names:
        return None
    surfaces = {x.profile: x for x in (found.pair.speculative, found.pair.baseline)}
    return choose(facts(config, slots_of(config, surfaces)), config.auto_spec.mechanism)


def _table(content: dict[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    contexts = [(band["context"], band["words"]) for band in content["contexts"]]
    parts: list[Any] = [grid(("CONTEXT", f"{content['speculative'].upper()} PAYS"), contexts)]
    if content["day"] is not None:
        rows = [
            (
                row["policy"],
                f"{row['mean_latency_s']:.2f} s",
                f"{row['request_seconds']:.0f}",
                f"{row['switches']:.3g}",
                f"{row['saves_s_a_request'] + 0.0:+.2f} s",
                f"{row['saves_request_seconds'] + 0.0:+.0f}",
            )
            for row in content["day"]
        ]
        headers = ("A DAY WITH", "MEAN", "REQUEST-SECONDS", "SWITCHES", "SAVES A REQUEST", "IN ALL")
        parts += [Text(""), grid(headers, rows)]
    return Group(*parts)


def _tell(content: dict[str, Any]) -> None:
    message(content["verdict"])
    message(f"surfaces: {content['source']}")
    if content["mechanism"] is not None:
        message(f"mechanism: {content['mechanism']['words']}")
    load = content["load"]
    if load is not None:
        closed = f", nobody serves for {load['closed_s']:g} s a switch" if load["closed_s"] else ""
        message(
            f"load: {load['requests']} requests in {load['hours']:.3g} h, "
            f"{load['share'] * 100:.0f} % of what the host can serve; {load['mechanism']}{closed}"
        )
    for item in content["refused"]:
        message(f"not claimed: {item}")
