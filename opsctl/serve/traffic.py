"""What the gateway counts: cheap to add to on every chunk, cheap to read every second."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_HOLD_BOUNDS = (0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600, 1200, 2400)


@dataclass(frozen=True)
class GatewayCounters:
    """A snapshot. `last_progress` is the loop time of the last byte from the engine (None before
    the first); `oldest_in_flight` is in seconds, 0 when nothing is in flight.

    `waiting_for_client` of those in flight wait for a client that does not send its body or does
    not read its answer; the engine cannot move them.

    Only answers to requests that make the engine work (not GET or HEAD) count as progress:
    a hung engine still answers `/metrics`.
    """

    in_flight: int
    waiting_for_client: int
    held: int
    held_bytes: int
    admitted_total: int
    completed_total: int
    failed_total: int
    abandoned_total: int
    retried_total: int
    cut_total: int
    rejected_total: int
    last_progress: float | None
    oldest_in_flight: float

    @property
    def at_engine(self) -> int:
        """Requests that the engine has to move."""
        return self.in_flight - self.waiting_for_client


class Histogram:
    """Observations in fixed buckets, in seconds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Add one observation."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """Return (upper bound, observations up to it) pairs, ending with `+Inf`."""
        pairs, seen = [], 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            seen += count
            pairs.append((str(bound), float(seen)))
        return pairs


@dataclass
class Traffic:
    """Mutable counts; only the gateway adds to them."""

    outcomes: Counter[str] = field(default_factory=Counter)
    retried: int = 0
    cut: int = 0
    last_progress: float | None = None
    hold_seconds: Histogram = field(default_factory=lambda: Histogram(_HOLD_BOUNDS))
    first_byte_seconds: Histogram = field(default_factory=lambda: Histogram(_BOUNDS))
