"""The cost-aware policy: do no harm first, then gain. Pure.

It keeps account of three things in request-seconds: what serving has cost, and what each profile
would have cost had it served all the time. From these it knows what the present choice is losing.
A switch has a price, and so has the way back; it is made when what has been lost and may still be
lost exceeds both, and when a mistake would still leave the whole no worse than the better profile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from opsctl.autospec.belief import Belief
from opsctl.autospec.cost import Costs
from opsctl.autospec.fluid import step
from opsctl.autospec.load import LoadSample
from opsctl.autospec.pair import Pair
from opsctl.autospec.policy import Decision
from opsctl.autospec.price import Price, faster, price


@dataclass(frozen=True)
class Tuning:
    """Numbers of the policy; found with `make autospec-suite`, see docs/auto-spec-results.md."""

    leave_share: float = 0.07
    """Of a switch's price: the loss after which the sturdy profile is gone to."""
    enter_share: float = 0.5
    """Of a round trip's price: the loss after which the other profile is tried for a while."""
    spend: float = 0.04
    """Of what the better profile would have cost: what round trips may cost without a gain."""
    high: float = 0.98
    """The way back is priced at the rate that this share of the last day stayed below."""
    confirm: float = 8.0
    """Seconds of overload before it is believed."""
    least: float = 10.0
    """Request-seconds below which nothing is worth a switch, however little it costs."""
    known: int = 20
    """Requests before a round trip is thought of: until then its price is not known."""


class CostAware:
    """See the module; `noise` is the share of speed below which two profiles count as equal."""

    name = "cost_aware"

    def __init__(
        self,
        pair: Pair,
        costs: Costs,
        *,
        noise: float = 0.03,
        tempo: float = 1.0,
        tuning: Tuning = Tuning(),
    ) -> None:
        self.pair = pair
        self.costs = costs
        self.belief = Belief(pair, tempo)
        self._noise = noise
        self._tempo = tempo
        self._tuning = tuning
        self._lost = 0.0
        """Since the other profile has been better: what it would have saved."""
        self._queue = dict.fromkeys(pair.names, 0.0)
        self._serving: str | None = None
        self._settling = False
        """Until the queue that formed at the closed gate is worked off: that was to be expected."""
        self._over = 0.0
        self._gained = 0.0
        self._trips = 0.0
        """Prices of the round trips so far."""
        self._wanted: tuple[str, float] | None = None
        self._price: Price | None = None
        self._last_time = -math.inf

    @property
    def start(self) -> str:
        """Profile to start from: the speculative one only where it is nowhere slower."""
        speculative, baseline = self.pair.names
        fast, slow = self.pair.speeds[speculative], self.pair.speeds[baseline]
        most = min(self.pair.speculative.most, self.pair.baseline.most)
        dominates = all(
            fast.tok_s(n, context) * (1 + self._noise) >= slow.tok_s(n, context)
            for context in self.pair.speculative.contexts
            for n in range(1, most + 1)
        )
        return speculative if dominates else baseline

    def learn(self, costs: Costs) -> None:
        """Take over new costs of switches."""
        self.costs = costs
        self._price = None

    def see(self, sample: LoadSample, serving: str | None) -> None:
        """See `Policy.see`."""
        belief = self.belief
        belief.see(sample, serving)
        self._last_time = sample.time
        if serving is not None and serving != self._serving:
            self._begin_stay(serving)
        elif serving is not None and belief.elapsed:
            self._compare(serving)
        self._watch_overload(serving)

    def _begin_stay(self, serving: str) -> None:
        """From here on: what would the queue be with the other profile, begun as it is now?"""
        if self._serving is not None and self._wanted is not None:
            self._trips += self._wanted[1]
        self._wanted = None
        self._serving = serving
        self._price = None
        self._queue = dict.fromkeys(self.pair.names, float(self.belief.demand))
        self._lost = 0.0
        self._settling = True

    def _compare(self, serving: str) -> None:
        """Let both queues run on; what the other one saves counts, back to 0 when it does not."""
        belief = self.belief
        if belief.clients is not None:
            self._compare_for_clients(serving)
            return
        if self._settling:
            rest = belief.service(serving).settled(belief.rates.slow)
            self._settling = belief.demand > 2 * rest + 3
            self._queue = dict.fromkeys(self.pair.names, float(belief.demand))
            return
        spent = {}
        for name in self.pair.names:
            self._queue[name], spent[name] = step(
                belief.service(name), self._queue[name], belief.arriving, belief.elapsed
            )
        saved = spent[serving] - spent[self.pair.other(serving)]
        self._lost += saved
        if self._lost <= 0.0:
            self._lost = 0.0
            self._queue = dict.fromkeys(self.pair.names, float(belief.demand))
        if serving != self.sturdy:
            self._gained -= saved

    def _compare_for_clients(self, serving: str) -> None:
        """Of a closed loop: with the other profile each of them would be answered sooner."""
        belief = self.belief
        self._settling = False
        self._queue = dict.fromkeys(self.pair.names, float(belief.demand))
        spent = belief.demand * belief.elapsed
        here, there = belief.service(serving), belief.service(self.pair.other(serving))
        saved = spent * faster(here, there, belief.demand)
        if abs(saved) > self._noise * spent:
            self._lost = max(self._lost + saved, 0.0)
            if serving != self.sturdy:
                self._gained -= saved

    def _watch_overload(self, serving: str | None) -> None:
        """Count the seconds for which more has come than the serving profile can do."""
        belief = self.belief
        if serving is None or not belief.elapsed:
            return
        service = belief.service(serving)
        over = (
            belief.rates.fast > service.capacity
            and belief.demand > 1.5 * self._queue[self.pair.other(serving)] + 4
        )
        self._over = self._over + belief.elapsed if over else 0.0

    @property
    def sturdy(self) -> str:
        """The profile that can serve more: going to it never has to be taken back in a hurry."""
        speculative, baseline = self.pair.names
        belief = self.belief
        more = belief.service(speculative).capacity > belief.service(baseline).capacity
        return speculative if more else baseline

    def decide(self, serving: str, now: float) -> Decision:
        """See `Policy.decide`."""
        belief = self.belief
        other = self.pair.other(serving)
        if not belief.known or now - self._last_time > 5.0 * self._tempo:
            return Decision("stay", serving, "the load is unknown, and unknown is not idle")
        if self.costs.to(other).free and self.costs.to(serving).free:
            return self._follow(serving, other)
        return self._weigh(serving, other, self._priced(serving, now))

    def _follow(self, serving: str, other: str) -> Decision:
        """A switch costs nothing: the faster one at this load."""
        belief = self.belief
        streams = max(belief.demand, 1)
        here = belief.service(serving).each(streams)
        there = belief.service(other).each(streams)
        numbers = {"streams": streams, "ratio": round(there / here, 3)}
        words = f"with {streams} requests {other} has {there / here:.2f} times the speed"
        if there > here * (1 + self._noise):
            return Decision("switch", other, words, numbers)
        change = f"{other} when it has {1 + self._noise:.2f} times the speed or more"
        return Decision("stay", serving, words, numbers, change)

    def _priced(self, serving: str, now: float) -> Price:
        """The price; it is kept while the load is the same."""
        if self._price is None or self._price.stale(now, self.belief):
            high = self._tuning.high
            self._price = price(self.belief, self.costs, serving, high=high, now=now)
        return self._price

    def _weigh(self, serving: str, other: str, found: Price) -> Decision:
        """Weigh what staying has cost against what going costs."""
        sturdy = other == self.sturdy
        trip = found.go if sturdy else found.go + found.back
        share = self._tuning.leave_share if sturdy else self._tuning.enter_share
        lost = self._lost
        enough = max(share * trip, self._tuning.least * self._tempo)
        numbers: dict[str, float | int | None] = {
            "lost": round(lost, 1),
            "enough": round(enough, 1),
            "price": round(found.go, 1),
            "way_back": round(found.back, 1),
            "purse": round(self._purse, 1),
            "clients": None if found.clients is None else round(found.clients),
        }
        if sturdy and self._over >= self._tuning.confirm * self._tempo:
            why = f"more comes than {serving} can serve, and {other} can serve more"
            return self._go(other, 0.0, why, numbers, urgent=True)
        what = "a switch" if sturdy else "a round trip"
        words = f"{other} {found.words}; {what} costs {trip:.0f} request-seconds"
        if found.clients is not None:
            words = f"{found.clients:.0f} clients wait for their answers: {words}"
        if not sturdy and self.belief.arrived < self._tuning.known:
            change = f"nothing before {self._tuning.known} requests have come"
            words = f"{self.belief.arrived} requests have come: too few to know what they are like"
            return Decision("stay", serving, words, numbers, change)
        saves = found.saves_now if sturdy else found.saves  # what was lost yesterday is over
        if lost >= enough and saves > 0 and (sturdy or self._affordable(trip)):
            why = f"staying on {serving} has cost {lost:.0f} request-seconds; {words}"
            urgent = sturdy and self._over > 0
            return self._go(other, 0.0 if sturdy else trip, why, numbers, urgent=urgent)
        change = f"{other} when staying has cost {enough:.0f} request-seconds (now {lost:.0f})"
        if sturdy and found.clients is None:
            change += f", at once when more comes than {serving} can serve"
        return Decision("stay", serving, words, numbers, change)

    def _affordable(self, trip: float) -> bool:
        """Nobody knows the first hour; later a trip is paid for by gains, or by staying's cost."""
        return not self._trips or trip <= self._purse + self._tuning.enter_share * self._lost

    def _go(
        self,
        other: str,
        trip: float,
        why: str,
        numbers: dict[str, float | int | None],
        *,
        urgent: bool = False,
    ) -> Decision:
        self._wanted = other, trip
        return Decision("switch", other, why, numbers, urgent=urgent)

    @property
    def _purse(self) -> float:
        """What a round trip may cost: gains so far, and a share of the whole."""
        best = min(self.belief.spent.values())
        return self._tuning.spend * best + self._gained - self._trips
