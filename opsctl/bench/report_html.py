"""The report as one HTML page that needs nothing else: no network, no script, no font."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jinja2
from markupsafe import Markup

from opsctl import __version__
from opsctl.bench.report import Curve, Panel, Report, Spot
from opsctl.bench.report_svg import COLOURS, Axis, Dot, Line, chart, mark
from opsctl.system.resources import tree

TEMPLATE = "report.html.j2"


@dataclass(frozen=True)
class _Chart:
    title: str
    svg: Markup
    note: str = ""


def page(found: Report) -> str:
    """Return the page."""
    source = tree("templates").joinpath(TEMPLATE).read_text("utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(source).render(
        report=found,
        comparison=found.comparison,
        version=__version__,
        panels=[(panel, _charts(panel)) for panel in found.panels],
        legend=[
            (name, number % COLOURS, Markup(mark(number, 7, 7)))  # noqa: S704  # numbers only
            for number, name in enumerate(found.profiles)
        ],
        facts=list(_facts(found)),
    )


def _charts(panel: Panel) -> list[_Chart]:
    made = [
        ("Throughput, all streams", "tok/s", _lines(panel, lambda x: x.tok_s, bounds=True), ""),
        ("Speed of one stream", "tok/s", _lines(panel, lambda x: x.per_user_tok_s), ""),
        ("Gain over the baseline", "%", _gains(panel), "bars: 95 %"),
        ("Accept length", "tokens a step", _lines(panel, lambda x: x.accept_length), ""),
        (
            "Time to first token",
            "s",
            [
                *_lines(panel, lambda x: x.ttft_p50_s),
                *_lines(panel, lambda x: x.ttft_p99_s, dashed=True),
            ],
            "p50; dashed p99",
        ),
        ("Time per output token", "ms", _lines(panel, _tpot_ms), "p50"),
    ]
    return [
        _Chart(title, Markup(svg), ", ".join(filter(None, (unit, note))))  # noqa: S704  # escaped there
        for title, unit, lines, note in made
        if (svg := chart(lines, _axis(title, unit)))
    ]


def _axis(title: str, unit: str) -> Axis:
    return Axis(
        f"{title} ({unit})", log=title == "Time to first token", rule=0.0 if unit == "%" else None
    )


def _tpot_ms(spot: Spot) -> float | None:
    return None if spot.tpot_p50_s is None else spot.tpot_p50_s * 1000


def _lines(
    panel: Panel,
    value: Callable[[Spot], float | None],
    *,
    bounds: bool = False,
    dashed: bool = False,
) -> list[Line]:
    return [
        Line(curve.profile, curve.colour, tuple(_dots(curve, value, bounds)), dashed)
        for curve in panel.curves
    ]


def _dots(curve: Curve, value: Callable[[Spot], float | None], bounds: bool) -> Iterator[Dot]:
    for spot in curve.spots:
        y = value(spot)
        if y is not None and y > 0:
            low, high = (spot.low, spot.high) if bounds else (None, None)
            yield Dot(spot.concurrency, y, low, high)


def _gains(panel: Panel) -> list[Line]:
    colours = {curve.profile: curve.colour for curve in panel.curves}
    return [
        Line(
            pair.profile.name,
            colours[pair.profile.name],
            tuple(
                Dot(cell.concurrency, (cell.ratio - 1) * 100, _gain(cell.low), _gain(cell.high))
                for cell in pair.cells
                if cell.context == panel.context
            ),
        )
        for pair in panel.pairs
        if pair.profile.name in colours
    ]


def _gain(ratio: float | None) -> float | None:
    return None if ratio is None else (ratio - 1) * 100


def _facts(found: Report) -> Iterator[tuple[str, str]]:
    """What the numbers are good for: host, software, results."""
    for source in found.sources:
        result = source.result
        salted = "salted prompts" if result.salted else "prompts not salted"
        told = f"{result.started or 'time unknown'}, workload {result.workload}, {salted}"
        yield f"Result {source.name}", told
        for key, value in result.environment.items():
            yield f"{source.name}: {key}", _shown(value)
    for series in found.comparison.series:
        versions = ", ".join(f"{k} {v}" for k, v in series.profile.versions.items() if v)
        told = ", ".join(filter(None, (series.profile.fingerprint, versions)))
        yield f"Profile {series.name} ({series.workload})", told or "unknown"


def _shown(value: object) -> str:
    """A value as text; names in a list are counted: eight GPUs are not named eight times."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(f"{n} x {name}" if n > 1 else name for name, n in Counter(value).items())
    return value if isinstance(value, str) else json.dumps(value, default=str)
