"""A server with a gate in front, simulated exactly, at thousands of times real speed. Pure.

Requests share the engine equally (processor sharing): with n running, each gets `tok_s(n) / n`.
A request is done when it has got its output tokens; prompts cost nothing but context. A switch
closes the gate, lets in-flight requests finish, takes its seconds, and admits what was held; one
inside the engine only changes the speed. The policy is asked once a second, as in `serve`, and the
same guards stand in its way. In a closed loop a request comes when the one before it was answered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise

from opsctl.autospec.arrivals import Requests
from opsctl.autospec.cost import SwitchCost
from opsctl.autospec.guards import GuardRules, Situation, vetoes
from opsctl.autospec.load import LoadSample
from opsctl.autospec.pair import Pair, Speed
from opsctl.autospec.policy import Decision, Policy
from opsctl.autospec.successors import Successors

NEVER = math.inf
Watch = Callable[[LoadSample, str | None, Decision | None], None]


DEFAULT_RULES = GuardRules(dwell=300.0, switches_per_hour=6)


@dataclass(frozen=True)
class Truth:
    """How the host differs from the surfaces: factors on tok/s, and of which they are known.

    From `drop_at` (seconds) on, drafts are accepted `drop` times as well as at measurement, and
    the speculative profile is as much slower.
    """

    factors: Mapping[str, float] = field(default_factory=dict)
    drop_at: float = NEVER
    drop: float = 1.0


@dataclass(frozen=True)
class Host:
    """What is simulated, besides the requests and the policy."""

    pair: Pair
    cost: SwitchCost
    truth: Truth = Truth()
    rules: GuardRules = DEFAULT_RULES
    drain_limit: float = 600.0
    """Seconds after which a switch is given up because requests in flight do not finish."""


@dataclass(frozen=True)
class Switch:
    """One switch: asked for, gate closed, gate open again (seconds)."""

    asked: float
    closed: float
    opened: float
    source: str
    target: str


@dataclass(frozen=True)
class Outcome:
    """What came of it. `latencies` are in the order of the requests, in seconds."""

    latencies: tuple[float, ...]
    switches: tuple[Switch, ...]
    cancelled: int = 0
    end: float = 0.0
    """When the last request was answered, in seconds."""

    @property
    def request_seconds(self) -> float:
        """Seconds of all requests together, waiting or running."""
        return math.fsum(self.latencies)

    @property
    def mean(self) -> float:
        """Mean latency in seconds; 0 without requests."""
        return self.request_seconds / len(self.latencies) if self.latencies else 0.0

    def quantile(self, share: float) -> float:
        """Return the latency that this share of the requests stays at or below."""
        if not self.latencies:
            return 0.0
        ranked = sorted(self.latencies)
        return ranked[min(int(share * len(ranked)), len(ranked) - 1)]


def scheduled(
    requests: Requests, host: Host, start: str, schedule: Sequence[tuple[float, str]] = ()
) -> Outcome:
    """Simulate switches at given times (seconds, profile); without any: one fixed profile."""
    engine = _Engine(requests, host, start)
    for time, target in schedule:
        if time > engine.time:
            engine.advance(time)
        if target != engine.profile and not engine.switching:
            engine.switch(target)
    engine.finish()
    return engine.outcome()


def controlled(
    requests: Requests, host: Host, start: str, policy: Policy, watch: Watch | None = None
) -> Outcome:
    """Simulate with a policy that is asked once a second until the case is over.

    A closed loop is over when everything has been answered: its `hours` are only a limit.
    """
    engine = _Engine(requests, host, start)
    end = requests.hours * 3600
    closed = requests.waits
    while engine.time < end and not (closed and engine.done):
        engine.advance(math.floor(engine.time) + 1.0)
        engine.ask(policy, watch)
    engine.finish()
    return engine.outcome()


class _Engine:
    """The state of the simulation; `time` in seconds.

    With 30 attributes instead of 29 CPython 3.11 takes a tenth longer for all of it.
    """

    def __init__(self, requests: Requests, host: Host, start: str) -> None:
        self.time = 0.0
        self.profile = start
        self._host = host
        self._loop = Successors(requests) if requests.waits else None
        self._came: Sequence[float] = self._loop.came if self._loop else requests.at
        self._prompt, self._output = requests.prompt, requests.output
        self._latencies = [0.0] * len(requests)
        self._next = 0
        self._completed = 0
        self._end = 0.0
        self._held: list[int] = []
        self._running: list[tuple[float, int, float]] = []
        """Heap of (service at the end, request, service at the begin)."""
        self._service = 0.0  # tokens that each request running from the begin would have got
        self._each = 0.0  # tok/s of each running request
        self._prompts = 0
        self._begun = 0.0  # sum of the service at the begin of the running ones
        self._generated = 0.0
        self._open = True
        self._phase: tuple[float, Callable[[], None]] | None = None
        self._asked = self._closed = 0.0
        self._target = start
        self._switches: list[Switch] = []
        self._cancelled_at: float | None = None
        self._cancellations = self._cancelled = 0
        self._set_speed()

    # -- time ---------------------------------------------------------------------------------

    def advance(self, until: float) -> None:
        """Let time pass; what a switch under way does on its way happens in between."""
        drop_at = self._host.truth.drop_at
        while True:
            stop = min(until, drop_at) if self.time < drop_at else until
            due, action = self._phase or (NEVER, None)
            if not self._run_to(max(min(due, stop), self.time)):
                continue  # the last request in flight has ended: what comes next is known now
            if self.time == drop_at:
                self._set_speed()
                self._refresh()
            if action is not None and due <= self.time:
                self._phase = None
                action()
            elif self.time >= until:
                break

    def finish(self) -> None:
        """Run until the last request is done."""
        while not self.done:
            self.advance(self.time + 3600.0)

    @property
    def done(self) -> bool:
        """Whether every request has been answered."""
        return self._completed == len(self._latencies)

    def _run_to(self, until: float) -> bool:
        """Arrivals and completions up to `until`; False when the drain ended before."""
        at, running = self._came, self._running
        due = self._loop.due if self._loop else []
        total = 0 if self._loop else len(at)  # in a closed loop none comes by the list
        while True:
            arrives = at[self._next] if self._next < total else due[0][0] if due else NEVER
            ends = self.time + (running[0][0] - self._service) / self._each if running else NEVER
            if arrives > until and ends > until:
                break
            if arrives <= ends:
                self._pass(arrives)
                index = heappop(due)[1] if due else self._next
                self._next += 1
                if self._open:
                    self._admit(index)
                    self._refresh()
                else:
                    self._held.append(index)
            else:
                self._pass(ends)
                self._service = running[0][0]
                self._complete()
                self._refresh()
                if not running:
                    self._end = self.time  # of the last one, when no more come
                    if not self._open:
                        self._drained()
                        return False
        self._pass(until)
        return True

    def _pass(self, until: float) -> None:
        elapsed = until - self.time
        if elapsed > 0:
            given = self._each * elapsed
            self._service += given
            self._generated += given * len(self._running)
            self.time = until

    def _admit(self, index: int) -> None:
        heappush(self._running, (self._service + self._output[index], index, self._service))
        self._prompts += self._prompt[index]
        self._begun += self._service

    def _complete(self) -> None:
        _, index, begun = heappop(self._running)
        self._prompts -= self._prompt[index]
        self._begun -= begun
        self._completed += 1
        self._latencies[index] = self.time - self._came[index]
        if self._loop is not None:
            self._loop.answered(index, self.time)

    # -- speed --------------------------------------------------------------------------------

    def _set_speed(self) -> None:
        truth = self._host.truth
        self._speed: Speed = self._host.pair.speeds[self.profile]
        self._factor = truth.factors.get(self.profile, 1.0)
        if self.profile == self._host.pair.names[0] and self.time >= truth.drop_at:
            self._factor *= truth.drop

    @property
    def _used(self) -> float:
        """Tokens in the KV cache."""
        return self._prompts + len(self._running) * self._service - self._begun

    def _refresh(self) -> None:
        count = len(self._running)
        if not count:
            self._each = 0.0
            return
        table = self._speed.table(self._used / count)
        self._each = self._factor * table[min(count, len(table) - 1)] / count

    # -- switching ----------------------------------------------------------------------------

    def switch(self, target: str, *, urgent: bool = False) -> None:
        """Begin a switch to `target`; `urgent` does not wait for the preparation."""
        self._asked, self._target = self.time, target
        if self._host.cost.free:
            self._closed = self.time
            self._changed()
        elif self._host.cost.prepare > 0 and not urgent:
            self._phase = (self.time + self._host.cost.prepare, self._close)
        else:
            self._close()

    @property
    def switching(self) -> bool:
        """Whether a switch is under way."""
        return self._phase is not None

    def _close(self) -> None:
        self._open = False
        self._closed = self.time
        self._phase = (self.time + self._host.drain_limit, self._cancel)
        if not self._running:
            self._drained()

    def _drained(self) -> None:
        prepared = max(self.time, self._asked + self._host.cost.prepare)
        self._phase = (prepared + self._host.cost.closed, self._changed)

    def _cancel(self) -> None:
        self._cancelled_at = self.time
        self._cancellations += 1
        self._cancelled += 1
        self._reopen()

    def _changed(self) -> None:
        source, self.profile = self.profile, self._target
        self._cancellations = 0
        self._switches.append(Switch(self._asked, self._closed, self.time, source, self.profile))
        self._set_speed()
        self._reopen()

    def _reopen(self) -> None:
        self._open = True
        for index in self._held:
            self._admit(index)
        self._held.clear()
        self._refresh()

    # -- the policy ---------------------------------------------------------------------------

    def ask(self, policy: Policy, watch: Watch | None) -> None:
        """Hand the policy a sample, and carry out what it decides, if the guards allow it."""
        sample = self._sample()
        policy.see(sample, self.profile if self._open else None)
        decision = None
        if not self.switching:
            decision = policy.decide(self.profile, self.time)
            if decision.action == "switch" and self._allowed(decision.profile):
                self.switch(decision.profile, urgent=decision.urgent)
        if watch is not None:
            watch(sample, self.profile if self._open else None, decision)

    def _allowed(self, target: str) -> bool:
        if self._host.cost.free:
            return True
        situation = Situation(
            serving=True,
            ready_at=self._switches[-1].opened if self._switches else 0.0,
            switch_times=[switch.asked for switch in self._switches],
            quarantine={},
            paused=False,
            cancelled_at=self._cancelled_at,
            cancellations=self._cancellations,
        )
        return not vetoes(self._host.rules, situation, target, self.time)

    def _sample(self) -> LoadSample:
        return LoadSample(
            time=self.time,
            running=len(self._running),
            queued=0,
            held=len(self._held),
            in_flight=len(self._running),
            arrived=self._next,
            used_tokens=int(self._used),
            accept_length=self._accept_length(),
            completed=self._completed,
            generated=int(self._generated),
        )

    def _accept_length(self) -> float | None:
        pair, truth = self._host.pair, self._host.truth
        if self.profile != pair.names[0] or not self._running:
            return None
        count = len(self._running)
        measured = pair.speculative.accept_length(count, self._used / count)
        if measured is None:
            return None
        return measured * (truth.drop if self.time >= truth.drop_at else 1.0)

    def outcome(self) -> Outcome:
        """Return what came of it."""
        return Outcome(tuple(self._latencies), tuple(self._switches), self._cancelled, self._end)


def serving_spans(
    outcome: Outcome, start: str, end: float
) -> list[tuple[float, float, str | None]]:
    """Return (from, to, profile) up to `end`; profile None while the gate was closed."""
    spans: list[tuple[float, float, str | None]] = []
    at, profile = 0.0, start
    for switch in outcome.switches:
        spans.append((at, switch.closed, profile))
        if switch.opened > switch.closed:
            spans.append((switch.closed, switch.opened, None))
        at, profile = switch.opened, switch.target
    spans.append((at, max(end, at), profile))
    assert all(a[1] == b[0] for a, b in pairwise(spans))  # noqa: S101 - they follow each other
    return spans
