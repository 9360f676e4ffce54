"""What a report shows: curves of every profile, findings, and what does not count. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from opsctl.bench.bootstrap import mean_interval
from opsctl.bench.compare import compare
from opsctl.bench.compare_gather import gather
from opsctl.bench.compare_model import Comparison, Pair, Series, Source
from opsctl.bench.results import Cell, Quantiles
from opsctl.errors import UsageError


@dataclass(frozen=True)
class Spot:
    """One place of one profile, over its repeats; seconds and tok/s, None where unknown."""

    concurrency: int
    repeats: int
    tok_s: float
    low: float | None
    high: float | None
    per_user_tok_s: float
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    accept_length: float | None


@dataclass(frozen=True)
class Curve:
    """One profile over concurrency, at one context."""

    profile: str
    colour: int
    """Number of the profile, the same in every chart."""
    spots: tuple[Spot, ...]


@dataclass(frozen=True)
class Panel:
    """All profiles at one context of one workload."""

    workload: str
    context: int
    curves: tuple[Curve, ...]
    pairs: tuple[Pair, ...]


@dataclass(frozen=True)
class Report:
    """Everything, in the order in which it is shown."""

    panels: tuple[Panel, ...]
    comparison: Comparison
    sources: tuple[Source, ...]

    @property
    def profiles(self) -> tuple[str, ...]:
        """Names in the order of their colours."""
        return tuple(dict.fromkeys(item.name for item in self.comparison.series))


def report(sources: Sequence[Source], baseline: str | None = None) -> Report:
    """Return the report; profiles are compared where there are two. Raises UsageError when the
    baseline cannot be told, or no cell is valid."""
    gathered = gather(sources)
    if not gathered.series:
        raise UsageError("there is no valid cell to report", hint="see `opsctl bench compare`")
    several = len({item.name for item in gathered.series}) > 1
    comparison = (
        compare(sources, baseline)
        if several
        else Comparison((), gathered.series, gathered.left_out, gathered.notes)
    )
    names = list(dict.fromkeys(item.name for item in comparison.series))
    panels = [
        _panel(comparison, workload, context, names)
        for workload in dict.fromkeys(item.workload for item in comparison.series)
        for context in _contexts(comparison.series, workload)
    ]
    return Report(tuple(panels), comparison, tuple(sources))


def document(found: Report) -> dict[str, Any]:
    """Return the report as plain data."""
    return {
        "panels": [
            {
                "workload": panel.workload,
                "context": panel.context,
                "curves": [
                    {"profile": curve.profile, "points": [asdict(x) for x in curve.spots]}
                    for curve in panel.curves
                ],
            }
            for panel in found.panels
        ],
        "findings": [
            {"profile": x.profile.name, "workload": x.workload, "finding": x.finding}
            for x in found.comparison.pairs
        ],
        "left_out": [asdict(item) for item in found.comparison.left_out],
        "notes": list(found.comparison.notes),
    }


def _contexts(series: Iterable[Series], workload: str) -> list[int]:
    return sorted({place[1] for x in series if x.workload == workload for place in x.cells})


def _panel(comparison: Comparison, workload: str, context: int, names: Sequence[str]) -> Panel:
    curves = [
        Curve(item.name, names.index(item.name), spots)
        for item in comparison.series
        if item.workload == workload and (spots := _spots(item.cells, context))
    ]
    pairs = [pair for pair in comparison.pairs if pair.workload == workload]
    return Panel(workload, context, tuple(curves), tuple(pairs))


def _spots(cells: Mapping[tuple[int, int], Sequence[Cell]], context: int) -> tuple[Spot, ...]:
    return tuple(
        _spot(place[0], found) for place, found in sorted(cells.items()) if place[1] == context
    )


def _spot(concurrency: int, cells: Sequence[Cell]) -> Spot:
    middle, low, high = mean_interval([cell.throughput_tok_s for cell in cells])
    return Spot(
        concurrency=concurrency,
        repeats=len(cells),
        tok_s=middle,
        low=low,
        high=high,
        per_user_tok_s=fmean(cell.per_user_tok_s for cell in cells),
        ttft_p50_s=_mean(cells, lambda cell: _quantile(cell.ttft_s, "p50")),
        ttft_p99_s=_mean(cells, lambda cell: _quantile(cell.ttft_s, "p99")),
        tpot_p50_s=_mean(cells, lambda cell: _quantile(cell.tpot_s, "p50")),
        accept_length=_mean(cells, lambda cell: cell.accept_length),
    )


def _quantile(found: Quantiles | None, name: str) -> float | None:
    return None if found is None else float(getattr(found, name))


def _mean(cells: Sequence[Cell], value: Callable[[Cell], float | None]) -> float | None:
    known = [x for cell in cells if (x := value(cell)) is not None]
    return fmean(known) if known else None
