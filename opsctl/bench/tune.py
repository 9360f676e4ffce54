"""From results to what opsctl is set to: surfaces, water marks, SGLang's adaptive file.

Only what can be trusted is used: valid cells of salted natural text, of the profiles as they are
configured now, on this host. Everything else is refused in words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opsctl.autospec.adaptive import Adaptive, adaptive
from opsctl.autospec.surface import Surface, mismatch
from opsctl.bench.compare import compare
from opsctl.bench.compare_gather import Gathered, gather, unchecked
from opsctl.bench.compare_model import Pair, Series, Source
from opsctl.bench.tune_adaptive import why_not
from opsctl.bench.tune_marks import Marks, marks
from opsctl.bench.tune_surfaces import surface
from opsctl.config.schema import Config
from opsctl.engine.capability import drafts
from opsctl.errors import PreconditionError, UsageError
from opsctl.profiles.fingerprint import fingerprint


@dataclass(frozen=True)
class Tuning:
    """What the results say, before anything is written."""

    pair: Pair
    surfaces: Mapping[str, Surface]
    marks: Marks
    adaptive: Adaptive
    notes: tuple[str, ...] = ()

    @property
    def decides(self) -> bool:
        """Whether there is anything to set: marks, or an adaptive file."""
        return self.marks.found or bool(self.adaptive.slots)


@dataclass(frozen=True)
class Wanted:
    """What is asked for besides the results."""

    config: Config
    environment: Mapping[str, Any]
    """Of this host."""
    written: str
    """The time, UTC, ISO 8601."""
    workload: str | None = None
    contexts: tuple[int, ...] | None = None
    """Judge at these only; None is all that were measured."""


def tune(sources: Sequence[Source], wanted: Wanted) -> Tuning:
    """Return what the results say about the configured pair of profiles.

    Raises UsageError when the configuration has no pair, PreconditionError when the results cannot
    be used for it.
    """
    speculative, baseline = wanted.config.auto_spec.speculative, wanted.config.auto_spec.baseline
    if not speculative:
        raise UsageError(
            "the configuration has no pair of profiles to tune",
            hint="set `auto_spec.speculative` and `auto_spec.baseline`",
        )
    _usable(sources)
    chosen = _of_one_workload(sources, wanted.workload)
    gathered = gather(chosen)
    fitting = _fitting(chosen, gathered, wanted)
    for name in (speculative, baseline):
        if name not in fitting.series:
            raise PreconditionError(
                f"profile {name} was not measured as it is now, on this host",
                hint="; ".join(fitting.unfit) or "measure it with `opsctl bench run`",
            )
    pair = _pair(chosen, fitting.series[speculative], fitting.series[baseline])
    return Tuning(
        pair=pair,
        surfaces=fitting.surfaces,
        marks=marks(pair, wanted.contexts),
        adaptive=_adaptive(wanted, fitting.surfaces),
        notes=(*gathered.notes, *fitting.unfit),
    )


def _usable(sources: Sequence[Source]) -> None:
    for source in sources:
        if unchecked(source.result.workload):
            raise PreconditionError(
                f"{source.name}: {source.result.workload!r} is not natural text: how much of a "
                "draft is accepted means nothing on it, and no setting follows from it",
                hint="measure with `opsctl bench run --workload coding`, or prompts of your own",
            )
        if not source.result.salted:
            raise PreconditionError(
                f"{source.name}: prompts were not salted, so the prefix cache may have answered",
                hint="measure without --allow-prefix-cache",
            )


def _of_one_workload(sources: Sequence[Source], wanted: str | None) -> list[Source]:
    names = sorted({source.result.workload for source in sources})
    if wanted is None and len(names) > 1:
        raise UsageError(
            f"the results are of several workloads: {', '.join(names)}",
            hint="say with --workload which one is like your own traffic",
        )
    chosen = [x for x in sources if wanted is None or x.result.workload == wanted]
    if not chosen:
        raise UsageError(f"no result is of workload {wanted!r}: {', '.join(names)}")
    return chosen


@dataclass(frozen=True)
class _Fitting:
    """What was measured of the profiles as they are, here; and why the rest is not used."""

    series: dict[str, Series] = field(default_factory=dict)
    surfaces: dict[str, Surface] = field(default_factory=dict)
    unfit: list[str] = field(default_factory=list)


def _fitting(sources: Sequence[Source], gathered: Gathered, wanted: Wanted) -> _Fitting:
    found = _Fitting()
    for item in gathered.series:
        name = item.profile.name
        measured = surface(item, gathered, sources, wanted.written)
        why = _why_unfit(measured, wanted)
        if not why and name in found.series:
            why = "a second measurement, under other conditions; the first one is used"
        if why:
            found.unfit.append(f"{item.name}: {why}")
            continue
        found.series[name], found.surfaces[name] = item, measured
    return found


def _why_unfit(measured: Surface, wanted: Wanted) -> str | None:
    profile = wanted.config.profiles.get(measured.profile)
    if profile is None:
        return "the configuration has no such profile"
    return mismatch(measured, fingerprint(profile), environment=wanted.environment)


def _pair(sources: Sequence[Source], speculative: Series, baseline: Series) -> Pair:
    comparison = compare(sources, baseline.name)
    return next(
        pair
        for pair in comparison.pairs
        if pair.profile.name == speculative.name and pair.baseline.name == baseline.name
    )


def _adaptive(wanted: Wanted, surfaces: Mapping[str, Surface]) -> Adaptive:
    speculative, baseline = wanted.config.auto_spec.speculative, wanted.config.auto_spec.baseline
    excluded = why_not(wanted.config, surfaces[speculative].versions.get("sglang"))
    if excluded:
        return Adaptive((), excluded)
    return adaptive(surfaces[baseline], drafts(wanted.config, surfaces), wanted.contexts)
