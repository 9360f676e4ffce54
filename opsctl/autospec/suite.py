"""The suite of cases that the policy is judged by. Pure; see docs/auto-spec-results.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from opsctl.autospec.arrivals import Requests
from opsctl.autospec.cost import Costs, Mechanism, SwitchCost
from opsctl.autospec.cost_aware import CostAware
from opsctl.autospec.fluid import Service, switch_price
from opsctl.autospec.guards import GuardRules
from opsctl.autospec.hindsight import Found, best, true_factor
from opsctl.autospec.pair import Pair
from opsctl.autospec.patterns import CLOSED, PATTERNS
from opsctl.autospec.simulate import Host, Outcome, Truth, controlled, scheduled
from opsctl.autospec.surface import Point, Surface
from opsctl.autospec.sustained_load import SustainedLoad

COSTS: Mapping[Mechanism, SwitchCost] = {
    "in_engine": SwitchCost(),
    "gated_restart": SwitchCost(prepare=45.0, closed=60.0),
    "restart": SwitchCost(closed=240.0),
}
TRUTHS = ("right", "wrong", "drop")
ACCEPTED = 2.4
"""Accept length at measurement, where a source gives none."""
WRONG = 0.85
DROP = 0.5


@dataclass(frozen=True)
class Case:
    """One case: which load, on which host, switching how."""

    trace: str
    pattern: str
    mechanism: Mechanism
    surface: str
    truth: str

    @property
    def name(self) -> str:
        """All parts in one word."""
        return "/".join((self.surface, self.trace, self.pattern, self.mechanism, self.truth))


@dataclass(frozen=True)
class Row:
    """What one policy made of the case."""

    policy: str
    outcome: Outcome
    start: str


@dataclass(frozen=True)
class Verdict:
    """A case, played by everybody."""

    case: Case
    requests: Requests
    rows: tuple[Row, ...]
    best_fixed: str
    hindsight: Found
    one_switch: float
    """The price of one switch at the 95th percentile of load, in request-seconds."""

    def row(self, policy: str) -> Outcome:
        """Return the outcome of a policy."""
        return next(row.outcome for row in self.rows if row.policy == policy)

    @property
    def fixed(self) -> float:
        """Request-seconds of the better fixed profile."""
        return self.row(f"always:{self.best_fixed}").request_seconds

    def ratio(self, policy: str = "cost_aware") -> float:
        """R1: request-seconds, one switch's price taken off, by those of the better profile."""
        return (self.row(policy).request_seconds - self.one_switch) / self.fixed

    @property
    def gain(self) -> float:
        """Share of the better fixed profile's request-seconds that hindsight saves."""
        return 1 - self.hindsight.outcome.request_seconds / self.fixed

    def share(self, policy: str = "cost_aware") -> float | None:
        """R2: share of hindsight's gain that was taken; None when there is little (5 %)."""
        if self.gain <= 0.05:
            return None
        return (self.fixed - self.row(policy).request_seconds) / (self.gain * self.fixed)


def truth_of(kind: str, pair: Pair, hours: float) -> Truth:
    """Return the truth of this kind: `right`, `wrong` (drafts 15 % slower) or `drop`."""
    speculative = pair.names[0]
    if kind == "wrong":
        return Truth({speculative: WRONG})
    if kind == "drop":
        return Truth(drop_at=hours * 1800, drop=DROP)
    return Truth()


SUSTAINED = {
    "sustained_load 8/5, 30 s/60 s": {"high": 8, "high_for": 30.0, "low": 5, "low_for": 60.0},
    "sustained_load 12/4, 120 s/600 s": {"high": 12, "high_for": 120.0, "low": 4, "low_for": 600.0},
}


def host_of(pair: Pair, cost: SwitchCost, truth: Truth) -> Host:
    """Return the host of a case, with the guards at their defaults."""
    return Host(pair, cost, truth, GuardRules(dwell=300.0, switches_per_hour=6))


def play(
    case: Case, requests: Requests, pair: Pair, fixed: Mapping[str, Outcome] | None = None
) -> Verdict:
    """Play one case with every policy; `fixed` are outcomes of the fixed profiles, if at hand."""
    cost = COSTS[case.mechanism]
    host = host_of(pair, cost, truth_of(case.truth, pair, requests.span))
    fixed = fixed or {name: scheduled(requests, host, name) for name in pair.names}
    rows = [Row(f"always:{name}", outcome, name) for name, outcome in fixed.items()]
    cheaper = min(rows, key=lambda row: row.outcome.request_seconds).start
    for name, marks in SUSTAINED.items():
        plain = SustainedLoad(*pair.names, **marks)  # type: ignore[arg-type]
        rows.append(Row(name, controlled(requests, host, pair.names[0], plain), pair.names[0]))
    policy = CostAware(pair, Costs(case.mechanism, cost))
    start = policy.start
    rows.append(Row(policy.name, controlled(requests, host, start, policy), start))
    played = [(row.start, row.outcome) for row in rows]
    found = best(requests, host, played)
    return Verdict(case, requests, tuple(rows), cheaper, found, one_switch(requests, host, cheaper))


def one_switch(requests: Requests, host: Host, profile: str) -> float:
    """Return the price of one switch to the better profile, at the 95th percentile of the load.

    In a closed loop: the most clients there are at once with that profile, for as long as nobody
    serves. None comes besides them, so no queue grows; the drain is left out.
    """
    if requests.waits:
        latencies = scheduled(requests, host, profile).latencies if host.cost.closed else ()
        return requests.clients(latencies) * host.cost.closed
    rate = requests.rate_quantile(0.95, 600.0)
    end = requests.hours * 3600

    def service(name: str) -> Service:
        factor = true_factor(host, name, end)
        return Service(host.pair.speeds[name], factor, requests.mean_output, requests.mean_context)

    better = service(profile)
    count = min(better.settled(rate), 250.0)
    return switch_price(service(host.pair.other(profile)), better, host.cost, count, rate)


def surface(
    profile: str,
    rows: Mapping[int, Mapping[int, float | None]],
    *,
    speculative: bool,
) -> Surface:
    """Return a surface from `{context: {concurrency: tok/s}}`."""
    points = tuple(
        Point(
            concurrency=concurrency,
            context=context,
            tok_s=rate,
            accept_length=ACCEPTED if speculative else None,
        )
        for context, rates in rows.items()
        for concurrency, rate in rates.items()
        if rate is not None
    )
    return Surface(
        schema="opsctl/surface/v1",
        profile=profile,
        fingerprint="",
        speculative=speculative,
        points=points,
    )


def all_cases(traces: Iterable[str], pairs: Iterable[str]) -> Iterator[Case]:
    """Yield every case of these traces and pairs; those of one load follow each other."""
    yield from _cases(traces, pairs, PATTERNS)


def closed_cases(pairs: Iterable[str], trace: str = "conversation") -> Iterator[Case]:
    """Yield the cases of clients that wait for their answers; the trace lends its sizes."""
    yield from _cases([trace], pairs, CLOSED)


def _cases(traces: Iterable[str], pairs: Iterable[str], patterns: Iterable[str]) -> Iterator[Case]:
    for name, trace, pattern in product(pairs, traces, patterns):
        for mechanism, truth in product(COSTS, TRUTHS):
            yield Case(trace, pattern, mechanism, name, truth)
