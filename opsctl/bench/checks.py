"""When a measurement may be believed. Each check can fail a cell, with its reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from opsctl.bench.counters import Counters
from opsctl.bench.results import Cell
from opsctl.bench.traffic import Outcome

CONCURRENCY_WITHIN = 0.05
"""Share by which the mean of running requests may differ from what was asked for.

The engine is asked a few times a second, so its mean has an error of its own: with one stream, a
look that falls between two requests finds none. Twice that error is allowed on top.
"""
COUNTERS_WITHIN = 0.01
CLIENT_CPU = 0.9
"""Of one core: above it the client cannot take events as fast as they come."""
CLIENT_LATE = 0.05
"""Share of the window in which the client's loop was behind."""
DISPATCH_WITHIN = 0.05
"""Seconds a request of an open loop may be sent after its time."""
DISPATCH_LATE = 0.01
"""Share of them that may be later."""
CACHE_HITS = 0.05
LENGTHS_WITHIN = 0.05
LEAST_TOKENS = 16
"""A window with fewer tokens says nothing."""


@dataclass(frozen=True)
class Facts:
    """What is known of one measured cell."""

    concurrency: int | None
    """None in an open loop, where nothing is asked of it."""
    effective: float | None
    effective_error: float
    outcomes: Sequence[Outcome]
    tokens: float
    client_cpu: float
    client_late: float
    delays: Sequence[float] = ()
    """How long after its time each request of an open loop was sent, in seconds."""
    counted: Counters = field(default_factory=Counters)
    cache_hits: float | None = None
    """Share of what the prompts need not have in common that came from the prefix cache."""
    salted: bool = True
    fixed_length: bool = True
    drained: bool = True
    stopped: str = ""
    """Why the cell was given up; empty when it was measured to its end."""


def reasons(facts: Facts) -> list[str]:
    """Everything that speaks against the cell; empty when it is valid.

    A request that failed explains the rest, so it stands first; then what was not reached.
    """
    return [reason for check in _CHECKS for reason in check(facts)]


def not_reached(running: float, concurrency: int) -> str:
    """The words for a concurrency that was not reached: `N/A (58/64)`."""
    shown = f"{running:.0f}" if round(running) != concurrency else f"{running:.1f}"
    return f"N/A ({shown}/{concurrency})"


def _failed(facts: Facts) -> Iterator[str]:
    failed = [outcome for outcome in facts.outcomes if not outcome.ok]
    if failed:
        plural = "" if len(failed) == 1 else "s"
        yield f"{len(failed)} request{plural} failed: {failed[0].why}"
    elif facts.stopped:
        yield facts.stopped


def _concurrency(facts: Facts) -> Iterator[str]:
    if facts.effective is None or facts.concurrency is None:
        return
    allowed = CONCURRENCY_WITHIN * facts.concurrency + 2 * facts.effective_error
    if abs(facts.effective - facts.concurrency) > allowed:
        yield not_reached(facts.effective, facts.concurrency)


def _client(facts: Facts) -> Iterator[str]:
    if facts.client_cpu > CLIENT_CPU:
        yield f"the client was the bottleneck: it used {facts.client_cpu:.0%} of a core"
    if facts.client_late > CLIENT_LATE:
        yield f"the client was starved: it was behind {facts.client_late:.0%} of the time"
    late = sum(delay > DISPATCH_WITHIN for delay in facts.delays)
    if late > DISPATCH_LATE * len(facts.delays):
        yield f"{late} of {len(facts.delays)} requests were sent late"


def _aborted(facts: Facts) -> Iterator[str]:
    aborted = facts.counted.num_aborted_requests
    if facts.drained and aborted:
        yield f"the engine aborted {aborted:.0f} requests meanwhile"


def _counters(facts: Facts) -> Iterator[str]:
    """Tokens of everything sent in the cell, ramp and drain included."""
    if not facts.drained:
        return
    ours = sum(outcome.tokens for outcome in facts.outcomes)
    theirs = facts.counted.generation_tokens
    if theirs is not None and abs(theirs - ours) > COUNTERS_WITHIN * max(ours, theirs):
        yield f"counters disagree: usage says {ours} tokens, the engine counted {theirs:.0f}"
    requests = facts.counted.num_requests
    if requests is not None and requests > len(facts.outcomes):
        yield (
            f"somebody else used the engine: it had {requests:.0f} requests, "
            f"{len(facts.outcomes)} of them ours"
        )


def _lengths(facts: Facts) -> Iterator[str]:
    answers = [outcome for outcome in facts.outcomes if outcome.ok]
    longer = [outcome for outcome in answers if outcome.tokens > outcome.asked]
    if longer:
        yield f"an answer has {longer[0].tokens} tokens where {longer[0].asked} were the most"
    short = [outcome for outcome in answers if outcome.tokens < outcome.asked]
    if facts.fixed_length and short:
        yield (
            f"{len(short)} of {len(answers)} answers ended early, in spite of ignore_eos "
            f"({short[0].tokens} of {short[0].asked} tokens)"
        )


def _cache(facts: Facts) -> Iterator[str]:
    if facts.salted and facts.cache_hits is not None and facts.cache_hits > CACHE_HITS:
        yield f"the prefix cache answered {facts.cache_hits:.0%} of the prompts' own tokens"


def _enough(facts: Facts) -> Iterator[str]:
    if facts.tokens < LEAST_TOKENS:
        yield f"only {facts.tokens:.0f} tokens in the steady window"


_CHECKS = (_failed, _concurrency, _client, _aborted, _counters, _lengths, _cache, _enough)


def comparable(cells: Iterable[Cell]) -> list[Cell]:
    """The cells whose verdict changes once all profiles are measured: answers of unlike length.

    A profile that writes longer answers is not slower, it was asked for more. Which one is the
    right one nobody can tell, so the cells of every profile fail there.
    """
    groups: dict[tuple[int, int, int], list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.valid and cell.output_tokens_mean:
            groups[cell.concurrency, cell.context, cell.repeat].append(cell)
    changed = []
    for group in groups.values():
        lengths = {cell.profile: cell.output_tokens_mean or 0.0 for cell in group}
        if max(lengths.values()) > (1 + LENGTHS_WITHIN) * min(lengths.values()):
            told = ", ".join(f"{name} {length:.0f}" for name, length in lengths.items())
            why = f"answers differ in length between profiles: {told} tokens"
            changed += [cell.model_copy(update={"valid": False, "reason": why}) for cell in group]
    return changed
