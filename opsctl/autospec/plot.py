"""A replay as one SVG that needs nothing else: load, held requests, who served, decisions. Pure.

It follows light and dark. Profiles differ in their place in the key and in the pattern of their
bands too: colour alone tells nothing to some readers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from opsctl.autospec.replay import Replay, Track
from opsctl.autospec.simulate import Outcome, serving_spans

WIDTH, LEFT, RIGHT, TOP = 900, 200, 16, 64
PANEL, GAP, STRIPE = 120, 34, 18
BINS = 367
"""Columns of a panel, two pixels each."""
MOST_MARKS = 400
"""Switches or wishes that are drawn one by one; more of them would hide the bands."""
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #63676b; }
.title, .label { fill: #1d1f21; } .title { font-size: 15px; font-weight: 600; }
.paper { fill: #fff; } .grid { stroke: #dcdcd8; } .rate { fill: #a9adb1; }
.queue, .wish, .switch { stroke: #1d1f21; fill: none; } .queue { stroke-width: 1.4; }
.s0 { fill: #c2500a; } .s1 { fill: #0b62a8; } .held, .closed { fill: #a3261b; }
@media (prefers-color-scheme: dark) {
 text { fill: #a3a6aa; } .title, .label { fill: #e9e9e6; }
 .paper { fill: #17181a; } .grid { stroke: #3a3d41; } .rate { fill: #63676b; }
 .queue, .wish, .switch { stroke: #e9e9e6; }
 .s0 { fill: #f2a05e; } .s1 { fill: #6db3f2; } .held, .closed { fill: #f08a7d; }
}
""".strip()


def plot(played: Replay) -> str:
    """Return the SVG of a replay: its load, and a stripe for each policy that decides."""
    paper = _Paper(played)
    parts = [*paper.head(), *paper.hours(), *paper.rates()]
    parts += [part for name in played.tracks for part in paper.queue(name)]
    parts += paper.stripes()
    style = f"<style>{STYLE}</style>"
    size = f'width="{WIDTH}" height="{paper.height}" viewBox="0 0 {WIDTH} {paper.height}"'
    about = escape(played.setting.case.name)
    frame = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{about}">'
    back = f'<rect class="paper" width="{WIDTH}" height="{paper.height}"/>'
    return "\n".join([frame, style, back, *parts, "</svg>"]) + "\n"


@dataclass(frozen=True)
class _Scale:
    """Where values lie on a panel whose lower edge is at `base`."""

    base: float
    top: float

    def y(self, value: float) -> float:
        return round(self.base - PANEL * value / self.top, 1)


class _Paper:
    """Where everything lies."""

    def __init__(self, played: Replay) -> None:
        self._played = played
        self._names = played.setting.pair.names
        self._end = played.setting.requests.hours * 3600
        self._bottom = TOP
        stripes = len(played.tracks) + 1
        panels = (1 + len(played.tracks)) * (PANEL + GAP)
        self.height = round(TOP + panels + stripes * (STRIPE + 8) + 40)

    def _x(self, seconds: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * min(seconds / self._end, 1.0), 1)

    def _column(self, seconds: float) -> int:
        return min(int(BINS * seconds / self._end), BINS - 1)

    def head(self) -> Iterator[str]:
        """What this is, and the key."""
        case, setting = self._played.setting.case, self._played.setting
        load = f"{case.trace}, {case.pattern}: {len(setting.requests)} requests"
        closed = setting.cost.closed
        cost = f", nobody serves for {closed:g} s a switch" if closed else ""
        yield _text("title", 12, 22, f"{load}; {case.mechanism}{cost}", "start")
        x = 12.0
        for kind, words in (
            ("s0", f"{self._names[0]} serves"),
            ("s1", f"{self._names[1]} serves"),
            ("closed", "nobody serves; requests are held"),
        ):
            yield f'<rect class="{kind}" x="{x:g}" y="36" width="12" height="12"/>'
            yield _text("label", x + 18, 46, words, "start")
            x += 40 + 6.6 * len(words)
        yield f'<path class="switch" d="M{x:g} 36v12"/>' + _text(
            "label", x + 8, 46, "a switch", "start"
        )
        yield f'<circle class="wish" cx="{x + 84:g}" cy="42" r="3"/>' + _text(
            "label", x + 94, 46, "wanted, but forbidden by a guard", "start"
        )

    def rates(self) -> Iterator[str]:
        """Arrivals a second."""
        counts = [0] * BINS
        for at in self._played.setting.requests.at:
            counts[self._column(at)] += 1
        values = [count / (self._end / BINS) for count in counts]
        scale = self._panel(max(values))
        yield from self._frame(scale, "arrivals", "requests a second")
        yield f'<path class="rate" d="{self._area(values, scale)}"/>'

    def queue(self, name: str) -> Iterator[str]:
        """Requests in flight and held, the most in each column."""
        track = self._played.tracks[name]
        held = self._most(track, track.held)
        together = [a + b for a, b in zip(track.in_flight, track.held, strict=True)]
        everything = self._most(track, together)
        scale = self._panel(max(everything))
        switches = len(self._played.verdict.row(name).switches)
        times = "1 switch" if switches == 1 else f"{switches} switches"
        yield from self._frame(scale, name, f"requests there; {times}")
        yield f'<path class="held" d="{self._area(held, scale)}"/>'
        points = " ".join(f"{x},{scale.y(v)}" for x, v in self._columns(everything))
        yield f'<polyline class="queue" points="{points}"/>'

    def stripes(self) -> Iterator[str]:
        """Who served when, with every policy and with the best schedule in hindsight."""
        verdict = self._played.verdict
        for name, track in self._played.tracks.items():
            row = next(row for row in verdict.rows if row.policy == name)
            yield from self._stripe(name, row.outcome, row.start)
            yield from self._wishes(track, row.outcome)
        found = verdict.hindsight
        name = f"best in hindsight: {len(found.outcome.switches)}"
        yield from self._stripe(name, found.outcome, found.start)

    def hours(self) -> Iterator[str]:
        """The axis of time."""
        hours = self._end / 3600
        step = next(
            s for s in (1 / 60, 0.1, 0.25, 0.5, 1, 2, 4, 12, 24, 96, math.inf) if hours / s <= 13
        )
        y = self.height - 26
        for number in range(int(hours / step + 1e-9) + 1):
            x = self._x(number * step * 3600)
            yield f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP}" y2="{y}"/>'
            yield _text("tick", x, y + 15, f"{number * step:.3g} h")

    def _panel(self, most: float) -> _Scale:
        self._bottom += PANEL
        scale = _Scale(self._bottom, _rounded_up(most))
        self._bottom += GAP
        return scale

    def _frame(self, scale: _Scale, name: str, unit: str) -> Iterator[str]:
        yield _text("label", 12, scale.base - PANEL + 12, name, "start")
        yield _text("unit", 12, scale.base - PANEL + 28, unit, "start")
        for value in (0.0, scale.top / 2, scale.top):
            y = scale.y(value)
            yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
            yield _text("tick", LEFT - 6, y + 4, f"{value:g}", "end")

    def _most(self, track: Track, values: Sequence[int]) -> list[float]:
        found = [0.0] * BINS
        for time, value in zip(track.times, values, strict=True):
            column = self._column(time)
            found[column] = max(found[column], value)
        return found

    def _columns(self, values: Sequence[float]) -> list[tuple[float, float]]:
        return [(self._x((n + 0.5) * self._end / BINS), value) for n, value in enumerate(values)]

    def _area(self, values: Sequence[float], scale: _Scale) -> str:
        points = "L".join(f"{x} {scale.y(value)}" for x, value in self._columns(values))
        last = self._x((BINS - 0.5) * self._end / BINS)
        return f"M{self._x(0.5 * self._end / BINS)} {scale.base}L{points}L{last} {scale.base}Z"

    def _stripe(self, name: str, outcome: Outcome, start: str) -> Iterator[str]:
        y = self._bottom
        self._bottom += STRIPE + 8
        yield _text("label", 12, y + STRIPE - 5, name, "start")
        for begin, end, profile in serving_spans(outcome, start, self._end):
            left, right = self._x(begin), self._x(min(end, self._end))
            if right <= left:
                continue
            kind = "closed" if profile is None else f"s{self._names.index(profile)}"
            inset = 5 if profile == self._names[1] else 0  # thinner: told apart without colour
            told = f"<title>{escape(profile or 'nobody')} from {begin:.0f} s to {end:.0f} s</title>"
            box = f'y="{y + inset}" width="{right - left:.1f}" height="{STRIPE - 2 * inset}"'
            yield f'<rect class="{kind}" x="{left}" {box}>{told}</rect>'
        for switch in outcome.switches if len(outcome.switches) <= MOST_MARKS else ():
            x = self._x(switch.asked)
            yield f'<path class="switch" d="M{x} {y - 3}v{STRIPE + 6}"/>'

    def _wishes(self, track: Track, outcome: Outcome) -> Iterator[str]:
        """Decisions that led to no switch at once."""
        asked = {switch.asked for switch in outcome.switches}
        y = self._bottom - 8 - STRIPE / 2
        wishes = [taken for taken in track.decisions if taken.time not in asked]
        for taken in wishes if len(wishes) <= MOST_MARKS else ():
            told = f"<title>{escape(taken.decision.reason)}</title>"
            yield f'<circle class="wish" cx="{self._x(taken.time)}" cy="{y}" r="3">{told}</circle>'


def _text(kind: str, x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


def _rounded_up(value: float) -> float:
    """Return 1, 2, 4, 5 or 10 times a power of ten, not below `value`."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 4, 5, 10) if factor * power >= value * 0.999)
