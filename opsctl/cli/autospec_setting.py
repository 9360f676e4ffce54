"""What `replay` and `advise` are asked about: load, surfaces, cost, from files and options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from opsctl.autospec import history, journal_load
from opsctl.autospec.arrivals import Requests, synthetic
from opsctl.autospec.cost import Costs, Mechanism, SwitchCost
from opsctl.autospec.guards import GuardRules
from opsctl.autospec.journal_load import is_journal
from opsctl.autospec.pair import Pair
from opsctl.autospec.patterns import ALL
from opsctl.autospec.plan import Marks
from opsctl.autospec.recount import Other
from opsctl.autospec.reference import SOURCE, reference_pair
from opsctl.autospec.replay import MARKS, Setting, lasting, load, mechanism_cost, patterned
from opsctl.autospec.suite import COSTS, Case, truth_of
from opsctl.autospec.surface_sets import Roles
from opsctl.autospec.traces import MOST_DAYS, read
from opsctl.cli.autospec_sources import case_of, cases_of, journal_text, pair_in, text_of
from opsctl.cli.output import message
from opsctl.errors import PreconditionError, UsageError

if TYPE_CHECKING:
    from opsctl.config.schema import Config

SYNTHETIC = 20_000
"""Requests that are made up before they begin again."""


@dataclass(frozen=True)
class Wanted:
    """A command line of `replay` or `advise`."""

    trace: str | None = None
    pattern: str | None = None
    mechanism: str = "restart"
    switch_seconds: float | None = None
    policies: tuple[str, ...] = ()
    surfaces: tuple[str, ...] = ()
    case: str | None = None
    speculative: str | None = None
    baseline: str | None = None
    start: str | None = None
    truth: str = "right"
    seed: int = 0
    hours: float | None = None
    config: str | None = None
    state_dir: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def roles(self) -> Roles:
        """Which profile is which, as far as it was said."""
        return Roles(self.speculative, self.baseline)


@dataclass(frozen=True)
class Found:
    """A pair of surfaces, where it comes from, and what the configuration says beside it."""

    pair: Pair
    label: str
    rules: GuardRules = field(default_factory=lambda: GuardRules(300.0, 6))
    marks: Marks = MARKS
    measured: Mapping[Mechanism, Costs] = field(default_factory=dict)
    """What switches have cost on this host."""

    def cost(self, mechanism: Mechanism, seconds: float | None) -> SwitchCost:
        """Return what a switch costs: as asked for, else as measured, else as assumed.

        Of the two directions the dearer one: the simulator knows one cost. Raises UsageError.
        """
        book = self.measured.get(mechanism, Costs(mechanism)).seen
        seen = [book[name] for name in self.pair.names if name in book and book[name].count]
        if seconds is None and seen and mechanism != "in_engine":
            dearer = max((estimate.cost for estimate in seen), key=lambda cost: cost.closed)
            count = sum(estimate.count for estimate in seen)
            message(f"a switch takes {dearer.closed:.0f} s, learnt from {count} on this host")
            return dearer
        return mechanism_cost(mechanism, COSTS, seconds)


def setting_of(wanted: Wanted, found: Found | None = None) -> Setting:
    """Return what is to be replayed; raises UsageError. What had to be assumed is said."""
    found = found or pair_of(wanted)
    requests = requests_of(wanted, found.pair)
    mechanism = cast(Any, wanted.mechanism)
    if wanted.start is not None and wanted.start not in found.pair.names:
        hint = f"there are {', '.join(found.pair.names)}"
        raise UsageError(f"--start {wanted.start}: no such profile", hint=hint)
    trace = Path(wanted.trace).name if wanted.trace else "synthetic"
    setting = Setting(
        requests=requests,
        pair=found.pair,
        case=Case(trace, wanted.pattern or "as recorded", mechanism, found.label, wanted.truth),
        cost=found.cost(mechanism, wanted.switch_seconds),
        policies=wanted.policies or ("sustained_load", "cost_aware"),
        marks=found.marks,
        rules=found.rules,
        truth=truth_of(wanted.truth, found.pair, requests.span),
        start=wanted.start,
    )
    if len(requests) and not requests.waits and (share := load(setting)) > 1:
        what = f"the load is {share * 100:.0f} % of what the faster profile can serve"
        message(f"note: {what}: latencies only say how long the queue grew; see --pattern")
    return setting


def pair_of(wanted: Wanted) -> Found:
    """Return the pair of the files, else of the configuration, else of the reference host."""
    found, why = _named(wanted) if wanted.surfaces else _configured(wanted)
    if found is not None:
        return found
    message(f"{why}; assumed: {SOURCE}")
    return Found(reference_pair(), "reference host, better draft")


def cases_in(wanted: Wanted) -> tuple[str | None, ...]:
    """Return the cases to go through: of one file with several, all, unless one was named."""
    if len(wanted.surfaces) != 1 or wanted.case is not None:
        return (wanted.case,)
    cases = cases_of(wanted.surfaces[0], wanted.roles)
    return tuple(case.case for case in cases) if len(cases) > 1 else (None,)


def measured_pair(wanted: Wanted) -> Found:
    """Return the pair of the files, else of the configuration; raises PreconditionError."""
    found, why = _named(wanted) if wanted.surfaces else _configured(wanted)
    if found is None:
        hint = "measure with `opsctl bench run` and `opsctl tune`, or name files with --surface"
        raise PreconditionError(why, hint=hint)
    return found


def configuration(wanted: Wanted) -> Config | None:
    """Return the configuration; None when none was named and there is none."""
    from opsctl.cli.loading import load_config, paths
    from opsctl.errors import ConfigError

    if wanted.config is None and "OPSCTL_CONFIG" not in wanted.environment:
        try:
            paths(None)
        except ConfigError:
            return None
    return load_config(wanted.config).config


def _named(wanted: Wanted) -> tuple[Found | None, str]:
    case = case_of(wanted.surfaces, wanted.case, wanted.roles)
    chosen = pair_in(case, wanted.roles, wanted.surfaces[0])
    for note in chosen.notes:
        message(f"note: {note}")
    label = case.case or "+".join(Path(path).stem for path in wanted.surfaces)
    return Found(Pair(chosen.speculative, chosen.baseline), label), ""


def _configured(wanted: Wanted) -> tuple[Found | None, str]:
    """The configuration's measured pair; None, and why, when there is none."""
    from opsctl.autospec import surface_files
    from opsctl.config.state_dir import state_dir
    from opsctl.serve.places import Places
    from opsctl.serve.remembered import read as read_state

    if wanted.case or wanted.speculative or wanted.baseline:
        raise UsageError("--case, --speculative and --baseline choose among --surface FILE")
    config = configuration(wanted)
    if config is None:
        return None, "no --surface and no configuration"
    spec = config.auto_spec
    if not spec.speculative:
        return None, "the configuration names no pair of profiles"
    folder = state_dir(wanted.state_dir, config, wanted.environment)
    surfaces = [surface_files.load(folder, name) for name in (spec.speculative, spec.baseline)]
    if surfaces[0] is None or surfaces[1] is None:
        return None, "the configuration's pair was never measured on this host"
    marks = spec.sustained_load
    remembered = read_state(Places(folder).state)
    found = Found(
        Pair(surfaces[0], surfaces[1]),
        f"{spec.speculative} and {spec.baseline} as measured on this host",
        GuardRules(dwell=spec.dwell, switches_per_hour=spec.switches_per_hour),
        Marks(high=marks.high, high_for=marks.high_for, low=marks.low, low_for=marks.low_for),
        {} if remembered is None else remembered.switch_costs(),
    )
    return found, ""


def requests_of(wanted: Wanted, pair: Pair) -> Requests:
    """Return the load that is replayed; raises UsageError."""
    hours = wanted.hours
    if hours is not None and not 0 < hours <= MOST_DAYS * 24:
        raise UsageError(f"--hours {hours:g}: more than 0, and {MOST_DAYS * 24} at most")
    if wanted.trace is None and wanted.pattern is None:
        raise UsageError("no load is given", hint="--trace FILE, or --pattern NAME, or both")
    if wanted.pattern is not None and wanted.pattern not in ALL:
        hint = f"there are {', '.join(ALL)}"
        raise UsageError(f"--pattern {wanted.pattern}: no such pattern", hint=hint)
    source = synthetic(SYNTHETIC, wanted.seed) if wanted.trace is None else _trace(wanted.trace)
    if wanted.pattern is not None:
        return patterned(ALL[wanted.pattern], source, pair, hours, wanted.seed)
    return source if hours is None else lasting(source, hours)


def journal_of(wanted: Wanted) -> tuple[Iterator[history.Record], str] | None:
    """Return the records of --trace when it is a load journal to be played again, and its name.

    With --pattern it only lends its requests.
    """
    if wanted.trace is None or wanted.pattern is not None:
        return None
    if not is_journal(text_of(wanted.trace)):
        return None
    return history.parse(journal_text(wanted.trace).splitlines()), wanted.trace


def other_policy(wanted: Wanted) -> Other | None:
    """Return the policy that a journal is told to instead of its own; raises UsageError."""
    if not wanted.policies:
        return None
    if len(wanted.policies) > 1:
        raise UsageError("a journal is told to one --policy at a time")
    pair = pair_of(wanted).pair if wanted.surfaces else None
    return Other(wanted.policies[0], MARKS, pair)


def _trace(path: str) -> Requests:
    text = text_of(path)
    if is_journal(text):
        records = history.parse(journal_text(path).splitlines())
        trace = journal_load.requests(records, path)
    else:
        trace = read(text, path)
    for note in trace.notes:
        message(f"note: {note}")
    return trace.requests
