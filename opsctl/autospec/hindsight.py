"""The best switch schedule in hindsight, searched for offline. Pure.

Proposals come from dynamic programming over a fluid model: at every stride, for each profile and
size of queue, the cheapest way to get there. They are then run through the exact simulator, which
alone counts; single switches and pairs are left out where that is better still.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from opsctl.autospec.arrivals import Requests
from opsctl.autospec.fluid import Service, drain_seconds, step
from opsctl.autospec.load import LoadSample
from opsctl.autospec.policy import Decision
from opsctl.autospec.simulate import Host, Outcome, controlled, scheduled

Schedule = tuple[tuple[float, str], ...]
_SLOT = 10.0
_STRIDE = 60.0
_FINENESS = 4.0
"""States of the queue told apart for each factor e of its length."""


@dataclass(frozen=True)
class Found:
    """The best schedule that was found, and what it gives."""

    start: str
    schedule: Schedule
    outcome: Outcome


def best(requests: Requests, host: Host, others: Sequence[tuple[str, Outcome]] = ()) -> Found:
    """Search; `others` are outcomes at hand (with their first profile) to be at least as good as.

    Fixed profiles are among what is tried, where they are not at hand. In a closed loop nothing
    is searched for: arrivals of the fluid model do not wait. There it is the best of what was
    played, and inside the engine of the faster profile every second.
    """
    found = [_as_found(start, outcome) for start, outcome in others]
    fixed = {one.start for one in found if not one.schedule and not one.outcome.cancelled}
    found += [_try(requests, host, name, ()) for name in host.pair.names if name not in fixed]
    if host.cost.free:
        fast = max(host.pair.names, key=lambda name: host.pair.speeds[name].tok_s(1, 0.0))
        found.append(_as_found(fast, controlled(requests, host, fast, _Oracle(host))))
    elif not requests.waits:
        plans = [(start, plan) for start, plan in _proposals(requests, host) if plan]
        found += [_try(requests, host, start, plan) for start, plan in plans]
    winner = min(found, key=lambda f: f.outcome.request_seconds)
    return winner if host.cost.free or requests.waits else _pruned(requests, host, winner)


def _try(requests: Requests, host: Host, start: str, plan: Schedule) -> Found:
    return Found(start, plan, scheduled(requests, host, start, plan))


def _as_found(start: str, outcome: Outcome) -> Found:
    return Found(start, tuple((s.asked, s.target) for s in outcome.switches), outcome)


def _pruned(requests: Requests, host: Host, found: Found) -> Found:
    """Leave out neighbouring pairs, the last switch and the first, while that helps."""
    better = True
    while better and found.schedule:
        better = False
        plan = found.schedule
        if len(plan) > 40:
            break
        cuts = [(i, i + 2) for i in range(len(plan) - 1)] + [(len(plan) - 1, len(plan))]
        trials = [_try(requests, host, found.start, plan[:a] + plan[b:]) for a, b in cuts]
        trials.append(_try(requests, host, plan[0][1], plan[1:]))
        top = min(trials, key=lambda f: f.outcome.request_seconds)
        if top.outcome.request_seconds < found.outcome.request_seconds:
            found, better = top, True
    return found


class _Oracle:
    """Knows the true speeds, and takes the faster one every second."""

    name = "oracle"

    def __init__(self, host: Host) -> None:
        self._host = host
        self._sample: LoadSample | None = None

    def see(self, sample: LoadSample, serving: str | None) -> None:
        self._sample = sample

    def decide(self, serving: str, now: float) -> Decision:
        assert self._sample is not None  # noqa: S101 - told before it is asked
        streams = max(self._sample.running or 0, 1)
        context = (self._sample.used_tokens or 0) / streams
        host = self._host
        names = host.pair.names
        speed = {
            name: host.pair.speeds[name].tok_s(streams, context) * true_factor(host, name, now)
            for name in names
        }
        winner = max(names, key=lambda name: (speed[name], name == serving))
        return Decision("stay" if winner == serving else "switch", winner, "")


def true_factor(host: Host, profile: str, now: float) -> float:
    """Return how much faster a profile is, at this time, than its surface says."""
    truth = host.truth
    factor = truth.factors.get(profile, 1.0)
    dropped = profile == host.pair.names[0] and now >= truth.drop_at
    return factor * (truth.drop if dropped else 1.0)


@dataclass(frozen=True)
class _Node:
    """One way to be serving `profile` with `queue` requests at some slot."""

    spent: float
    queue: float
    profile: str
    plan: tuple[object, ...] | None
    """Linked list of (time, profile, rest)."""


def _proposals(requests: Requests, host: Host) -> Iterator[tuple[str, Schedule]]:
    """Yield schedules from each first profile that cost least in the fluid model."""
    for start in host.pair.names:
        yield start, _search(requests, host, start)


def _search(requests: Requests, host: Host, start: str) -> Schedule:
    model = _Fluid(requests, host)
    per = round(_STRIDE / _SLOT)
    table: list[dict[tuple[str, int], _Node]] = [{} for _ in range(model.slots + 1)]
    _keep(table[0], _Node(0.0, 0.0, start, None))
    done: list[_Node] = []
    for slot in range(0, model.slots + 1, per):
        for node in table[slot].values():
            if slot >= model.slots:
                done.append(node)
                continue
            until = min(slot + per, model.slots)
            stay = model.serve(node, slot, until)
            _keep(table[_aligned(until, per, model.slots)], stay)
            moved = model.switch(node, slot, per)
            if moved is not None:
                at, after = moved
                _keep(table[at], after)
        if slot < model.slots:
            table[slot].clear()
    if model.slots % per:
        done += table[model.slots].values()
    final = min(done, key=lambda n: n.spent + model.rest(n))
    return tuple(_unlinked(final.plan))


def _aligned(slot: int, per: int, last: int) -> int:
    return min(math.ceil(slot / per) * per, last)


def _keep(nodes: dict[tuple[str, int], _Node], node: _Node) -> None:
    key = node.profile, round(_FINENESS * math.log1p(node.queue))
    known = nodes.get(key)
    if known is None or node.spent < known.spent:
        nodes[key] = node


def _unlinked(plan: tuple[object, ...] | None) -> list[tuple[float, str]]:
    found: list[tuple[float, str]] = []
    while plan is not None:
        time, profile, plan = plan  # type: ignore[assignment]
        found.append((time, profile))  # type: ignore[arg-type]
    return found[::-1]


class _Fluid:
    """Arrivals by slot, and the profiles as fluid servers."""

    def __init__(self, requests: Requests, host: Host) -> None:
        self.slots = max(math.ceil(requests.hours * 3600 / _SLOT), 1)
        self._host = host
        self._rates = [0.0] * (self.slots + 1)
        for at in requests.at:
            self._rates[min(int(at / _SLOT), self.slots)] += 1 / _SLOT
        self._tokens, self._context = requests.mean_output, requests.mean_context

    def service(self, profile: str, slot: int) -> Service:
        factor = true_factor(self._host, profile, slot * _SLOT)
        return Service(self._host.pair.speeds[profile], factor, self._tokens, self._context)

    def serve(self, node: _Node, slot: int, until: int) -> _Node:
        service = self.service(node.profile, slot)
        queue, spent = node.queue, node.spent
        for index in range(slot, until):
            queue, more = step(service, queue, self._rates[index], _SLOT)
            spent += more
        return _Node(spent, queue, node.profile, node.plan)

    def switch(self, node: _Node, slot: int, per: int) -> tuple[int, _Node] | None:
        """Serve on through the preparation, drain, wait; None when that ends after the case."""
        cost = self._host.cost
        closes = slot + round(cost.prepare / _SLOT)
        if closes >= self.slots:
            return None
        ready = self.serve(node, slot, closes)
        drain = drain_seconds(self.service(node.profile, closes), ready.queue)
        opens = closes + math.ceil((drain + cost.closed) / _SLOT)
        if drain > self._host.drain_limit or opens >= self.slots:
            return None
        held = 0.0
        spent = ready.spent + ready.queue * drain / 2
        for index in range(closes, opens):
            spent += (held + self._rates[index] * _SLOT / 2) * _SLOT
            held += self._rates[index] * _SLOT
        target = self._host.pair.other(node.profile)
        after = _Node(spent, held, target, (slot * _SLOT, target, node.plan))
        at = _aligned(opens, per, self.slots)
        return at, self.serve(after, opens, at)

    def rest(self, node: _Node) -> float:
        """What is still to be paid for the queue at the end."""
        service = self.service(node.profile, self.slots)
        queue, spent, seconds = node.queue, 0.0, 0.0
        while queue > 0.5 and seconds < 86400:
            stride = max(0.2 / service.each(queue), 1.0)
            queue, more = step(service, queue, 0.0, stride)
            spent += more
            seconds += stride
        return spent
