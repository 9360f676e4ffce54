"""A plan to reap and what came of it, as people and as programs read them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from opsctl.gpu.model import Holder
from opsctl.gpu.reaper_outcome import Outcome, Result
from opsctl.gpu.reaper_plan import Left, Plan, Target

if TYPE_CHECKING:
    from rich.console import RenderableType

Document = dict[str, Any]

GIB = 2**30


def plan_document(plan: Plan) -> Document:
    """The plan alone: nothing has been done."""
    return {
        "done": False,
        "targets": [_target(target) for target in plan.targets],
        "left": [_left(left) for left in plan.left],
        "memory_expected_bytes": {str(gpu): held for gpu, held in plan.memory.items()},
    }


def outcome_document(plan: Plan, outcome: Outcome) -> Document:
    """The plan, and what was observed."""
    return {
        **plan_document(plan),
        "done": True,
        "targets": [_result(result) for result in outcome.results],
        "memory": [
            {
                "gpu": gpu.gpu,
                "before_bytes": gpu.before,
                "after_bytes": gpu.after,
                "released": gpu.released,
                "why": gpu.why,
            }
            for gpu in outcome.memory
        ],
        "ports_freed": list(outcome.ports_freed),
        "ports_busy": list(outcome.ports_busy),
        "files_removed": list(outcome.removed),
        "files_kept": list(outcome.kept),
        "jit_locks": [
            {
                "path": lock.path,
                "kind": lock.kind,
                "age_seconds": round(lock.age, 1),
                "holder": lock.holder,
                "stale": lock.stale,
                "removed": lock.removed,
                "why": lock.why or None,
            }
            for lock in outcome.jit_locks
        ],
        "blocked_by": [_holder(holder) for holder in outcome.blocked_by],
        "driver": outcome.driver,
        "exit_code": outcome.exit_code,
    }


def journal_facts(outcome: Outcome) -> Document:
    """What the journal keeps: who asked, who was ended and how."""
    return {
        "caller_uid": os.getuid(),
        "targets": [
            {
                "pid": result.target.pid,
                "start_time": result.target.start_time,
                "verdict": result.target.holder.verdict.value,
                "why": result.target.why,
                "signals": list(result.signals),
                "outcome": result.outcome,
            }
            for result in outcome.results
        ],
        "released": {str(gpu.gpu): gpu.released for gpu in outcome.memory},
        "exit_code": outcome.exit_code,
    }


def plan_table(plan: Plan) -> RenderableType:
    """Who would be ended, and who is left alone with the word to add."""
    from rich.console import Group
    from rich.text import Text

    from opsctl.cli.output import grid

    parts: list[RenderableType] = []
    if plan.targets:
        heading = "To be ended, in this order (TERM first, KILL for what stays):"
        rows = [(*_who(one.holder), _evidence(one)) for one in plan.targets]
        parts += [Text(heading, style="bold"), grid((*_WHO, "WHY"), rows)]
        parts += [Text(f"memory to come back: {_memory(plan)}")]
    else:
        parts.append(Text("Nothing to end."))
    if plan.left:
        left = [(*_who(one.holder), f"{one.holder.verdict}: {_advised(one)}") for one in plan.left]
        parts += [Text("\nLeft alone:", style="bold"), grid((*_WHO, "WHY"), left)]
    return Group(*parts)


def outcome_table(plan: Plan, outcome: Outcome) -> RenderableType:
    """What happened to each, and whether everything came back."""
    from rich.console import Group
    from rich.text import Text

    from opsctl.cli.output import grid

    parts: list[RenderableType] = []
    if outcome.results:
        rows = [
            (
                one.target.pid,
                _command(one.target.holder),
                " ".join(one.signals),
                one.outcome,
                one.detail,
            )
            for one in outcome.results
        ]
        parts += [Text("\nDone:", style="bold")]
        parts += [grid(("PID", "COMMAND", "SIGNALS", "OUTCOME", ""), rows)]
    parts += [Text(line) for line in _lines(outcome)]
    return Group(*parts)


def _lines(outcome: Outcome) -> Iterator[str]:
    for gpu in outcome.memory:
        yield f"gpu {gpu.gpu}: {_size(gpu.before)} -> {_size(gpu.after)}, {gpu.why}"
    if outcome.ports_freed:
        yield "ports free: " + ", ".join(map(str, outcome.ports_freed))
    yield from (f"still taken: {words}" for words in outcome.ports_busy)
    yield from (f"removed {path}" for path in outcome.removed)
    yield from (f"kept, in use: {path}" for path in outcome.kept)
    yield from _lock_lines(outcome)
    for holder in outcome.blocked_by:
        words = f"{holder.verdict} {holder.pid or ''} {_command(holder)}"
        yield f"memory is still held by {' '.join(words.split())}: {holder.advice or 'left alone'}"
    if outcome.driver in {"fault", "unresponsive"}:
        yield f"the driver is {outcome.driver}: nothing can be said about memory"


def _lock_lines(outcome: Outcome) -> Iterator[str]:
    quiet = 0
    for lock in outcome.jit_locks:
        if lock.removed:
            yield f"removed stale lock {lock.path}"
        elif not lock.stale:
            yield f"lock {lock.path} is held by process {lock.holder} ({lock.title})"
        elif lock.kind == "baton" or lock.why:
            why = lock.why or "it blocks every later start; --clear-jit-locks removes it"
            yield f"stale lock {lock.path}: {why}"
        else:
            quiet += 1
    if quiet:
        yield f"{quiet} unlocked lock files in JIT caches (harmless)"


def _target(target: Target) -> Document:
    return {
        **_holder(target.holder),
        "tree": target.tree,
        "why": target.why,
        "signals_planned": list(target.signals),
    }


def _result(result: Result) -> Document:
    return {
        **_target(result.target),
        "signals": list(result.signals),
        "outcome": result.outcome,
        "detail": result.detail,
    }


def _left(left: Left) -> Document:
    return {**_holder(left.holder), "why": left.why, "word": left.word}


def _holder(holder: Holder) -> Document:
    from opsctl.cli.gpu_render import holder_document

    return holder_document(holder)


_WHO = ("PID", "GPU", "MEMORY", "USER", "COMMAND")


def _who(holder: Holder) -> tuple[object, ...]:
    user = holder.process.user if holder.process else None
    gpus = ",".join(map(str, holder.gpus))
    return holder.pid, gpus, _size(holder.memory), user, _command(holder)


def _evidence(target: Target) -> str:
    evidence = target.holder.evidence
    return evidence[0] if evidence else target.why


def _advised(left: Left) -> str:
    return left.why if left.word is None else f"{left.why}; to end it, add {left.word}"


def _command(holder: Holder) -> str:
    return holder.process.title if holder.process else ""


def _memory(plan: Plan) -> str:
    if not plan.memory:
        return "none"
    return ", ".join(f"GPU {gpu} {_size(held)}" for gpu, held in plan.memory.items())


def _size(held: int | None) -> str:
    return "unknown" if held is None else f"{held / GIB:.1f} GiB"
