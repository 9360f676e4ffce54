"""The gate: who may go to the engine, who waits, who is turned away. Pure: no I/O and no clock.

A request is a `Ticket`. It asks, and the answer is an `Engine` (go there), a `Refusal` (tell the
client this) or None (held: ask again when woken). `open` and `close` return the tickets to wake,
oldest first, so that requests leave in the order in which they arrived. Being woken is only a
hint: each ticket asks again, so an answer is never older than the state that gave it.

Bounds apply to a request's first hold only. A request that was admitted once, to an engine or to
the queue, is never turned away because others came after it (architecture, rule 4).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What may be held at once (`requests`, `size` in bytes) and for how long (`time`, seconds)."""

    requests: int
    size: int
    time: float


@dataclass(frozen=True)
class Engine:
    """An engine that serves; `epoch` counts openings and so names one life of the gate."""

    url: str
    epoch: int


@dataclass(frozen=True)
class Refusal:
    """Why a request is not served, as the client will see it; `retry_after` in seconds."""

    status: int
    code: str
    message: str
    retry_after: float | None = None


@dataclass(eq=False, slots=True)
class Ticket:
    """One request at the gate; `number` is its place in the order of arrival."""

    number: int
    size: int = 0
    patient: bool = True
    admitted: bool = False
    failed_epoch: int = 0
    failures: int = 0
    waited: float = 0.0
    held_since: float | None = None


class Gate:
    """Admission, holding, bounds and release. Starts closed and admitting: "starting"."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held: dict[int, Ticket] = {}
        self._held_bytes = 0
        self._next_number = 0
        self._epoch = 0
        self._engine: Engine | None = None
        self._reason = "starting"
        self._admit = True
        self._retry_after = 30.0
        self.admitted = 0

    @property
    def engine(self) -> Engine | None:
        """The engine requests go to now; None while closed."""
        return self._engine

    @property
    def admits(self) -> bool:
        """Whether requests that cannot be served now may wait."""
        return self._admit

    @property
    def reason(self) -> str:
        """Why requests wait or are turned away."""
        return "the engine does not answer" if self._engine else self._reason

    @property
    def held(self) -> int:
        """Requests waiting."""
        return len(self._held)

    @property
    def held_bytes(self) -> int:
        """Bytes of their bodies."""
        return self._held_bytes

    def ticket(self, *, size: int = 0, patient: bool = True) -> Ticket:
        """Give the next arrival its place; one that is not `patient` is never held."""
        self._next_number += 1
        return Ticket(self._next_number, size=size, patient=patient)

    def ask(self, ticket: Ticket, now: float) -> Engine | Refusal | None:
        """Say where the request goes, why it does not, or None: it is (still) held."""
        if self._engine and self._engine.epoch > ticket.failed_epoch:
            self.leave(ticket, now)
            self._let_in(ticket)
            return self._engine
        refusal = self._refusal(ticket, now)
        if refusal:
            self.leave(ticket, now)
            return refusal
        if ticket.held_since is None:
            ticket.held_since = now
            self._let_in(ticket)
            self._held[ticket.number] = ticket
            self._held_bytes += ticket.size
        return None

    def remaining(self, ticket: Ticket, now: float) -> float:
        """Seconds the ticket may still wait, over all its holds together."""
        held = 0.0 if ticket.held_since is None else now - ticket.held_since
        return self._limits.time - ticket.waited - held

    def resize(self, ticket: Ticket, size: int) -> Refusal | None:
        """Count a body that turned out to be of `size` bytes; refuse when that is too much."""
        grown = size - ticket.size
        ticket.size = size
        if ticket.held_since is None:
            return None
        self._held_bytes += grown
        return self._too_many() if self._held_bytes > self._limits.size else None

    def fail(self, ticket: Ticket, engine: Engine) -> None:
        """Note that this engine did not answer; the ticket now waits for the next opening."""
        ticket.failed_epoch = engine.epoch
        ticket.failures += 1

    def leave(self, ticket: Ticket, now: float) -> None:
        """Take the ticket out of the queue, for whatever reason; harmless when it is not held."""
        if ticket.held_since is None:
            return
        ticket.waited += max(0.0, now - ticket.held_since)
        ticket.held_since = None
        del self._held[ticket.number]
        self._held_bytes -= ticket.size

    def open(self, url: str) -> tuple[Ticket, ...]:
        """Let requests go to the engine at `url`; returns the held ones to wake."""
        self._epoch += 1
        self._engine = Engine(url, self._epoch)
        return self._in_order()

    def close(self, reason: str, *, admit: bool, retry_after: float) -> tuple[Ticket, ...]:
        """Hold requests (`admit`) or turn them away; returns the held ones to wake."""
        self._engine = None
        self._reason, self._admit, self._retry_after = reason, admit, retry_after
        return () if admit else self._in_order()

    def _let_in(self, ticket: Ticket) -> None:
        self.admitted += not ticket.admitted
        ticket.admitted = True

    def _in_order(self) -> tuple[Ticket, ...]:
        # A retried request is older than those that came while it was at the engine.
        return tuple(ticket for _, ticket in sorted(self._held.items()))

    def _refusal(self, ticket: Ticket, now: float) -> Refusal | None:
        unavailable = self._engine is None and not (self._admit and ticket.patient)
        if unavailable or not ticket.patient:
            return self._unavailable("engine_unavailable", f"No engine serves: {self.reason}.")
        if self.remaining(ticket, now) <= 0:
            return self._unavailable(
                "hold_timeout", f"No engine served within {self._limits.time:g} s: {self.reason}."
            )
        if ticket.admitted:
            return None
        if not self._limits.requests:
            return self._unavailable("engine_unavailable", f"No engine serves: {self.reason}.")
        full = len(self._held) >= self._limits.requests
        return self._too_many() if full or self._over(ticket.size) else None

    def _over(self, size: int) -> bool:
        return self._held_bytes + size > self._limits.size

    def _unavailable(self, code: str, message: str) -> Refusal:
        return Refusal(503, code, message, self._retry_after)

    def _too_many(self) -> Refusal:
        message = f"Too many requests wait for an engine: {self.reason}."
        return Refusal(429, "too_many_held", message, self._retry_after)
