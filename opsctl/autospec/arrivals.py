"""Arrivals of requests: when, and how large. Pure."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

MEAN_PROMPT, MEAN_OUTPUT = 1155.0, 211.0
"""Tokens a request in the conversation trace (Azure LLM inference trace 2023)."""


@dataclass(frozen=True)
class Requests:
    """Requests in order of arrival: seconds from the begin, prompt and output tokens."""

    name: str
    at: tuple[float, ...]
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    hours: float = field(default=0.0)
    """How long the case lasts; the last arrival may be earlier."""

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
