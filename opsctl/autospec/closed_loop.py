"""Whether clients wait for their answers: a closed loop, told apart from an open one. Pure.

A load generator with a fixed number of streams, or agents that each wait before they go on, send as
fast as they are answered. Their rate says nothing of what a faster profile would be asked to do,
and while the gate is closed no more wait than there are clients. An open loop does not slow down.

Both can have the same rate and the same number of requests at once. What tells them apart: with N
clients that number stays N, because each answer is followed by the next request; when arrivals and
answers know nothing of each other it wanders, by about the root of how many there were of both.
That is a test of two variances; the evidence of stretches of arrivals is added up as in Page's
CUSUM test. A second in which many have their answers and have not asked again is passed over:
quantiles are looked at. Clients that think for a while between two requests cannot be told from an
open loop and are taken for one, which is the careful side: switches look dearer there.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping
from itertools import accumulate

_ARRIVALS = 10
"""A stretch ends after so many."""
_CONVINCED, _MOST, _DOUBTING = 10.0, 14.0, 6.0
"""Nats of evidence: where a loop counts as closed, where it is capped, where no longer.

The most seen of random arrivals, at nine loads each: 3.2 in ten hours of requests of 200 tokens,
7.4 in one hour of 20 tokens.
"""
_AGAINST = -4.0
"""Of one stretch at most: clients may come or go."""
_MOSTLY = 0.8
"""Share of a stretch's seconds in which N clients have N requests."""
_LEAST = 0.9
"""Clients, on average, below which nothing can be said."""
_RECENT = 20.0
"""Seconds after which a stretch that has not ended says how many clients there are."""
_REFUTED = 24 * 3600.0
"""Seconds for which a loop is taken for open after more came to a closed gate than clients."""


class ClosedLoop:
    """Watches arrivals, answers and how many requests there are; `tempo` as in `Belief`."""

    def __init__(self, tempo: float = 1.0) -> None:
        self._tempo = tempo
        self.rising = 0.0
        """Seconds since the evidence last was nothing: for so long the loop has been closed."""
        self._evidence = 0.0
        self._closed = False
        self._clients = 0.0
        self._refuted = 0.0
        self._at_gate: int | None = None
        self._levels: deque[float] = deque(maxlen=3)
        """Requests at once, in the middle of the last stretches."""
        self._begin()

    @property
    def clients(self) -> float | None:
        """Clients that each wait for an answer, or None for an open loop."""
        if not self._closed:
            return None
        if self._seconds >= _RECENT * self._tempo:
            return self._area / self._seconds
        return self._clients

    def interrupted(self) -> None:
        """Some samples are missing: begin a new stretch."""
        self._begin()

    def see(
        self, count: int, arrived: int, completed: int, seconds: float, *, is_open: bool
    ) -> None:
        """Take in a second: requests there are now, in flight or held; and what came and went."""
        self._refuted = max(self._refuted - seconds, 0.0)
        if not is_open:
            self._watch_gate(count)
            return
        self._at_gate = None
        self._arrived += arrived
        self._moved += arrived + completed
        self._counts[count] += 1
        self._area += count * seconds
        self._seconds += seconds
        self.rising += seconds
        if self._arrived >= _ARRIVALS:
            self._end()

    def _begin(self) -> None:
        self._counts: Counter[int] = Counter()
        self._arrived = self._moved = 0
        self._area = self._seconds = 0.0

    def _end(self) -> None:
        self._clients = self._area / self._seconds
        told = 0.0
        if self._levels:
            level = _quantile(Counter(self._levels), 0.5)
            away: Counter[float] = Counter()
            for count, seconds in self._counts.items():
                away[abs(count - level)] += seconds
            told = _evidence(_quantile(away, _MOSTLY), min(self._moved, 2 * self._clients))
        if self._clients < _LEAST or self._refuted > 0.0:
            told = _AGAINST
        self._levels.append(_quantile(self._counts, 0.5))
        self._evidence = min(max(self._evidence + told, 0.0), _MOST)
        if not self._evidence:
            self.rising = 0.0
        self._closed = self._evidence >= (_DOUBTING if self._closed else _CONVINCED)
        self._begin()

    def _watch_gate(self, count: int) -> None:
        """While nobody is served, N clients have N requests, and an open loop ever more."""
        if self._at_gate is None:
            self._at_gate = count
            self.interrupted()
        elif self._closed and count > 1.5 * self._at_gate + 5:
            self._refuted = _REFUTED * self._tempo
            self._evidence, self._closed = 0.0, False


def _quantile(counts: Mapping[float, int] | Mapping[int, int], share: float) -> float:
    """Return the value that this share of what was counted does not exceed."""
    ranked = sorted(counts.items())
    reached = list(accumulate(count for _, count in ranked))
    return ranked[bisect_left(reached, share * reached[-1] - 1e-9)][0]


def _evidence(moved: float, variance: float) -> float:
    """Nats for a closed loop: log of the ratio of two normal densities at `moved`.

    `variance` is that of an open loop: what came and went, at most twice the mean of a stationary
    one. A closed loop has nearly none, but a sample may fall between an answer and what follows.
    """
    closed = 0.5 + 0.01 * variance
    ratio = 0.5 * math.log(max(variance, closed) / closed)
    return max(ratio - moved**2 / 2 * (1 / closed - 1 / max(variance, closed)), _AGAINST)
