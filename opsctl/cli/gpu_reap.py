"""`opsctl gpu reap`: show the plan, ask, act, verify, report."""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from opsctl.cli.options import ConfigOption, Output, OutputOption, StateDirOption

if TYPE_CHECKING:
    from pathlib import Path

    from opsctl.gpu.model import Census
    from opsctl.gpu.reaper import Outcome, Plan

SCHEMA = "opsctl/gpu-reap/v1"


def reap(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    gpu: Annotated[
        list[int] | None,
        typer.Option("--gpu", metavar="N", help="Only what holds this GPU; repeat for more."),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(
            "--include",
            metavar="stray|foreign:PID@STARTTIME",
            help="End servers that nobody supervises too, or exactly this process.",
        ),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            "--user", metavar="NAME", help="Whose strays; default your own, `all` for root only."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Like --dry-run; exit code 3 if there is anything.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    grace: Annotated[
        str, typer.Option("--grace", metavar="DURATION", help="What SIGTERM gets before SIGKILL.")
    ] = "20s",
    clear_jit_locks: Annotated[
        bool,
        typer.Option(
            "--clear-jit-locks", help="Remove lock files of JIT caches whose builder is dead."
        ),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """End what is dead or lost on the GPUs, and see that the memory comes back.

    Without --include only processes that are proved to be opsctl's own and whose engine is gone.
    Exit codes: 0 clean, 2 would have to ask but cannot, 3 --check found something, 4 memory is
    held by what opsctl may not touch or cannot see, 5 done in part.
    """
    from opsctl.cli.client import places
    from opsctl.cli.gpu_reap_render import plan_document, plan_table
    from opsctl.cli.output import emit, message
    from opsctl.gpu.reaper_plan import agreed

    seconds = _seconds(grace)
    where = places(state_dir, config)
    make = partial(_plan, where.root, gpu, include or [], user)
    plan = make()
    only_show = dry_run or check
    if only_show or output is Output.TABLE:
        emit(plan_document(plan), output, schema=SCHEMA, table=partial(plan_table, plan))
    if only_show:
        raise typer.Exit(_found(plan) if check else 0)
    if plan.targets and not yes:
        if output is not Output.TABLE:
            message("\n".join(f"{target.pid}: {target.why}" for target in plan.targets))
        _ask(plan)
        plan = agreed(plan, make())
    outcome = _act(plan, where.root, seconds, clear_jit_locks)
    _record(where.events, plan, outcome)
    _report(plan, outcome, output)
    raise typer.Exit(outcome.exit_code)


def _seconds(grace: str) -> float:
    from opsctl.config.units import parse_duration
    from opsctl.errors import UsageError

    try:
        return parse_duration(grace)
    except ValueError as error:
        raise UsageError(f"--grace: {error}") from None


def _plan(root: Path, gpus: list[int] | None, include: list[str], user: str | None) -> Plan:
    from opsctl.gpu import engines, names
    from opsctl.gpu.reaper import plan
    from opsctl.gpu.survey import look
    from opsctl.system import procfs

    census = look([str(root)])
    _check_gpus(gpus, census)
    directories = engines.state_dirs([str(root)], os.environ, census.processes)
    supervisors = {p.pid for p in census.processes.values() if names.is_opsctl(p)}
    return plan(
        census,
        gpus=gpus or None,
        include=include,
        user=user,
        caller_uid=os.geteuid(),
        me=os.getpid(),
        spared=procfs.ancestors(os.getpid()) | supervisors,
        engines=engines.known(directories),
    )


def _check_gpus(gpus: list[int] | None, census: Census) -> None:
    from opsctl.errors import UsageError

    there = [gpu.index for gpu in census.snapshot.gpus]
    missing = sorted(set(gpus or ()) - set(there))
    if missing and census.snapshot.state == "ok":
        raise UsageError(f"--gpu {missing[0]}: there is no such GPU", hint=f"there are {there}")


def _found(plan: Plan) -> int:
    """Exit code of --check."""
    from opsctl.gpu.reaper_plan import blocking

    if plan.targets:
        return 3
    held = blocking([left.holder for left in plan.left], plan.gpus)
    return 4 if held or plan.census.snapshot.state in {"fault", "unresponsive"} else 0


def _ask(plan: Plan) -> None:
    from opsctl.errors import OpsctlError, UsageError

    if not sys.stdin.isatty():
        raise UsageError(
            f"{_processes(len(plan.targets))} would be ended, and nobody can be asked here",
            hint="add --yes to end them, or --dry-run to see the plan only",
        )
    sys.stderr.write(f"End {_processes(len(plan.targets))}? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise OpsctlError("nothing was ended")


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _act(plan: Plan, root: Path, grace: float, clear_jit_locks: bool) -> Outcome:
    from opsctl.gpu import survey
    from opsctl.gpu.reaper import reap as act

    look = partial(survey.look_async, [str(root)])
    return asyncio.run(act(plan, grace=grace, look=look, clear_jit_locks=clear_jit_locks))


def _record(journal: Path, plan: Plan, outcome: Outcome) -> None:
    """Put it into the journal of the state directory, where there is one."""
    from opsctl.cli.gpu_reap_render import journal_facts
    from opsctl.observe.events import Journal

    if plan.targets and journal.parent.is_dir():
        Journal(journal).record("gpu_reap", **journal_facts(outcome))


def _report(plan: Plan, outcome: Outcome, output: Output) -> None:
    from opsctl.cli.gpu_reap_render import outcome_document, outcome_table
    from opsctl.cli.output import emit

    emit(
        outcome_document(plan, outcome),
        output,
        schema=SCHEMA,
        table=partial(outcome_table, plan, outcome),
    )
