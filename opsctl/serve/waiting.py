"""The gate with sleepers: requests wait here for an answer, in the event loop."""

from __future__ import annotations

import asyncio

from opsctl.serve.gate import Engine, Gate, Refusal, Ticket


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class WaitingRoom:
    """Lets requests sleep until the gate has an answer for them."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self._sleeping: dict[int, asyncio.Future[None]] = {}

    def open(self, url: str) -> None:
        """Open the gate and wake those who wait, oldest first."""
        self._wake(self.gate.open(url))

    def close(self, reason: str, *, admit: bool, retry_after: float) -> None:
        """Close the gate; wake those who are now turned away."""
        self._wake(self.gate.close(reason, admit=admit, retry_after=retry_after))

    async def answer(self, ticket: Ticket, *, until: float) -> Engine | Refusal | None:
        """Wait for the gate's answer; None when `until` (loop time) came first."""
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            answer = self.gate.ask(ticket, now)
            if answer is not None or now >= until:
                return answer
            await self._sleep(ticket, min(until, now + self.gate.remaining(ticket, now)))

    async def _sleep(self, ticket: Ticket, until: float) -> None:
        loop = asyncio.get_running_loop()
        future = self._sleeping[ticket.number] = loop.create_future()
        alarm = loop.call_at(until, _wake, future) if until != float("inf") else None
        try:
            await future
        finally:
            del self._sleeping[ticket.number]
            if alarm:
                alarm.cancel()

    def _wake(self, tickets: tuple[Ticket, ...]) -> None:
        for ticket in tickets:
            future = self._sleeping.get(ticket.number)
            if future:
                _wake(future)
