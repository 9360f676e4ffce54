"""What going to the other profile and coming back would cost, and what it would save. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from opsctl.autospec.belief import Belief
from opsctl.autospec.cost import Costs, SwitchCost
from opsctl.autospec.fluid import Service, loop_price, switch_price

_EVERY = 20.0
"""Seconds for which a price holds at most."""
_MOVED = 0.3
"""Share by which the arrival rate, or the number of clients, may move while it holds."""


@dataclass(frozen=True)
class Price:
    """Prices of going and of coming back, in request-seconds, and what the other one saves."""

    at: float
    go: float
    back: float
    saves: float
    """Requests fewer in the system, at rest at `rate` arrivals a second."""
    saves_now: float
    """The same, at the highest of the running means of the rate."""
    rate: float
    rate_now: float
    clients: float | None = None
    """Of a closed loop; what they would save is in requests' worth of their time."""

    def stale(self, now: float, belief: Belief) -> bool:
        """Whether it is old, or the load has moved since."""
        if (belief.clients is None) != (self.clients is None):
            return True
        was, load = self.rate_now, _rate_now(belief)
        if belief.clients is not None:
            was, load = self.clients or 0.0, belief.clients
        return now - self.at >= _EVERY * belief.tempo or abs(load - was) > _MOVED * was

    @property
    def words(self) -> str:
        """Say what the other profile would do."""
        if not math.isfinite(self.saves):
            return "could serve what comes" if self.saves > 0 else "could not serve what comes"
        if self.rate <= 0:
            return "has nothing to save: no requests come"
        each, hour = abs(self.saves) / self.rate, abs(self.saves) * 3600
        does = "would save" if self.saves >= 0 else "would lose"
        return f"{does} {each:.2f} s a request, {hour:.0f} request-seconds an hour"


def price(belief: Belief, costs: Costs, serving: str, *, high: float, now: float) -> Price:
    """Return what going to the other profile costs now, and coming back at a busy time.

    That is the load which the share `high` of the last day stayed below.
    """
    other = belief.pair.other(serving)
    here, there = belief.service(serving), belief.service(other)
    back = _way_back(belief, there, here, costs.to(serving), high)
    rate, cost = _rate_now(belief), costs.to(other)
    if belief.clients is not None:
        saves = belief.clients * faster(here, there, belief.clients)
        go = loop_price(here, there, cost, belief.clients)
        served = belief.rates.fast
        return Price(now, go, back, saves, saves, served, served, belief.clients)
    return Price(
        at=now,
        go=switch_price(here, there, cost, belief.demand, rate, tempo=belief.tempo),
        back=back,
        saves=_saves(here, there, belief.rates.slow),
        saves_now=_saves(here, there, rate),
        rate=belief.rates.slow,
        rate_now=rate,
    )


def faster(here: Service, there: Service, streams: float) -> float:
    """Return the share of each request's time that `there` would save, with so many at once."""
    return 1 - here.each(streams) / there.each(streams)


def _rate_now(belief: Belief) -> float:
    return max(belief.rates.fast, belief.rates.slow)


def _saves(here: Service, there: Service, rate: float) -> float:
    """Requests fewer in the system with `there`; infinite when only one can serve what comes."""
    now, then = here.settled(rate), there.settled(rate)
    return 0.0 if now == then else now - then


def _way_back(
    belief: Belief, there: Service, here: Service, cost: SwitchCost, share: float
) -> float:
    """At a busy time of the last day, with the requests or with the clients of that time."""
    rate = belief.rates.high(share)
    count = min(there.settled(rate), 100.0)
    return max(
        switch_price(there, here, cost, count, rate, tempo=belief.tempo),
        loop_price(there, here, cost, belief.rates.high_clients(share)),
    )
