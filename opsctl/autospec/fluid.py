"""A server's queue as a fluid: what a profile's queue would be, and what a switch costs. Pure.

With `n` requests in the system, each leaves at a rate `r(n) = tok_s(n) / n / tokens`. Between two
looks `r` is held fixed, which makes the step exact and stable for any step length:
`n(t) = a/r + (n - a/r) exp(-r t)` for `a` arrivals a second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from opsctl.autospec.cost import SwitchCost
from opsctl.autospec.pair import Speed

_LONGEST = 3600.0
"""Seconds that a backlog is followed for; beyond, the load has changed anyway."""
_DRAINED = 0.25


@dataclass(frozen=True)
class Service:
    """How fast a profile serves: its speed, a factor on it, and what requests are like."""

    speed: Speed
    factor: float
    tokens: float
    """Output tokens of a request, on average."""
    context: float

    def each(self, count: float) -> float:
        """Return the rate (1/s) at which each of `count` requests ends."""
        streams = max(count, 1.0)
        return self.factor * self.speed.tok_s(streams, self.context) / streams / self.tokens

    @property
    def capacity(self) -> float:
        """Return the most requests/s that can be served."""
        return self.factor * self.speed.capacity(self.context) / self.tokens

    def settled(self, rate: float) -> float:
        """Return the requests in the system at `rate` arrivals a second; infinite when too many."""
        if rate >= self.capacity:
            return math.inf
        low, high = 0.0, 1.0
        while high * self.each(high) < rate and high < 1e6:
            low, high = high, high * 2
        for _ in range(30):
            middle = (low + high) / 2
            if middle * self.each(middle) < rate:
                low = middle
            else:
                high = middle
        return high


def step(service: Service, count: float, rate: float, seconds: float) -> tuple[float, float]:
    """Return the requests after `seconds` of `rate` arrivals a second, and the request-seconds."""
    each = service.each(count)
    level = rate / each
    left = math.exp(-each * seconds)
    after = level + (count - level) * left
    return after, level * seconds + (count - level) * (1 - left) / each


def drain_seconds(service: Service, count: float) -> float:
    """Return how long `count` requests in flight take to end while no new ones come."""
    seconds = 0.0
    while count > _DRAINED and seconds < _LONGEST:
        each = service.each(count)
        seconds += 0.25 / each
        count *= math.exp(-0.25)
    return seconds


def switch_price(
    before: Service, after: Service, cost: SwitchCost, count: float, rate: float
) -> float:
    """Return what a switch costs in request-seconds, at `rate` arrivals a second.

    `count` requests are in flight when the gate closes. Counted are the wait at the gate and the
    time until the queue that formed there is worked off, against the load at rest afterwards.
    """
    if cost.free:
        return 0.0
    closed = drain_seconds(before, count) + cost.closed
    waiting = rate * closed
    total = waiting * closed / 2
    rest = min(after.settled(rate), waiting)
    backlog, seconds = waiting, 0.0
    while backlog > rest + 0.5 and seconds < _LONGEST:
        stride = max(0.2 / after.each(backlog), 1.0)
        backlog, spent = step(after, backlog, rate, stride)
        total += spent - rest * stride
        seconds += stride
    return max(total, 0.0)
