"""What the policy believes: the load, the requests, how fast the profiles really are. Pure.

Everything is estimated from the samples that `serve` records. Times are in seconds; all of them
are multiples of `tempo`, so that a clock that runs faster changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from opsctl.autospec.closed_loop import ClosedLoop
from opsctl.autospec.fluid import Service, step
from opsctl.autospec.load import LoadSample
from opsctl.autospec.pair import Pair
from opsctl.autospec.rates import Rates

MAX_GAP = 5.0
_PRIOR_TOKENS, _PRIOR_WEIGHT = 200.0, 5.0
_FORGET_REQUESTS = 2000.0
_AT_ONCE = 5
"""Completed requests that are counted at a time."""
_FORGET_SPEED = 300.0
_PRIOR_SPEED = 60.0
"""Seconds of one stream that the surface is believed for, before what is observed outweighs it."""
_LEAST, _MOST = 0.25, 4.0


@dataclass
class _Observed:
    """Tokens that came and tokens that the surface said would come."""

    came: float = 0.0
    said: float = 0.0

    def factor(self, prior: float) -> float:
        """Return observed by predicted, where `prior` tokens came as they were said to."""
        return min(max((self.came + prior) / (self.said + prior), _LEAST), _MOST)


@dataclass
class _Counted:
    """What was generated, and how many requests came and ended meanwhile."""

    tokens: float = 0.0
    completed: int = 0
    arrived: int = 0


class Belief:
    """Running estimates; `see` takes every sample once."""

    def __init__(self, pair: Pair, tempo: float = 1.0) -> None:
        self.pair = pair
        self.tempo = tempo
        self.rates = Rates(tempo)
        self._loop = ClosedLoop(tempo)
        self.known = False
        self.queue = dict.fromkeys(pair.names, 0.0)
        """What each profile's queue would be now, had it served all the time."""
        self.spent = dict.fromkeys(pair.names, 0.0)
        """Request-seconds that each would have cost so far."""
        self.elapsed = 0.0
        """Seconds of the last step."""
        self.arriving = 0.0
        """Arrivals a second during the last step."""
        self.arrived = 0
        """Requests since the first sample."""
        self.demand = 0
        self.context = 0.0
        self.accepted = 1.0
        """Accept length now, by that at measurement."""
        self._observed = {name: _Observed() for name in pair.names}
        self._tokens = _PRIOR_TOKENS * _PRIOR_WEIGHT
        self._requests = _PRIOR_WEIGHT
        self._waiting = _Counted()
        self._last: LoadSample | None = None
        self._serving: str | None = None
        self._generated: int | None = None
        self._said = 0.0
        self._services = {name: self._serve(name) for name in pair.names}

    @property
    def clients(self) -> float | None:
        """Clients of a closed loop, each waiting for its answer; None for an open one."""
        return self._loop.clients

    @property
    def tokens(self) -> float:
        """Output tokens of a request, on average."""
        return max(self._tokens / self._requests, 1.0)

    def factor(self, profile: str) -> float:
        """Return how much faster a profile is than its surface says."""
        prior = _PRIOR_SPEED * self.tempo * self.pair.speeds[profile].tok_s(1, self.context)
        factor = self._observed[profile].factor(prior)
        return factor * self.accepted if profile == self.pair.names[0] else factor

    def service(self, profile: str) -> Service:
        """Return how a profile serves what comes now."""
        return self._services[profile]

    def _serve(self, profile: str) -> Service:
        return Service(self.pair.speeds[profile], self.factor(profile), self.tokens, self.context)

    def see(self, sample: LoadSample, serving: str | None) -> None:
        """Take in one sample."""
        last, self._last = self._last, sample
        self.known = sample.demand is not None
        self.demand = sample.demand or 0
        self.elapsed = 0.0
        if last is None or not 0 < sample.time - last.time <= MAX_GAP * self.tempo:
            self._forget_counters(sample)
            self._loop.interrupted()
            return
        self.elapsed = sample.time - last.time
        arrived = max(sample.arrived - last.arrived, 0)
        self.arriving = arrived / self.elapsed
        self.arrived += arrived
        completed = max(sample.completed - last.completed, 0)
        self._see_clients(sample, arrived, completed, is_open=serving is not None)
        self.rates.see(arrived, self.elapsed, self.clients)
        self._see_requests(sample)
        if serving is not None and serving == self._serving:
            self._see_speed(sample, last, serving)
        else:
            self._forget_counters(sample)
        self._serving = serving
        self._see_completions(sample, last)
        self._services = {name: self._serve(name) for name in self.pair.names}
        self._let_queues_run(serving)

    def _forget_counters(self, sample: LoadSample) -> None:
        self._generated = sample.generated
        self._said = 0.0

    def _see_clients(
        self, sample: LoadSample, arrived: int, completed: int, *, is_open: bool
    ) -> None:
        was_open = self.clients is None
        count = sample.in_flight + sample.held
        self._loop.see(count, arrived, completed, self.elapsed, is_open=is_open)
        if was_open and self.clients is not None:
            self.rates.waited(self._loop.rising, self.clients)

    def _see_requests(self, sample: LoadSample) -> None:
        if sample.used_tokens is not None and sample.using:
            now = sample.used_tokens / sample.using
            share = 1 - math.exp(-self.elapsed / (120.0 * self.tempo))
            self.context += (now - self.context) * (share if self.context else 1.0)

    def _see_speed(self, sample: LoadSample, last: LoadSample, serving: str) -> None:
        """Compare tokens that came with those the surface said would come."""
        speculative = self.pair.names[0]
        if serving == speculative and sample.accept_length is not None:
            measured = self.pair.speculative.accept_length(
                max(sample.streams or 0, 1), self.context
            )
            if measured:
                share = 1 - math.exp(-self.elapsed / (20.0 * self.tempo))
                self.accepted += (sample.accept_length / measured - self.accepted) * share
        if sample.demand is None or last.demand is None:
            self._generated, self._said = None, 0.0
            return
        raw = self._raw(serving, sample, last)
        accepted = self.accepted if serving == speculative else 1.0
        self._said += raw * accepted * self.elapsed
        if sample.generated is None or self._generated is None:
            if sample.generated is not None:
                self._forget_counters(sample)
            return
        came = sample.generated - self._generated
        observed = self._observed[serving]
        if came >= 0:
            worth = self._said / max(self.pair.speeds[serving].capacity(self.context), 1e-9)
            left = math.exp(-worth / (_FORGET_SPEED * self.tempo))
            observed.came = observed.came * left + came
            observed.said = observed.said * left + self._said
        self._forget_counters(sample)

    def _see_completions(self, sample: LoadSample, last: LoadSample) -> None:
        """Tokens of a request: what was generated, by what was completed.

        While most requests do not end, what is generated belongs to unfinished ones: then it waits
        to be counted. Of each that has not ended a third is taken to be done.
        """
        if self._serving is None or sample.demand is None or last.demand is None:
            return
        raw = self._raw(self._serving, sample, last)
        self._waiting.tokens += self.factor(self._serving) * raw * self.elapsed
        self._waiting.completed += max(sample.completed - last.completed, 0)
        self._waiting.arrived += max(sample.arrived - last.arrived, 0)
        waiting = self._waiting
        if waiting.completed < max(_AT_ONCE, waiting.arrived / 2):
            return
        requests = waiting.completed + (waiting.arrived - waiting.completed) / 3
        left = math.exp(-requests / _FORGET_REQUESTS)
        self._tokens = self._tokens * left + waiting.tokens
        self._requests = self._requests * left + requests
        self._waiting = _Counted()

    def _raw(self, profile: str, sample: LoadSample, last: LoadSample) -> float:
        """The surface's tok/s between two samples."""
        counts = [x.streams for x in (sample, last) if x.streams is not None]
        speed = self.pair.speeds[profile]
        rates = [speed.tok_s(count, self.context) for count in counts]
        return sum(rates) / len(rates) if rates else 0.0

    def _let_queues_run(self, serving: str | None) -> None:
        if self.clients is not None:
            self._let_clients_wait(serving)
            return
        for name in self.pair.names:
            after, spent = step(self.service(name), self.queue[name], self.arriving, self.elapsed)
            self.queue[name] = after
            self.spent[name] += spent

    def _let_clients_wait(self, serving: str | None) -> None:
        """What was served now would have taken each profile its own time; nothing at the gate."""
        self.queue = dict.fromkeys(self.pair.names, float(self.demand))
        if serving is None or not self.demand:
            return
        each = self.service(serving).each(self.demand)
        for name in self.pair.names:
            ratio = each / self.service(name).each(self.demand)
            self.spent[name] += self.demand * ratio * self.elapsed
