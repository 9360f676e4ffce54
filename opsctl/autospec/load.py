"""Load: what the watchdog sees, once a second."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadSample:
    """Load at one moment; None is unknown, and unknown is not idle.

    `time` is monotonic seconds. `running` and `queued` come from the engine, `held`, `in_flight`,
    `arrived` and `completed` (counters of requests) from the gateway, which knows them even when
    the engine hangs. `generated` is the engine's counter of tokens it has generated; it begins
    again with every engine. `stalled` of those in flight wait for their client.
    """

    time: float
    running: int | None = None
    queued: int | None = None
    held: int = 0
    in_flight: int = 0
    arrived: int = 0
    used_tokens: int | None = None
    accept_length: float | None = None
    completed: int = 0
    generated: int | None = None
    stalled: int = 0

    @property
    def streams(self) -> int | None:
        """Requests in the engine; None when what it says is unknown.

        SGLang publishes how many run just before it counts those it has prefilled, and then not
        for 15 decode steps: eight requests that came together were read as one for most of their
        time (SGLang 0.5.23). So it is never less than the gateway has there.
        """
        if self.running is None or self.queued is None:
            return None
        return max(self.running + self.queued, self.in_flight - self.stalled)

    @property
    def using(self) -> int | None:
        """Requests that `used_tokens` belong to; None when that cannot be told.

        The tokens are told with those of requests just prefilled, the requests without: where the
        engine has left out most of what it has, nothing can be said.
        """
        streams = self.streams
        if streams is None or not self.running or self.queued is None or self.used_tokens is None:
            return None
        return None if 2 * (self.running + self.queued) < streams else streams - self.queued

    @property
    def demand(self) -> int | None:
        """Requests running, queued or held; None when the engine's part is unknown."""
        streams = self.streams
        return None if streams is None else streams + self.held
