"""Where one profile stops being the faster one. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise

from opsctl.bench.bootstrap import interval
from opsctl.bench.compare_model import CellComparison, Crossover, Kind

_Where = tuple[float | None, float | None, float | None]
"""A crossing, and what bounds it."""


def crossover(cells: Sequence[CellComparison]) -> Crossover:
    """Judge the cells of one context, by rising concurrency; unknown ones say nothing."""
    known = [cell for cell in cells if cell.verdict != "unknown"]
    wins = [cell for cell in known if cell.verdict == "better"]
    loses = [cell for cell in known if cell.verdict == "worse"]
    kind = _kind(known)
    middle = low = high = None
    if kind in ("at", "from"):
        sign = 1.0 if kind == "at" else -1.0
        middle = _finite(_crossing(known, [math.log(cell.ratio) * sign for cell in known]))
        low, high = _bounds(known, sign)
    return Crossover(
        kind=kind,
        words=_words(kind, known, (middle, low, high)),
        concurrency=middle,
        low=low,
        high=high,
        wins=tuple(cell.concurrency for cell in wins),
        loses=tuple(cell.concurrency for cell in loses),
    )


def percent(ratio: float) -> str:
    """Write a ratio as a gain: `+3.8 %`."""
    return f"{(ratio - 1) * 100:+.1f} %"


LITTLE = 1.02
"""A gain that is below this for certain (2 %) counts as none: no switch is worth it."""
SHAPES: tuple[tuple[str, Kind], ...] = (
    ("", "unknown"),
    ("n+", "no significant difference"),
    ("[lW]+", "never"),
    ("[nlW]+", "undecided"),
    ("B+", "always"),
    ("B[Bn]*[Wn]*", "at"),
    ("W[Wn]*[Bn]*B", "from"),
    (".*", "mixed"),
)
"""Verdicts by rising concurrency, and what they amount to: Better, Worse, no difference; or none
that matters (l: little), which only makes a difference beside W."""


def _kind(known: Sequence[CellComparison]) -> Kind:
    letters = "".join(_letter(cell) for cell in known)
    if "W" not in letters or "B" in letters:
        letters = letters.replace("l", "n")
    return next(kind for shape, kind in SHAPES if re.fullmatch(shape, letters))


def _letter(cell: CellComparison) -> str:
    if cell.verdict in ("better", "worse"):
        return cell.verdict[0].upper()
    return "l" if cell.high is not None and cell.high < LITTLE else "n"


def _crossing(known: Sequence[CellComparison], logs: Sequence[float]) -> float:
    """Return where `logs` first falls to 0; minus infinity below the first cell, else infinity."""
    if logs[0] <= 0:
        return -math.inf
    for left, (above, below) in enumerate(pairwise(logs)):
        if below <= 0:
            start = math.log(known[left].concurrency)
            end = math.log(known[left + 1].concurrency)
            return math.exp(start + (end - start) * above / (above - below))
    return math.inf


def _bounds(known: Sequence[CellComparison], sign: float) -> tuple[float | None, float | None]:
    draws = zip(*(cell.draws for cell in known), strict=True)
    found = [_crossing(known, [value * sign for value in draw]) for draw in draws]
    low, high = interval(found)
    return _finite(low), _finite(high)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _words(kind: Kind, known: Sequence[CellComparison], where: _Where) -> str:
    if kind == "unknown":
        return "unknown: no cell of both profiles can be compared"
    best = max(known, key=lambda cell: cell.ratio)
    worst = min(known, key=lambda cell: cell.ratio)
    wins = [cell for cell in known if cell.verdict == "better"]
    span = _span(known)
    if kind == "at" and len(wins) == 1:
        return f"only at concurrency {wins[0].concurrency}, {percent(wins[0].ratio)}"
    words = {
        "no significant difference": f"no significant difference at {span}",
        "never": f"never: at best {percent(best.ratio)}, at concurrency {best.concurrency}",
        "always": f"always: {percent(worst.ratio)} to {percent(best.ratio)} at {span}",
        "undecided": _undecided(known),
        "mixed": f"it depends: better at {_span(wins)} only",
        "from": f"from concurrency {_between(where)} up",
        "at": f"up to concurrency {_between(where)}",
    }
    return words[kind]


def _undecided(known: Sequence[CellComparison]) -> str:
    """Say where a gain is not excluded, and how large it may be."""
    slower = [cell for cell in known if cell.verdict == "worse"]
    doubts = [cell for cell in known if cell.verdict != "worse"]
    most = max((cell.high for cell in doubts if cell.high is not None), default=1.0)
    return (
        f"not seen to be faster: slower at {_span(slower)}, no significant difference at "
        f"{_span(doubts)} (at most {percent(most)})"
    )


def _between(where: _Where) -> str:
    middle, low, high = (None if value is None else f"{value:.3g}" for value in where)
    if middle is None:
        return f"{low or '?'} at least"
    return f"{middle} ({low or 'less than measured'} to {high or 'more than measured'})"


def _span(cells: Sequence[CellComparison]) -> str:
    return "concurrency " + ", ".join(str(cell.concurrency) for cell in cells)
