"""Health by progress: an engine with work that moves nothing is hung, whatever /health says.

/health of SGLang answered 200 for over an hour after a scheduler crash (sglang#6624), and 503
during long chunked prefills of a perfectly healthy engine (sglang#22511). So neither answer is
asked for: bytes to clients and the engine's own counters are.
"""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.engine.client import Loads


@dataclass(frozen=True)
class Sight:
    """What was seen of a serving engine at one moment; times are monotonic seconds."""

    time: float
    in_flight: int
    """Requests that wait for the engine, not for their client."""
    last_bytes: float | None
    """When the last byte came from the engine to any client; None before the first."""
    loads: Loads | None


AWAY = 15.0
"""Seconds between two looks, which take a second, mostly, and ten at worst, that show that opsctl
itself was stopped: with its host paused, its engine was too, and nothing can be said."""


class ProgressWatch:
    """Remembers when the engine last moved; made anew for each engine."""

    def __init__(self, hang_after: float, now: float) -> None:
        self._hang_after = hang_after
        self._moved = self._looked = now
        self._counters: tuple[object, ...] | None = None

    def observe(self, sight: Sight) -> str | None:
        """Why the engine counts as hung; None while it does not."""
        if not self._busy(sight) or sight.time - self._looked > AWAY:
            self._moved = sight.time
        self._looked = sight.time
        self._moved = max(self._moved, sight.last_bytes or 0.0)
        if sight.loads is not None and sight.loads.progress != self._counters:
            self._counters = sight.loads.progress
            self._moved = sight.time
        silent = sight.time - self._moved
        if silent < self._hang_after:
            return None
        return (
            f"{sight.in_flight} requests in flight, but no byte, no token and no prefill "
            f"moved for {silent:.0f} s (health.hang_after {self._hang_after:g} s)"
        )

    @staticmethod
    def _busy(sight: Sight) -> bool:
        engine = 0 if sight.loads is None else sight.loads.running + sight.loads.queued
        return sight.in_flight > 0 or engine > 0
