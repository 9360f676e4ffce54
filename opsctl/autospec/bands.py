"""Where one of two surfaces is the faster one: a verdict for each context. Pure.

The vocabulary is that of `opsctl bench compare`, which judges the repeats themselves. A surface
keeps only an interval for each point: one profile is faster for certain where the intervals do not
overlap, which is stricter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from opsctl.autospec.surface import Surface

Verdict = Literal["better", "worse", "no significant difference", "unknown"]
Kind = Literal[
    "always", "never", "at", "from", "mixed", "undecided", "no significant difference", "unknown"
]


@dataclass(frozen=True)
class Cell:
    """Both profiles at one place; `ratio` is speculative over baseline, `low` and `high` bound it.

    The verdict is on the speculative profile.
    """

    concurrency: int
    context: int
    speculative: float
    baseline: float
    low: float | None
    high: float | None

    @property
    def ratio(self) -> float:
        """Speculative tok/s divided by those of the baseline."""
        return self.speculative / self.baseline

    @property
    def verdict(self) -> Verdict:
        """What is certain about the speculative profile here."""
        if self.low is None or self.high is None:
            return "unknown"
        if self.low > 1:
            return "better"
        return "worse" if self.high < 1 else "no significant difference"


@dataclass(frozen=True)
class Band:
    """One context: what is certain, and what the means alone say.

    `concurrency` is where the sides change, `low` and `high` bound it; None: not within what was
    measured.
    """

    context: int
    kind: Kind
    means: Kind
    concurrency: float | None
    low: float | None
    high: float | None
    cells: tuple[Cell, ...]

    @property
    def words(self) -> str:
        """The verdict as a phrase."""
        if self.kind != "unknown":
            return _words(self.kind, self)
        if not self.cells:
            return "unknown: no place was measured of both"
        return f"unknown, as there are no intervals; the means say {_words(self.means, self)}"


def bands(speculative: Surface, baseline: Surface) -> tuple[Band, ...]:
    """Judge each context that was measured of both, by rising context; empty when none was."""
    contexts = sorted(set(speculative.contexts) & set(baseline.contexts))
    return tuple(
        _band(context, tuple(_cells(speculative, baseline, context))) for context in contexts
    )


def percent(ratio: float) -> str:
    """Write a ratio as a gain: `+3.8 %`."""
    return f"{(ratio - 1) * 100:+.1f} %"


_SHAPES: tuple[tuple[str, Kind], ...] = (
    ("", "unknown"),
    ("n+", "no significant difference"),
    ("W+", "never"),
    ("B+", "always"),
    ("[nW]+", "undecided"),
    ("B[Bn]*[Wn]*", "at"),
    ("[Wn]*[Bn]*B", "from"),
    (".*", "mixed"),
)
"""Verdicts by rising concurrency, and what they amount to: Better, Worse, no difference."""


def _cells(speculative: Surface, baseline: Surface, context: int) -> Iterator[Cell]:
    """Each concurrency that was measured of one and lies within what was measured of the other."""
    both = (speculative, baseline)
    for concurrency in sorted(
        {p.concurrency for s in both for p in s.points if p.context == context}
    ):
        if not all(surface.covers(concurrency, context) for surface in both):
            continue
        ours = speculative.bounds(concurrency, context)
        theirs = baseline.bounds(concurrency, context)
        yield Cell(
            concurrency,
            context,
            speculative.tok_s(concurrency, context),
            baseline.tok_s(concurrency, context),
            ours[0] / theirs[1] if ours and theirs else None,
            ours[1] / theirs[0] if ours and theirs else None,
        )


def _band(context: int, cells: tuple[Cell, ...]) -> Band:
    known = [cell for cell in cells if cell.verdict != "unknown"]
    kind = _kind("".join(_letter(cell.verdict) for cell in known))
    means = _kind("".join("B" if cell.ratio > 1 else "W" for cell in cells))
    crosses = kind if kind != "unknown" else means
    if crosses not in ("at", "from"):
        return Band(context, kind, means, None, None, None, cells)
    sign = 1.0 if crosses == "at" else -1.0
    bounds = sorted(
        _crossing(known, [sign * math.log(value) for value in values])
        for values in ([cell.low or 1 for cell in known], [cell.high or 1 for cell in known])
        if known
    )
    low, high = bounds or (math.inf, math.inf)
    middle = _crossing(cells, [sign * math.log(cell.ratio) for cell in cells])
    return Band(context, kind, means, _finite(middle), _finite(low), _finite(high), cells)


def _letter(verdict: Verdict) -> str:
    return verdict[0].upper() if verdict in ("better", "worse") else "n"


def _kind(letters: str) -> Kind:
    return next(kind for shape, kind in _SHAPES if re.fullmatch(shape, letters))


def _crossing(cells: Sequence[Cell], logs: Sequence[float]) -> float:
    """Return where `logs` first falls to 0; minus infinity below the first cell, else infinity."""
    if logs[0] <= 0:
        return -math.inf
    for left, (above, below) in enumerate(pairwise(logs)):
        if below <= 0:
            start = math.log(cells[left].concurrency)
            end = math.log(cells[left + 1].concurrency)
            return math.exp(start + (end - start) * above / (above - below))
    return math.inf


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _words(kind: Kind, band: Band) -> str:
    best = max(band.cells, key=lambda cell: cell.ratio)
    worst = min(band.cells, key=lambda cell: cell.ratio)
    span = f"concurrency {band.cells[0].concurrency} to {band.cells[-1].concurrency}"
    words = {
        "never": f"never: at best {percent(best.ratio)}, at concurrency {best.concurrency}",
        "always": f"always: {percent(worst.ratio)} to {percent(best.ratio)} at {span}",
        "at": f"up to concurrency {_where(band)}",
        "from": f"from concurrency {_where(band)} up",
        "mixed": f"in turns: {percent(worst.ratio)} to {percent(best.ratio)} at {span}",
        "undecided": f"not seen to be faster: at best {percent(best.ratio)}, not for certain",
        "no significant difference": f"no significant difference at {span}",
    }
    return words[kind]


def _where(band: Band) -> str:
    if band.concurrency is None:
        return f"{band.cells[0].concurrency} at least"
    if band.kind == "unknown":
        return f"{band.concurrency:.3g}"
    low = "less than measured" if band.low is None else f"{band.low:.3g}"
    high = "more than measured" if band.high is None else f"{band.high:.3g}"
    return f"{band.concurrency:.3g} ({low} to {high})"
