"""Arrivals of requests: when, and how large. Pure."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

MEAN_PROMPT, MEAN_OUTPUT = 1155.0, 211.0
"""Tokens a request in the conversation trace (Azure LLM inference trace 2023)."""


@dataclass(frozen=True)
class Requests:
    """Requests in order of arrival: seconds from the begin, prompt and output tokens.

    In a closed loop (`after`) a request comes when another one has been answered; then `at` is the
    seconds of thought in between, and the order is not that of arrival. Raises ValueError where
    `after` does not fit.
    """

    name: str
    at: tuple[float, ...]
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    hours: float = field(default=0.0)
    """How long the case lasts; the last arrival may be earlier."""
    after: tuple[int, ...] = ()
    """By request: which one must have been answered first, -1 for none; empty: they all come by
    themselves.
    """
    work: float = 0.0
    """Hours that the work takes, where clients wait and `hours` is only a limit; 0: `hours`."""

    def __post_init__(self) -> None:
        """Check that whoever waits, waits for an earlier one."""
        if self.after and len(self.after) != len(self.at):
            raise ValueError(f"{len(self.after)} entries in after for {len(self.at)} requests")
        for index, before in enumerate(self.after):
            if not -1 <= before < index:
                raise ValueError(f"request {index} waits for {before}, which is not an earlier one")

    @property
    def waits(self) -> bool:
        """Whether any request waits for the answer to another one: a closed loop."""
        return any(before >= 0 for before in self.after)

    @property
    def span(self) -> float:
        """Hours that are to be expected: the case's, or those of its work where clients wait."""
        return self.work or self.hours

    def clients(self, latencies: Sequence[float]) -> int:
        """Return the most chains of requests that were there at once, thinking ones included.

        `latencies` (seconds, by request) are what somebody made of them.
        """
        ends: list[float] = []
        root: list[int] = []
        until: dict[int, float] = {}
        for index, latency in enumerate(latencies):
            before = self.after[index] if self.after else -1
            root.append(index if before < 0 else root[before])
            ends.append((0.0 if before < 0 else ends[before]) + self.at[index] + latency)
            until[root[index]] = max(until.get(root[index], 0.0), ends[index])
        edges = sorted([(self.at[r], 1) for r in until] + [(end, -1) for end in until.values()])
        return max(accumulate((step for _, step in edges), initial=0))

    def __len__(self) -> int:
        return len(self.at)

    @property
    def mean_output(self) -> float:
        """Output tokens of a request."""
        return sum(self.output) / len(self.output)

    @property
    def mean_context(self) -> float:
        """Tokens in the KV cache of a running request: prompt and, on average, half the output.

        Weighted by output: a request counts as long as it runs.
        """
        total = sum(self.output)
        weighted = (o * (p + o / 2) for p, o in zip(self.prompt, self.output, strict=True))
        return sum(weighted) / total

    def rate_quantile(self, share: float, window: float = 60.0) -> float:
        """Return the arrival rate (requests/s) that windows of so many seconds stay below."""
        count = max(int(self.hours * 3600 / window), 1)
        seen = [0] * count
        for at in self.at:
            seen[min(int(at / window), count - 1)] += 1
        return sorted(seen)[min(int(share * count), count - 1)] / window


def synthetic(count: int, seed: int) -> Requests:
    """Return requests at a mean of one a second, with sizes spread as real ones are.

    Exponential gaps; log-normal sizes whose means are those of the conversation trace.
    """
    chosen = random.Random(seed)  # noqa: S311 - a simulation
    at, prompt, output = 0.0, [], []
    times = []
    for _ in range(count):
        at += chosen.expovariate(1.0)
        times.append(at)
        prompt.append(_size(chosen, MEAN_PROMPT, 1.0))
        output.append(_size(chosen, MEAN_OUTPUT, 0.8))
    return Requests("synthetic", tuple(times), tuple(prompt), tuple(output), at / 3600)


def _size(chosen: random.Random, mean: float, spread: float) -> int:
    return max(1, round(chosen.lognormvariate(math.log(mean) - spread**2 / 2, spread)))


def shaped(
    source: Requests, rate: Callable[[float], float], hours: float, *, name: str, seed: int = 0
) -> Requests:
    """Return the source's requests, in its order, arriving at `rate(t)` (requests/s) instead.

    The source's own gaps, relative to its mean, stay: real arrivals come in clumps. It begins
    again at its end, from a place that `seed` chooses.
    """
    gaps = _gaps(source)
    edges, total = _integral(rate, hours * 3600)
    at, prompt, output = [], [], []
    index, due = seed * 7919 % len(source), 0.0
    while True:
        due += gaps[index]
        if due > total[-1]:
            break
        at.append(_inverse(edges, total, due))
        prompt.append(source.prompt[index])
        output.append(source.output[index])
        index = (index + 1) % len(source)
    return Requests(name, tuple(at), tuple(prompt), tuple(output), hours)


@dataclass(frozen=True)
class Session:
    """A client that sends so many requests, each one `think` seconds after the last answer."""

    begin: float
    requests: int
    think: float = 0.0


def clients(
    source: Requests, sessions: Sequence[Session], hours: float, *, name: str, seed: int = 0
) -> Requests:
    """Return a closed loop: one chain of requests for each session, of the source's sizes.

    Sizes are taken in the source's order, one session after the other, and begin again at its
    end; `seed` chooses the place. `hours` is how long the case lasts at most.
    """
    at: list[float] = []
    after: list[int] = []
    for session in sorted(sessions, key=lambda session: session.begin):
        for number in range(session.requests):
            after.append(len(at) - 1 if number else -1)
            at.append(session.think if number else session.begin)
    first = seed * 7919 % len(source)
    picked = [(first + number) % len(source) for number in range(len(at))]
    return Requests(
        name,
        tuple(at),
        tuple(source.prompt[index] for index in picked),
        tuple(source.output[index] for index in picked),
        hours,
        tuple(after),
    )


def _gaps(source: Requests) -> list[float]:
    """Gaps before each request, with a mean of 1."""
    gaps = [source.at[0], *(b - a for a, b in zip(source.at, source.at[1:], strict=False))]
    mean = sum(gaps) / len(gaps)
    return [gap / mean for gap in gaps] if mean > 0 else [1.0] * len(gaps)


def _integral(
    rate: Callable[[float], float], seconds: float
) -> tuple[Sequence[float], Sequence[float]]:
    """Times, and how many requests are due until then."""
    step = min(10.0, seconds / 100)
    edges, total = [0.0], [0.0]
    while edges[-1] < seconds:
        middle = edges[-1] + step / 2
        edges.append(edges[-1] + step)
        total.append(total[-1] + rate(middle) * step)
    return edges, total


def _inverse(edges: Sequence[float], total: Sequence[float], due: float) -> float:
    above = bisect_left(total, due)
    if above == 0:
        return edges[0]
    low, high = total[above - 1], total[above]
    part = (due - low) / (high - low) if high > low else 1.0
    return edges[above - 1] + part * (edges[above] - edges[above - 1])
