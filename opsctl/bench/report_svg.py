"""Charts as inline SVG: concurrency (log) across, one line a profile. Pure.

Colours are classes of the page's style sheet, so that a chart follows light and dark, and prints.
Lines differ in the shape of their marks too: colour alone tells nothing to some readers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 460, 290
LEFT, RIGHT, TOP, BOTTOM = 54, 14, 14, 42
COLOURS = 6
"""Profiles that have a colour of their own; further ones begin again."""


@dataclass(frozen=True)
class Dot:
    """One measured value, and what it lies between."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Line:
    """The values of one profile."""

    label: str
    colour: int
    dots: tuple[Dot, ...]
    dashed: bool = False


@dataclass(frozen=True)
class Axis:
    """What goes up: name with unit, whether it is logarithmic, and a value to draw a rule at."""

    name: str
    log: bool = False
    rule: float | None = None


def chart(lines: Sequence[Line], axis: Axis) -> str:
    """Return the chart; empty when there is nothing to show."""
    lines = [line for line in lines if line.dots]
    if not lines:
        return ""
    frame = _Frame(lines, axis)
    labels = ", ".join(dict.fromkeys(line.label for line in lines))
    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(axis.name)} over concurrency: {escape(labels)}">',
        *frame.grid(),
        *(part for line in lines for part in frame.line(line)),
        "</svg>",
    ]
    return "\n".join(parts)


class _Frame:
    """Where values lie on the paper."""

    def __init__(self, lines: Sequence[Line], axis: Axis) -> None:
        self._axis = axis
        dots = [dot for line in lines for dot in line.dots]
        self._xs = sorted({dot.x for dot in dots})
        values = [v for d in dots for v in (d.y, d.low, d.high) if v is not None]
        values += [] if axis.rule is None else [axis.rule]
        self._ticks = _log_ticks(values) if axis.log else _ticks(values)
        self._span = (self._ticks[0], self._ticks[-1])

    def grid(self) -> Iterator[str]:
        """Axes, their ticks and names."""
        for value in self._ticks:
            y = self.y(value)
            rule = " rule" if value == self._axis.rule else ""
            yield f'<line class="grid{rule}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
            yield _text("tick", LEFT - 7, y + 4, f"{value:g}", "end")
        bottom, last = HEIGHT - BOTTOM, -math.inf
        for value in self._xs:
            x = self.x(value)
            if x - last < 24:
                continue
            last = x
            yield f'<line class="grid" x1="{x}" x2="{x}" y1="{bottom}" y2="{bottom + 4}"/>'
            yield _text("tick", x, bottom + 17, f"{value:g}")
        yield _text("name", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, "concurrency")

    def line(self, line: Line) -> Iterator[str]:
        """The line, a bar for each interval, and a mark for each value."""
        at = [(self.x(dot.x), self.y(dot.y), dot) for dot in line.dots]
        dash = " dashed" if line.dashed else ""
        yield f'<g class="series s{line.colour % COLOURS}{dash}">'
        yield f'<polyline fill="none" points="{" ".join(f"{x},{y}" for x, y, _ in at)}"/>'
        for x, y, dot in at:
            if dot.low is not None and dot.high is not None:
                ends = f'y1="{self.y(dot.low)}" y2="{self.y(dot.high)}"'
                yield f'<line class="bar" x1="{x}" x2="{x}" {ends}/>'
            told = f"{escape(line.label)}, concurrency {dot.x:g}: {dot.y:.4g}"
            yield mark(line.colour, x, y, told)
        yield "</g>"

    def x(self, value: float) -> float:
        """Across, for a concurrency."""
        low, high = math.log(self._xs[0]), math.log(self._xs[-1])
        share = 0.5 if high == low else (math.log(value) - low) / (high - low)
        return round(LEFT + 10 + share * (WIDTH - LEFT - RIGHT - 20), 1)

    def y(self, value: float) -> float:
        """Down, for a value."""
        low, high = self._span
        if self._axis.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        share = (value - low) / (high - low)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)


def mark(number: int, x: float, y: float, told: str = "") -> str:
    """Return the mark of a profile: circle, square, triangle, diamond, and again."""
    title = f"<title>{told}</title>" if told else ""
    shapes = (
        f'<circle cx="{x}" cy="{y}" r="3.6">{title}</circle>',
        f'<rect x="{x - 3.3:.1f}" y="{y - 3.3:.1f}" width="6.6" height="6.6">{title}</rect>',
        f'<path d="M{x} {y - 4.4:.1f}l4.2 7.4h-8.4z">{title}</path>',
        f'<path d="M{x} {y - 4.8:.1f}l4.8 4.8l-4.8 4.8l-4.8 -4.8z">{title}</path>',
    )
    return shapes[number % len(shapes)]


def _text(kind: str, x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>'


def _ticks(values: Sequence[float]) -> list[float]:
    """Round numbers from 0 (or below) to the largest value, four to eight of them."""
    low, high = min(0.0, *values), max(0.0, *values)
    if low == high:
        high = 1.0
    step: float = 10 ** math.floor(math.log10((high - low) / 4))
    step *= next(factor for factor in (1, 2, 2.5, 5, 10) if (high - low) / (step * factor) <= 6)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def _log_ticks(values: Sequence[float]) -> list[float]:
    """1, 2 and 5 of each power of ten around the values, which are more than 0."""
    low, high = min(values), max(values)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    below = max((x for x in every if x <= low), default=low)
    above = min((x for x in every if x >= high and x > below), default=high * 2)
    return [x for x in every if below <= x <= above]
