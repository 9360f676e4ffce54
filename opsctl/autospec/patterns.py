"""Patterns of load over a day or a part of it: open ones and those of clients that wait. Pure.

An open pattern is a share of what the host can serve: requests come whatever becomes of those
before. In a closed one each client sends its next request when it has the answer to the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from opsctl.autospec.arrivals import Requests, Session, clients, shaped
from opsctl.autospec.pair import Pair, Speed


class Shape(Protocol):
    """What an open and a closed pattern have in common."""

    @property
    def name(self) -> str:
        """Name as `--pattern` takes it."""
        ...

    @property
    def about(self) -> str:
        """What it is, in a few words."""
        ...

    @property
    def hours(self) -> float:
        """How long it is unless it is said."""
        ...

    def count(self, source: Requests, pair: Pair, hours: float | None = None) -> float:
        """Return about how many requests it makes."""
        ...

    def requests(
        self, source: Requests, pair: Pair, *, hours: float | None = None, seed: int = 0
    ) -> Requests:
        """Return the source's requests in this pattern, for a host with these speeds."""
        ...


@dataclass(frozen=True)
class Pattern:
    """Load by time: `share(t)` of the faster profile's most tok/s; `t` in seconds of `hours`."""

    name: str
    about: str
    hours: float
    share: Callable[[float, float], float]
    """Of (seconds since the begin, seconds in all)."""

    def count(self, source: Requests, pair: Pair, hours: float | None = None) -> float:
        """Return about how many requests it makes."""
        seconds = (hours if hours is not None else self.hours) * 3600
        most = max(speed.capacity(source.mean_context) for speed in pair.speeds.values())
        shares = [self.share(seconds * n / 100, seconds) for n in range(100)]
        return sum(shares) / len(shares) * most / source.mean_output * seconds

    def requests(
        self, source: Requests, pair: Pair, *, hours: float | None = None, seed: int = 0
    ) -> Requests:
        """Return the source's requests, arriving in this pattern at a host with these speeds."""
        context = source.mean_context
        capacity = max(speed.capacity(context) for speed in pair.speeds.values())
        lasts = hours if hours is not None else self.hours
        per_share = capacity / source.mean_output
        return shaped(
            source,
            lambda t: self.share(t, lasts * 3600) * per_share,
            lasts,
            name=self.name,
            seed=seed,
        )


QUIET, BUSY = 0.08, 0.7


def _diurnal(t: float, _total: float) -> float:
    """Least at 4 o'clock, most at 16; the day begins at midnight."""
    return 0.37 - 0.33 * math.cos((t / 3600 - 4) / 24 * 2 * math.pi)


def _bursts(t: float, _total: float) -> float:
    return BUSY if t % 1500 >= 900 else QUIET


def _flapping(t: float, _total: float) -> float:
    return BUSY if t % 200 >= 100 else QUIET


def _ramp(t: float, total: float) -> float:
    return 0.02 + 0.83 * t / total


def _spike(t: float, total: float) -> float:
    return BUSY if 0.5 <= t / total < 0.625 else QUIET


PATTERNS = {
    pattern.name: pattern
    for pattern in (
        Pattern("quiet", "8 % of what the host can serve", 12, lambda t, total: QUIET),
        Pattern("busy", "70 %", 4, lambda t, total: BUSY),
        Pattern("diurnal", "4 % at night to 70 % in the afternoon, from midnight", 24, _diurnal),
        Pattern("bursts", "8 %, with 10 minutes of 70 % every 25 minutes", 8, _bursts),
        Pattern("flapping", "8 % and 70 %, 100 s each", 4, _flapping),
        Pattern("ramp", "from 2 % to 85 %", 6, _ramp),
        Pattern("spike", "8 %, with 70 % for an eighth of the time, from the middle on", 8, _spike),
    )
}


@dataclass(frozen=True)
class Group:
    """Clients that begin together, at `begin`, and are there for `lasts` seconds.

    So long the faster profile takes for the requests of all; they `think` (seconds) in between.
    """

    begin: float
    clients: int
    lasts: float
    think: float = 0.0


class Served:
    """What a pair makes of clients with requests of the source's sizes."""

    def __init__(self, source: Requests, pair: Pair) -> None:
        self._speeds = tuple(pair.speeds.values())
        self._context, self._tokens = source.mean_context, source.mean_output

    @property
    def many(self) -> int:
        """Clients that bring the profile that can serve the most to 98 % of that; 100 at most."""
        faster = max(self._speeds, key=lambda speed: speed.capacity(self._context))
        table = faster.table(self._context)
        last = min(MOST_CLIENTS, len(table) - 1)
        enough = 0.98 * faster.capacity(self._context)
        return next((n for n in range(1, last) if table[n] >= enough), last)

    def sojourn(self, count: int) -> float:
        """Return the seconds that a request takes with so many running, at the faster profile."""
        return count * self._tokens / max(s.tok_s(count, self._context) for s in self._speeds)

    def rates(self, group: Group) -> tuple[float, ...]:
        """Return the requests a second of these clients with each profile."""
        return tuple(self._rate(speed, group) for speed in self._speeds)

    def each(self, group: Group) -> int:
        """Return how many requests each of these clients sends."""
        return max(round(max(self.rates(group)) * group.lasts / group.clients), 1)

    def _rate(self, speed: Speed, group: Group) -> float:
        """Running ones and thinking ones (rate times `think`) are all the clients, by bisection."""
        low, high = 0.0, float(group.clients)
        for _ in range(40 if group.think else 0):
            middle = (low + high) / 2
            rate = speed.tok_s(middle, self._context) / self._tokens
            if middle + rate * group.think < group.clients:
                low = middle
            else:
                high = middle
        return speed.tok_s(high, self._context) / self._tokens


MOST_CLIENTS = 100
_ROOM = 3.0
"""Times what the slower profile takes: acceptance may drop to half, and switches take time too."""


@dataclass(frozen=True)
class ClosedPattern:
    """Clients that wait for their answers; `groups` are made for (the pair, seconds in all).

    How many requests there are is fixed beforehand, so that every profile has the same work.
    """

    name: str
    about: str
    hours: float
    groups: Callable[[Served, float], tuple[Group, ...]]

    def count(self, source: Requests, pair: Pair, hours: float | None = None) -> float:
        """Return how many requests it makes."""
        served = Served(source, pair)
        return sum(group.clients * served.each(group) for group in self._groups(served, hours))

    def requests(
        self, source: Requests, pair: Pair, *, hours: float | None = None, seed: int = 0
    ) -> Requests:
        """Return the chains of requests; `hours` is what the faster profile takes, about.

        The case lasts longer: as long as the slower profile may need, generously.
        """
        served = Served(source, pair)
        groups = self._groups(served, hours)
        sessions = [
            Session(group.begin, served.each(group), group.think)
            for group in groups
            for _ in range(group.clients)
        ]
        slowest = [
            group.clients * served.each(group) / min(served.rates(group)) for group in groups
        ]
        limit = _ROOM * sum(slowest) / 3600
        made = clients(source, sessions, limit, name=self.name, seed=seed)
        return replace(made, work=hours if hours is not None else self.hours)

    def _groups(self, served: Served, hours: float | None) -> tuple[Group, ...]:
        return self.groups(served, (hours if hours is not None else self.hours) * 3600)


def _few(_served: Served, seconds: float) -> tuple[Group, ...]:
    return (Group(0.0, 2, seconds),)


def _many(served: Served, seconds: float) -> tuple[Group, ...]:
    return (Group(0.0, served.many, seconds),)


def _sessions(served: Served, seconds: float) -> tuple[Group, ...]:
    """In each quarter of the time, from the middle of it on, for a quarter of it."""
    quarter, many = seconds / 4, served.many
    rushes = (Group((n + 0.5) * quarter, many, quarter / 4) for n in range(4))
    return (Group(0.0, 2, seconds), *rushes)


def _thinking(served: Served, seconds: float) -> tuple[Group, ...]:
    many = served.many
    return (Group(0.0, many, seconds, served.sojourn(many)),)


CLOSED = {
    pattern.name: pattern
    for pattern in (
        ClosedPattern("clients few", "2 clients that wait for their answers", 12, _few),
        ClosedPattern("clients many", "as many as bring the host to its capacity", 4, _many),
        ClosedPattern(
            "clients sessions", "2, and every 2 hours many for half an hour", 8, _sessions
        ),
        ClosedPattern(
            "clients thinking", "many that think for as long as a request takes", 4, _thinking
        ),
    )
}
"""Beside the suite's own table, which has open patterns only."""

ALL: dict[str, Shape] = {**PATTERNS, **CLOSED}
