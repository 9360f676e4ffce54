"""What each policy would have made of a load: the rows of `opsctl autospec replay`. Pure.

Every row is simulated with the same requests on the same host. The better fixed profile and the
best schedule in hindsight are what a policy is measured by (docs/design/auto-spec.md).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from opsctl.autospec.arrivals import Requests
from opsctl.autospec.cost import Costs, Mechanism, SwitchCost
from opsctl.autospec.cost_aware import CostAware
from opsctl.autospec.guards import GuardRules
from opsctl.autospec.hindsight import best
from opsctl.autospec.history import finite
from opsctl.autospec.load import LoadSample
from opsctl.autospec.pair import Pair
from opsctl.autospec.patterns import Shape
from opsctl.autospec.plan import Marks
from opsctl.autospec.policy import Decision, Policy
from opsctl.autospec.simulate import Host, Outcome, Truth, controlled, scheduled
from opsctl.autospec.suite import Case, Row, Verdict, one_switch
from opsctl.autospec.sustained_load import SustainedLoad
from opsctl.errors import UsageError

SCHEMA = "opsctl/replay/v1"
POLICIES = "cost_aware, sustained_load, sustained_load:HIGH/LOW[:HIGH_FOR/LOW_FOR], always:PROFILE"
R1, R2 = 1.05, 0.5
MARKS = Marks(high=8, high_for=30, low=3, low_for=60)
"""The configuration's defaults."""
DAY = 86_400.0
MOST_REQUESTS = 3_000_000
"""Of one case: a minute or two for each row, and some hundred MiB."""
MOST_DECISIONS = 500
"""Decisions that a document holds; inside an engine there may be thousands a day."""


@dataclass(frozen=True)
class Setting:
    """What is replayed: requests, profiles, what a switch costs, and who decides."""

    requests: Requests
    pair: Pair
    case: Case
    cost: SwitchCost
    policies: tuple[str, ...] = ("sustained_load", "cost_aware")
    marks: Marks = MARKS
    rules: GuardRules = field(default_factory=lambda: GuardRules(300.0, 6))
    truth: Truth = field(default_factory=Truth)
    start: str | None = None
    """Profile that policies start from; None: each from its own, the marks from the first one."""

    @property
    def host(self) -> Host:
        """The host that is simulated."""
        return Host(self.pair, self.cost, self.truth, self.rules)


@dataclass(frozen=True)
class Taken:
    """A decision that led somewhere: at `time` (seconds) another profile was wanted."""

    time: float
    decision: Decision


@dataclass
class Track:
    """What a policy was told, second by second, and what it wanted."""

    times: list[float] = field(default_factory=list)
    in_flight: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    decisions: list[Taken] = field(default_factory=list)
    _wanted: str = ""

    def watch(self, sample: LoadSample, serving: str | None, decision: Decision | None) -> None:
        """Take in one second of a simulation."""
        self.times.append(sample.time)
        self.in_flight.append(sample.in_flight)
        self.held.append(sample.held)
        if decision is None:
            return
        if decision.action == "switch" and decision.profile != self._wanted:
            self.decisions.append(Taken(sample.time, decision))
        self._wanted = decision.profile if decision.action == "switch" else ""


@dataclass(frozen=True)
class Replay:
    """All rows, what they are measured by, and the tracks of those that decide by load."""

    setting: Setting
    verdict: Verdict
    tracks: Mapping[str, Track]

    @property
    def judged(self) -> str | None:
        """The policy that R1 and R2 are told of: the cost-aware one, else the first."""
        return "cost_aware" if "cost_aware" in self.tracks else next(iter(self.tracks), None)


@dataclass(frozen=True)
class _Player:
    name: str
    start: str
    policy: Policy | None


def replay(setting: Setting) -> Replay:
    """Play every policy, and search the best schedule; raises UsageError on what is asked for."""
    if not len(setting.requests):
        raise UsageError("no request arrives in this case", hint="give more --hours")
    players = [_Player(f"always:{name}", name, None) for name in setting.pair.names]
    players += [_player(setting, text) for text in setting.policies]
    rows: list[Row] = []
    tracks: dict[str, Track] = {}
    for player in {player.name: player for player in players}.values():
        outcome = _played(setting, player, tracks)
        rows.append(Row(player.name, outcome, player.start))
    fixed = [row for row in rows if row.policy.startswith("always:")]
    cheaper = min(fixed, key=lambda row: row.outcome.request_seconds).start
    found = best(setting.requests, setting.host, [(row.start, row.outcome) for row in rows])
    price = one_switch(setting.requests, setting.host, cheaper)
    verdict = Verdict(setting.case, setting.requests, tuple(rows), cheaper, found, price)
    return Replay(setting, verdict, tracks)


def _played(setting: Setting, player: _Player, tracks: dict[str, Track]) -> Outcome:
    if player.policy is None:
        return scheduled(setting.requests, setting.host, player.start)
    track = tracks[player.name] = Track()
    return controlled(setting.requests, setting.host, player.start, player.policy, track.watch)


_SUSTAINED = re.compile(
    r"sustained_load:(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)(?::(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?))?"
)


def _player(setting: Setting, text: str) -> _Player:
    names = setting.pair.names
    profile = text.removeprefix("always:")
    if profile in names and (text != profile or text not in ("cost_aware", "sustained_load")):
        return _Player(f"always:{profile}", profile, None)
    if text == "cost_aware":
        policy = CostAware(setting.pair, Costs(setting.case.mechanism, setting.cost))
        return _Player(text, setting.start or policy.start, policy)
    marks = setting.marks
    if found := _SUSTAINED.fullmatch(text):
        high, low, high_for, low_for = (None if x is None else float(x) for x in found.groups())
        marks = Marks(
            high=high or 0.0,
            low=low or 0.0,
            high_for=marks.high_for if high_for is None else high_for,
            low_for=marks.low_for if low_for is None else low_for,
        )
    elif text != "sustained_load":
        raise UsageError(
            f"--policy {text}: no such policy", hint=f"{POLICIES}; profiles: {', '.join(names)}"
        )
    if marks.low >= marks.high:
        raise UsageError(f"--policy {text}: LOW must be below HIGH")
    return _Player(text, setting.start or names[0], SustainedLoad(*names, **marks.model_dump()))


def document(played: Replay) -> dict[str, Any]:
    """Return everything as JSON can hold it, `schema` left out."""
    verdict, setting = played.verdict, played.setting
    count = len(setting.requests)
    hindsight = verdict.hindsight
    judged = played.judged
    return {
        "case": _case(setting),
        "rows": [_row(verdict, row) for row in verdict.rows],
        "best_fixed": verdict.best_fixed,
        "hindsight": {
            "mean_latency_s": hindsight.outcome.mean,
            "p99_latency_s": hindsight.outcome.quantile(0.99),
            "switches": len(hindsight.outcome.switches),
            "request_seconds": hindsight.outcome.request_seconds,
            "start": hindsight.start,
        },
        "one_switch_mean_latency_s": verdict.one_switch / count,
        "judged": judged,
        "r1": None if judged is None else _r1(verdict, judged),
        "r2": None if judged is None else _r2(verdict, judged),
        "decisions": [] if judged is None else _decisions(verdict, judged, played.tracks[judged]),
        "decisions_in_all": 0 if judged is None else len(played.tracks[judged].decisions),
    }


def _case(setting: Setting) -> dict[str, Any]:
    case, requests = setting.case, setting.requests
    return {
        "name": case.name,
        "trace": case.trace,
        "pattern": case.pattern,
        "mechanism": case.mechanism,
        "prepare_s": setting.cost.prepare,
        "closed_s": setting.cost.closed,
        "surface": case.surface,
        "speculative": setting.pair.names[0],
        "baseline": setting.pair.names[1],
        "truth": case.truth,
        "hours": requests.span,
        "clients_wait": requests.waits,
        "requests": len(requests),
        "mean_context": requests.mean_context,
        "mean_output": requests.mean_output,
        "load": load(setting),
    }


def load(setting: Setting) -> float:
    """Return the mean load, as a share of what the faster profile can serve.

    Where clients wait, about: as if the work took the hours that it is made for.
    """
    requests = setting.requests
    most = max(s.capacity(requests.mean_context) for s in setting.pair.speeds.values())
    return sum(requests.output) / (requests.span * 3600) / most


def _row(verdict: Verdict, row: Row) -> dict[str, Any]:
    fixed = row.policy.startswith("always:")
    return {
        "policy": row.policy,
        "mean_latency_s": row.outcome.mean,
        "p99_latency_s": row.outcome.quantile(0.99),
        "switches": len(row.outcome.switches),
        "cancelled": row.outcome.cancelled,
        "request_seconds": row.outcome.request_seconds,
        "start": row.start,
        "r1_ratio": None if fixed else verdict.ratio(row.policy),
        "r2_share": None if fixed else verdict.share(row.policy),
    }


def _r1(verdict: Verdict, policy: str) -> dict[str, Any]:
    """`ratio` leaves one switch's price out, so it may be below 0; `of_best_fixed` does not."""
    ratio = verdict.ratio(policy)
    whole = verdict.row(policy).request_seconds / verdict.fixed
    return {"held": ratio <= R1, "ratio": ratio, "limit": R1, "of_best_fixed": whole}


def _r2(verdict: Verdict, policy: str) -> dict[str, Any]:
    """`held` is null where hindsight gains too little (5 %) to ask for a share of it."""
    share = verdict.share(policy)
    held = None if share is None else share >= R2
    return {"held": held, "share": share, "hindsight_gain": verdict.gain, "limit": R2}


def _decisions(verdict: Verdict, policy: str, track: Track) -> list[dict[str, Any]]:
    """What it wanted, and when that began; `switched_s` is null where the guards forbade it."""
    switches = verdict.row(policy).switches
    ends = [taken.time for taken in track.decisions[1:]] + [math.inf]
    return [
        {
            "at_s": taken.time,
            "switched_s": next((s.asked for s in switches if taken.time <= s.asked < end), None),
            "profile": taken.decision.profile,
            "reason": taken.decision.reason,
            "numbers": dict(finite(taken.decision).numbers),
        }
        for taken, end in list(zip(track.decisions, ends, strict=False))[:MOST_DECISIONS]
    ]


def lasting(requests: Requests, hours: float) -> Requests:
    """Return so many hours of the requests: cut, or from their begin again at their end."""
    seconds, period = hours * 3600, requests.hours * 3600
    picked: list[tuple[float, int]] = []
    round_ = 0
    while round_ * period < seconds:
        begin = round_ * period
        picked += [(begin + at, n) for n, at in enumerate(requests.at) if begin + at < seconds]
        round_ += 1
    return replace(
        requests,
        at=tuple(at for at, _ in picked),
        prompt=tuple(requests.prompt[n] for _, n in picked),
        output=tuple(requests.output[n] for _, n in picked),
        hours=hours,
    )


def patterned(
    pattern: Shape, source: Requests, pair: Pair, hours: float | None, seed: int
) -> Requests:
    """Return the source's requests in a pattern; raises UsageError when they would be too many.

    Rates follow from what the host can serve, so answers of a few tokens make a great many.
    """
    lasts = hours if hours is not None else pattern.hours
    count = pattern.count(source, pair, lasts)
    if count > MOST_REQUESTS:
        what = f"{pattern.name} over {lasts:g} h gives {count / 1e6:.1f} million requests"
        raise UsageError(what, hint=f"{MOST_REQUESTS // 10**6} million at most: fewer --hours")
    return pattern.requests(source, pair, hours=hours, seed=seed)


def mechanism_cost(
    mechanism: Mechanism, assumed: Mapping[Mechanism, SwitchCost], seconds: float | None
) -> SwitchCost:
    """Return what a switch costs; `seconds`: how long nobody serves, in place of the assumption.

    Raises UsageError where that makes no sense.
    """
    cost = assumed[mechanism]
    if seconds is None:
        return cost
    if not 0 <= seconds <= DAY:
        raise UsageError(f"--switch-seconds {seconds:g}: 0 or more, and {DAY:g} at most")
    if mechanism == "in_engine" and seconds > 0:
        raise UsageError(
            "--switch-seconds: inside the engine nobody waits", hint="--mechanism restart"
        )
    return SwitchCost(cost.prepare, seconds)
