"""From the measurements of one profile to its surface. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from opsctl import __version__
from opsctl.autospec.surface import Point, Provenance, Surface, speed_facts
from opsctl.bench.bootstrap import mean_interval
from opsctl.bench.compare_gather import Gathered
from opsctl.bench.compare_model import Series, Source


def surface(series: Series, gathered: Gathered, sources: Sequence[Source], written: str) -> Surface:
    """Return the surface of a series; `written` is the time, UTC, ISO 8601."""
    used = [source for source in sources if source.name in series.sources]
    return Surface(
        schema="opsctl/surface/v1",
        profile=series.profile.name,
        fingerprint=series.profile.fingerprint,
        speculative=series.profile.speculative,
        versions=series.profile.versions,
        environment=speed_facts(series.environment),
        workload=series.workload,
        points=tuple(_point(series, place) for place in series.cells),
        provenance=Provenance(
            written=written,
            opsctl=__version__,
            results=tuple({"name": x.name, "started": x.result.started} for x in used),
            salted=all(x.result.salted for x in used),
            left_out=sum(
                1
                for item in gathered.left_out
                if item.profile == series.profile.name and item.source in series.sources
            ),
        ),
    )


def _point(series: Series, place: tuple[int, int]) -> Point:
    rates = series.throughputs(place)
    middle, low, high = mean_interval(rates)
    accepted = [c.accept_length for c in series.cells[place] if c.accept_length is not None]
    return Point(
        concurrency=place[0],
        context=place[1],
        tok_s=middle,
        low=low,
        high=high,
        repeats=len(rates),
        accept_length=fmean(accepted) if accepted else None,
    )
