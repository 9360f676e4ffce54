"""`opsctl autospec replay`: what each policy would have made of a load."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl.cli.autospec_sources import BaselineOption, CaseOption, SpeculativeOption
from opsctl.cli.options import ConfigOption, Output, OutputOption, StateDirOption
from opsctl.cli.output import emit, grid, message
from opsctl.errors import OpsctlError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from opsctl.autospec.replay import Replay, Setting
    from opsctl.cli.autospec_setting import Wanted


class MechanismName(StrEnum):
    """How a switch is made."""

    RESTART = "restart"
    GATED_RESTART = "gated_restart"
    IN_ENGINE = "in_engine"


class TruthName(StrEnum):
    """How the simulated host differs from the surfaces."""

    RIGHT = "right"
    WRONG = "wrong"
    DROP = "drop"


TraceOption = Annotated[
    str | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Requests: CSV as the Azure traces, JSONL with `at`; or a load journal of `serve`.",
    ),
]
PatternOption = Annotated[
    str | None,
    typer.Option(
        "--pattern",
        metavar="NAME",
        help="quiet, busy, diurnal, bursts, flapping, ramp or spike; of replay also 'clients few', "
        "'clients many', 'clients sessions' and 'clients thinking', which wait for their answers. "
        "Of the trace's requests if there is one.",
    ),
]
SurfaceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--surface",
        metavar="FILE",
        help="Surface of `tune`, or surfaces of a table; may be repeated. Else this host's.",
    ),
]
MechanismOption = Annotated[
    MechanismName | None,
    typer.Option("--mechanism", help="How a switch is made; else restart, of a suite all."),
]
SecondsOption = Annotated[
    float | None,
    typer.Option(
        "--switch-seconds",
        metavar="X",
        min=0,
        help="How long nobody serves in a switch, the drain left out; else 240, 60 gated.",
    ),
]
SeedOption = Annotated[
    int, typer.Option("--seed", min=0, help="Of generated requests; the same gives the same.")
]
HoursOption = Annotated[
    float | None,
    typer.Option("--hours", metavar="H", help="How long; a trace is cut, or begins again."),
]


def replay(
    trace: TraceOption = None,
    pattern: PatternOption = None,
    mechanism: MechanismOption = None,
    switch_seconds: SecondsOption = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="NAME",
            help="cost_aware, sustained_load, sustained_load:HIGH/LOW, always:PROFILE or PROFILE; "
            "may be repeated.",
        ),
    ] = None,
    surface: SurfaceOption = None,
    case: CaseOption = None,
    speculative: SpeculativeOption = None,
    baseline: BaselineOption = None,
    start: Annotated[
        str | None,
        typer.Option("--start", metavar="PROFILE", help="What policies start from."),
    ] = None,
    truth: Annotated[
        TruthName | None,
        typer.Option(
            "--truth",
            help="right: the host is as its surfaces; wrong: drafts are 15 % slower than they say; "
            "drop: half as fast from the middle on.",
        ),
    ] = None,
    seed: SeedOption = 0,
    hours: HoursOption = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Write it as an SVG, too.")
    ] = None,
    suite: Annotated[
        bool, typer.Option("--suite", help="Every pattern, mechanism and truth; takes minutes.")
    ] = False,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Simulate what policies would have made of a load: latency, switches, and the best possible.

    Each fixed profile is always among the rows, and the best schedule in hindsight. Without
    --surface the measured surfaces of the configuration's pair are used, and without those the
    reference host with a better draft; which ones is said. A load journal of `opsctl serve` is
    played again with the policy that wrote it: exit code 1 when it decides otherwise.
    """
    from opsctl.cli.autospec_setting import Wanted, journal_of, setting_of

    wanted = Wanted(
        trace=trace,
        pattern=pattern,
        mechanism=(mechanism or MechanismName.RESTART).value,
        switch_seconds=switch_seconds,
        policies=tuple(policy or ()),
        surfaces=tuple(surface or ()),
        case=case,
        speculative=speculative,
        baseline=baseline,
        start=start,
        truth=(truth or TruthName.RIGHT).value,
        seed=seed,
        hours=hours,
        config=config,
        state_dir=state_dir,
        environment=os.environ,
    )
    if suite:
        _suite(wanted, plot, output, ([mechanism] if mechanism else [], [truth] if truth else []))
    elif journal_of(wanted) is not None:
        _journal(wanted, plot, output)
    else:
        _one(setting_of(wanted), plot, output)


def _suite(
    wanted: Wanted,
    plot: Path | None,
    output: Output,
    only: tuple[list[MechanismName], list[TruthName]],
) -> None:
    """Play every case; what is given narrows it."""
    from opsctl.cli.autospec_suite import SCHEMA, suite, table, tell

    if plot is not None:
        raise UsageError("--plot shows one case", hint="leave --suite out")
    mechanisms, truths = only
    content = suite(
        wanted,
        tuple(x.value for x in mechanisms or MechanismName),
        tuple(x.value for x in truths or TruthName),
    )
    emit(content, output, schema=SCHEMA, table=lambda: table(content))
    tell(content)


def _journal(wanted: Wanted, plot: Path | None, output: Output) -> None:
    """Play a load journal again; exit code 1 when its own policy decides otherwise now."""
    from opsctl.autospec.recount import SCHEMA, recount
    from opsctl.cli.autospec_setting import journal_of, other_policy

    if plot is not None:
        raise UsageError("--plot shows a simulated load", hint="give --pattern too")
    records, path = journal_of(wanted) or ([], "")
    other = other_policy(wanted)
    content = recount(records, path, other)
    emit(content, output, schema=SCHEMA, table=lambda: _changes(content))
    first = content["first_difference"]
    message(
        f"{content['samples']} samples, {content['asked']} decisions, {content['compared']} of "
        f"them recorded in words; {content['differences']} differ"
    )
    if not content["whole"]:
        message(
            "note: the policy remembered more than is in these files: its first decisions may "
            "differ for that reason"
        )
    if first is not None:
        message(f"first difference {first['at_s']:.0f} s after the begin: {first['words']}")
    if first is not None and other is None:
        raise typer.Exit(1)


def _changes(content: dict[str, Any]) -> RenderableType:
    rows = [
        (f"{x['at_s']:.0f} s", x["serving"], x["action"], x["profile"], x["reason"])
        for x in content["changes"]
    ]
    return grid(("AT", "SERVING", "ACTION", "PROFILE", "REASON"), rows)


def _one(setting: Setting, plot: Path | None, output: Output) -> None:
    from opsctl.autospec.replay import SCHEMA, document
    from opsctl.autospec.replay import replay as played

    if plot is not None and setting.requests.waits:
        what = "--plot shows arrivals, and when clients that wait send theirs depends on the policy"
        raise UsageError(what, hint="leave it out, or take another --pattern")
    found = played(setting)
    content = document(found)
    emit(content, output, schema=SCHEMA, table=lambda: _table(content))
    if output is Output.TABLE:
        _tell(content)
    if plot is not None:
        _write(plot, found)


def _write(path: Path, found: Replay) -> None:
    from opsctl.autospec.plot import plot
    from opsctl.system.files import write_atomic

    try:
        write_atomic(path, plot(found), mode=0o644)
    except OSError as error:
        raise OpsctlError(f"{path}: cannot be written: {error.strerror}") from error
    message(f"written: {path}")


def _table(content: dict[str, Any]) -> RenderableType:
    found = content["hindsight"]
    rows = [*content["rows"], {"policy": "best in hindsight", **found}]
    fixed = min(row["request_seconds"] for row in content["rows"] if row.get("r1_ratio") is None)
    return grid(
        ("POLICY", "MEAN", "P99", "SWITCHES", "REQUEST-SECONDS", "OF BEST FIXED"),
        [
            (
                row["policy"],
                f"{row['mean_latency_s']:.2f} s",
                f"{row['p99_latency_s']:.2f} s",
                row["switches"],
                f"{row['request_seconds']:.0f}",
                f"{row['request_seconds'] / fixed * 100:.1f} %",
            )
            for row in rows
        ],
    )


def _tell(content: dict[str, Any]) -> None:
    """Say on stderr what was replayed, and what the rules say about it."""
    case = content["case"]
    load = (
        f"{case['requests']} requests in {case['hours']:.3g} h, {case['load'] * 100:.0f} % of what "
        "the host can serve"
    )
    if case["clients_wait"]:
        load = (
            f"{case['requests']} requests of clients that wait for their answers, about "
            f"{case['hours']:.3g} h of work"
        )
    message(f"{load}; {case['mechanism']}: nobody serves for {case['closed_s']:g} s")
    judged, r1, r2 = content["judged"], content["r1"], content["r2"]
    if judged is None:
        return
    verdict = "held" if r1["held"] else "missed"
    costs = f"{r1['of_best_fixed'] * 100:.1f} % of {content['best_fixed']} alone"
    one = f"one switch ({content['one_switch_mean_latency_s']:.2f} s a request)"
    message(f"R1 (no harm) {verdict}: {judged} costs {costs}; allowed are 105 % and {one}")
    if r2["share"] is None:
        message("R2 (gain) does not apply: hindsight gains 5 % at most")
    else:
        verdict = "held" if r2["held"] else "missed"
        message(
            f"R2 (gain) {verdict}: {judged} takes {r2['share'] * 100:.0f} % of the "
            f"{r2['hindsight_gain'] * 100:.0f} % that hindsight saves"
        )
