"""What the service manager hears: ready, in words how far, alive, and that it should wait.

Ready is said when an engine has proved that it serves, not when opsctl runs. Starts and stops of
large models outlast fixed time-outs; opsctl has deadlines of its own for each, so while its loop
turns systemd may wait on. The watchdog is fed by the owner loop alone: if that hangs, systemd ends
it, and the next start clears up.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator

from opsctl.serve.notify import Notifier
from opsctl.serve.state import Phase, State

EXTEND_EVERY, EXTEND_BY = 5.0, 60.0


class Announcer:
    """Turns the state of serving into what sd_notify(3) knows."""

    def __init__(self, notifier: Notifier, clock: Callable[[], float] = time.monotonic) -> None:
        self._notifier = notifier
        self._clock = clock
        self._ready = False
        self._said: dict[str, str | int] = {}
        self._extended: float | None = None

    def tell(self, state: State, stage: str, waits: str) -> None:
        """Say where serving stands, if that has changed: a stage of the load, what is waited for.

        READY=1 and STATUS= go in one datagram, so that nobody sees one without the other. It is
        said again at the next turn of the loop when there was no room: a READY=1 that got lost
        would leave the unit starting for ever.
        """
        fields: dict[str, str | int] = {}
        if state.phase in {Phase.SERVING, Phase.DRAINED}:
            fields["READY"] = 1
            self._ready = True
        elif state.phase is Phase.FAILED or state.stopping_for_good or state.exit_code is not None:
            fields["STOPPING"] = 1
        fields["STATUS"] = status_line(state, stage, waits)
        if fields != self._said and self._notifier.offer(**fields):
            self._said = fields

    def turned(self, state: State) -> None:
        """The owner loop has turned: feed the watchdog, and ask for time where it is needed."""
        self._notifier.alive()
        if state.phase is not Phase.SERVING:
            self._extend()

    @contextlib.asynccontextmanager
    async def patience(self, what: str) -> AsyncIterator[None]:
        """Ask for time while something goes on before the owner loop turns."""
        self._notifier.send(STATUS=what)

        async def ask() -> None:
            while True:
                self._extend()
                await asyncio.sleep(EXTEND_EVERY / 5)

        asking = asyncio.ensure_future(ask())
        try:
            yield
        finally:
            asking.cancel()

    @contextlib.contextmanager
    def reloading(self) -> Iterator[None]:
        """Say that a reload begins, and, whatever comes of it, that it is over.

        Before the first engine is ready nothing is said: READY=1 would end the start too early.
        """
        if not self._ready:
            yield
            return
        # systemd compares it with its own clock to know which reload is meant (sd_notify(3)).
        moment = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._notifier.send(RELOADING=1, MONOTONIC_USEC=moment)
        try:
            yield
        finally:
            self._notifier.send(READY=1)
            self._said = {}  # and once more with the status, in case this got lost

    def _extend(self) -> None:
        now = self._clock()
        if self._extended is None or now - self._extended >= EXTEND_EVERY:
            self._extended = now
            self._notifier.extend(EXTEND_BY)


def status_line(state: State, stage: str, waits: str) -> str:
    """One line for `systemctl status`: phase, profile, why, and how far a load is."""
    parts = [f"{state.phase}: {state.profile}: {state.reason}"]
    if state.phase is Phase.STARTING and stage:
        parts.append(f"stage {stage}")
    if waits:
        parts.append(waits)
    return "; ".join(parts).replace("\n", " ")
