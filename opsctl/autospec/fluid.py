"""A server's queue as a fluid: what a profile's queue would be, and what a switch costs. Pure.

With `n` requests in the system, each leaves at a rate `r(n) = tok_s(n) / n / tokens`. Between two
looks `r` is held fixed, which makes the step exact and stable for any step length:
`n(t) = a/r + (n - a/r) exp(-r t)` for `a` arrivals a second.
"""

from __future__ import annotations

import math

from opsctl.autospec.cost import SwitchCost
from opsctl.autospec.pair import Speed

_LONGEST = 3600.0
"""Seconds that a backlog is followed for; beyond, the load has changed anyway."""
_DRAINED = 0.25


class Service:
    """How fast a profile serves: its speed at a context, a factor on it, and tokens a request."""

    __slots__ = ("_last", "_scale", "_table", "capacity")

    def __init__(self, speed: Speed, factor: float, tokens: float, context: float) -> None:
        self._table = speed.table(context)
        self._last = len(self._table) - 1
        self._scale = factor / tokens
        self.capacity = speed.capacity(context) * self._scale
        """Requests/s that can be served at most."""

    def each(self, count: float) -> float:
        """Return the rate (1/s) at which each of `count` requests ends."""
        table = self._table
        if count <= 1.0:
            return table[1] * self._scale
        below = int(count)
        if below >= self._last:
            return table[self._last] * self._scale / count
        low = table[below]
        return (low + (table[below + 1] - low) * (count - below)) * self._scale / count

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
    while count > _DRAINED:
        each = service.each(count)
        seconds += 0.25 / each
        count *= math.exp(-0.25)
    return seconds


def switch_price(
    before: Service,
    after: Service,
    cost: SwitchCost,
    count: float,
    rate: float,
    *,
    urgent: bool = False,
    tempo: float = 1.0,
) -> float:
    """Return what a switch costs in request-seconds, at `rate` arrivals a second.

    `count` requests are in the system when it is asked for. Counted is what more there are than
    if the next profile served from now on: during the preparation, at the closed gate, and until
    the queue that formed there is worked off (an hour at most: it never is when more comes than
    can be served). `urgent` does not wait for the preparation. `tempo`: how much slower the clock
    runs than one of seconds.
    """
    if cost.free:
        return 0.0
    ideal, total, closed = count, 0.0, cost.closed
    if urgent:
        closed += max(cost.prepare - drain_seconds(before, count), 0.0)
    elif cost.prepare:
        for _ in range(4):
            count, spent = step(before, count, rate, cost.prepare / 4)
            ideal, base = step(after, ideal, rate, cost.prepare / 4)
            total += spent - base
    drain = drain_seconds(before, count)
    closed += drain
    ideal, base = _served(after, ideal, rate, closed)
    waiting = rate * closed
    total += waiting * closed / 2 + count * drain / 2 - base
    seconds = 0.0
    while waiting > ideal + 0.5 and seconds < _LONGEST * tempo:
        stride = max(0.3 / after.each(waiting), tempo)
        waiting, spent = step(after, waiting, rate, stride)
        ideal, base = step(after, ideal, rate, stride)
        total += spent - base
        seconds += stride
    return max(total, 0.0)


def loop_price(before: Service, after: Service, cost: SwitchCost, clients: float) -> float:
    """Return what a switch costs clients that each wait for an answer, in request-seconds.

    No more than they can wait at the gate, and no queue is left. Counted is the time in which they
    get nothing (of the drain half), and how much slower they are served during the preparation.
    """
    if cost.free or clients <= 0:
        return 0.0
    behind = max(1 - before.each(clients) / after.each(clients), 0.0)
    waits = cost.prepare * behind + drain_seconds(before, clients) / 2 + cost.closed
    return clients * waits


def _served(service: Service, count: float, rate: float, seconds: float) -> tuple[float, float]:
    """Let `seconds` pass in a few steps."""
    total = 0.0
    for _ in range(8):
        count, spent = step(service, count, rate, seconds / 8)
        total += spent
    return count, total
