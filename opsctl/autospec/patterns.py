"""Patterns of load over a day or a part of it, as shares of what the host can serve. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from opsctl.autospec.arrivals import Requests, shaped
from opsctl.autospec.pair import Pair


@dataclass(frozen=True)
class Pattern:
    """Load by time: `share(t)` of the faster profile's most tok/s; `t` in seconds of `hours`."""

    name: str
    about: str
    hours: float
    share: Callable[[float, float], float]
    """Of (seconds since the begin, seconds in all)."""

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
