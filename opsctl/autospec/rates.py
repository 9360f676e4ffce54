"""Arrivals a second, lately and over a day; and the clients of closed loops. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

_BUCKET = 300.0
"""Seconds of a stretch of the past."""
_BUCKETS = 288


@dataclass
class Rates:
    """Arrivals a second: lately, and by stretches of five minutes over a day."""

    tempo: float
    fast: float = 0.0
    slow: float = 0.0
    seconds: float = 0.0
    _stretch: float = 0.0
    _arrived: float = 0.0
    _clients: float = 0.0
    past: deque[float] = field(default_factory=lambda: deque(maxlen=_BUCKETS))
    past_clients: deque[float] = field(default_factory=lambda: deque(maxlen=_BUCKETS))
    clients: float | None = None
    """Of a closed loop, now: their rate is what they are served with, and says no more."""

    def see(self, arrived: float, seconds: float, clients: float | None = None) -> None:
        """Take in `arrived` requests over `seconds`, of so many clients that wait for answers."""
        self.seconds += seconds
        self.clients = clients
        rate = arrived / seconds
        self.fast += (rate - self.fast) * self._share(seconds, 20.0)
        self.slow += (rate - self.slow) * self._share(seconds, 900.0)
        self._stretch += seconds
        if clients is None:
            self._arrived += arrived
        else:
            self._clients = max(self._clients, clients)
        if self._stretch >= _BUCKET * self.tempo:
            self.past.append(self._arrived / self._stretch)
            self.past_clients.append(self._clients)
            self._stretch = self._arrived = self._clients = 0.0

    def waited(self, seconds: float, clients: float) -> None:
        """It has turned out that for so long clients had waited: theirs were no arrivals."""
        self._arrived, self._clients = 0.0, max(self._clients, clients)
        stretch = _BUCKET * self.tempo
        whole = round((seconds - self._stretch) / stretch)
        for back in range(1, min(whole, len(self.past)) + 1):
            self.past[-back] = 0.0
            self.past_clients[-back] = max(self.past_clients[-back], clients)

    def _share(self, seconds: float, constant: float) -> float:
        """A running mean, and a plain mean before that long."""
        return 1 - math.exp(-seconds / min(constant * self.tempo, max(self.seconds, seconds)))

    def high(self, share: float = 0.95) -> float:
        """Return the rate that this share of the last day stayed below; at least the present.

        Closed loops are left out; see `high_clients`.
        """
        return max(_quantile(self.past, share), self.fast if self.clients is None else 0.0)

    def high_clients(self, share: float = 0.95) -> float:
        """Return the clients of closed loops that this share of the day stayed below."""
        return max(_quantile(self.past_clients, share), self.clients or 0.0)


def _quantile(values: Iterable[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(int(share * len(ranked)), len(ranked) - 1)] if ranked else 0.0
