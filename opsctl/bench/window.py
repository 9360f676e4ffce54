"""Figures of the steady window, from what each stream did and when.

How many tokens an answer has is told by `usage` alone. An event carries several where the engine
speculates (https://github.com/sgl-project/sglang/pull/12064), so events only say *when*: the
tokens of an answer are spread evenly over its events, and those inside the window count. The first
event is the exception: it carries the one token that came out of the prefill.

The window opens and closes at the last event seen by then, not in the midst of a decode step:
with 250 streams a step takes a third of a second, and all of them answer at its end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from opsctl.bench.results import Quantiles
from opsctl.bench.traffic import Outcome

_LEAST_TOKENS = 4
"""A stretch of a stream shorter than this says little about its speed."""


@dataclass(frozen=True)
class Window:
    """The steady part of a cell, by the monotonic clock: ramp before it, drain after it."""

    opened: float
    closed: float


@dataclass(frozen=True)
class Figures:
    """What the window shows. Times in seconds, speeds in tokens per second."""

    tokens: float
    seconds: float
    throughput: float
    per_user: float
    """Median speed of a stream after its first token."""
    ttft: Quantiles | None
    tpot: Quantiles | None
    event_gap: Quantiles | None
    """Between two events of a stream; not between tokens."""
    events: int
    streams: float
    """Mean number of streams between their first and last token."""
    under_way: float
    """Mean number of requests from sending to the end of the answer."""
    requests: int
    """Ended inside the window."""


def figures(outcomes: Sequence[Outcome], window: Window) -> Figures:
    """Count the window."""
    answers = [outcome for outcome in outcomes if outcome.ok and outcome.times]
    opened = _last_event(answers, window.opened)
    closed = _last_event(answers, window.closed)
    seconds = max(0.0, closed - opened)
    inside = [_inside(answer, opened, closed) for answer in answers]
    tokens = sum(part.tokens for part in inside)
    tpot = quantiles([part.tpot for part in inside if part.tpot is not None])
    gaps = [gap for part in inside for gap in part.gaps]
    return Figures(
        tokens=tokens,
        seconds=seconds,
        throughput=tokens / seconds if seconds else 0.0,
        per_user=1.0 / tpot.p50 if tpot is not None and tpot.p50 > 0 else 0.0,
        ttft=quantiles([a.times[0] - a.begun for a in answers if opened <= a.begun < closed]),
        tpot=tpot,
        event_gap=quantiles(gaps),
        events=sum(part.events for part in inside),
        streams=sum(part.seconds for part in inside) / seconds if seconds else 0.0,
        under_way=sum(_overlap(a, opened, closed) for a in answers) / seconds if seconds else 0.0,
        requests=sum(opened < a.begun + a.seconds <= closed for a in answers),
    )


@dataclass(frozen=True)
class _Part:
    """What of one answer lies inside the window."""

    tokens: float
    events: int
    seconds: float
    tpot: float | None
    gaps: tuple[float, ...]


def _inside(answer: Outcome, opened: float, closed: float) -> _Part:
    times = answer.times
    low, high = bisect_right(times, opened), bisect_right(times, closed)
    later = (answer.tokens - 1) / (len(times) - 1) if len(times) > 1 else answer.tokens
    here = times[low:high]
    streamed = max(0.0, min(times[-1], closed) - max(times[0], opened))
    tokens = (len(here) - 1) * later
    tpot = (here[-1] - here[0]) / tokens if tokens >= _LEAST_TOKENS else None
    gaps = tuple(later - earlier for earlier, later in pairwise(here))
    first = 1.0 - later if low == 0 and high > 0 and len(times) > 1 else 0.0
    return _Part(len(here) * later + first, len(here), streamed, tpot, gaps)


def _overlap(answer: Outcome, opened: float, closed: float) -> float:
    return max(0.0, min(answer.begun + answer.seconds, closed) - max(answer.begun, opened))


def _last_event(answers: Iterable[Outcome], moment: float) -> float:
    """The last event of any stream up to a moment; the moment itself when there was none."""
    found = [
        answer.times[position - 1]
        for answer in answers
        if (position := bisect_right(answer.times, moment))
    ]
    return max(found, default=moment)


def quantiles(values: Sequence[float]) -> Quantiles | None:
    """p50, p90 and p99, linear between neighbours; None without values."""
    if not values:
        return None
    ordered = sorted(values)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    return Quantiles(p50=at(0.5), p90=at(0.9), p99=at(0.99))
