"""Water marks for `sustained_load` from where two profiles cross. Pure.

The policy sees requests running or queued, not their context. So the marks have to be right at
every context that was measured: the smallest crossing decides. They are written only where the
measurement decides: `low` at a load at which speculation is faster for certain, `high` at one at
which it is slower for certain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from opsctl.bench.compare import DOES_NOT_PAY
from opsctl.bench.compare_crossover import percent
from opsctl.bench.compare_model import CellComparison, Kind, Pair

Kinds = Mapping[int, Kind]
"""How profiles cross, by context."""
FAR_APART = 4
"""Ratio of neighbouring concurrencies between which a crossing is called a guess."""


@dataclass(frozen=True)
class Marks:
    """`low` and `high` of `auto_spec.sustained_load`; None with the reason why there are none."""

    low: int | None = None
    high: int | None = None
    why_not: str = ""
    notes: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """Whether there are marks to write."""
        return self.low is not None


def marks(pair: Pair, contexts: Sequence[int] | None = None) -> Marks:
    """Return the marks for the speculative profile of a pair, over these contexts (None: all)."""
    kinds = {
        context: found.kind
        for context, found in pair.crossovers.items()
        if contexts is None or context in contexts
    }
    why_not = _why_not(pair, kinds)
    if why_not:
        return Marks(why_not=why_not)
    found = [_at(pair, context) for context, kind in kinds.items() if kind == "at"]
    low, high = min(low for low, _ in found), min(high for _, high in found)
    return Marks(low, high, notes=tuple(_notes(pair, kinds)))


def _why_not(pair: Pair, kinds: Kinds) -> str:
    said = {context: pair.crossovers[context].words for context in kinds}
    listed = "; ".join(f"context {context}: {words}" for context, words in said.items())
    met = set(kinds.values())
    unseen = [x for x, kind in kinds.items() if kind == "at" and not _loses(pair, x)]
    reasons = {
        "nothing that can be compared was measured": not kinds,
        f"{DOES_NOT_PAY} ({_best(pair, kinds)}): serve {pair.baseline.name}": met == {"never"},
        f"speculation always pays ({listed}): serve {pair.profile.name}, without switching": (
            met == {"always"}
        ),
        f"one pair of marks cannot be right at every context ({listed}); see --context": (
            "never" in met
        ),
        f"intervals overlap, the measurement does not decide it ({listed}); measure with more "
        "repeats": not met <= {"at", "always"},
        f"intervals overlap where speculation would stop paying ({listed}); measure at higher "
        "concurrency, or with more repeats": bool(unseen),
    }
    return next((words for words, applies in reasons.items() if applies), "")


def _best(pair: Pair, kinds: Kinds) -> str:
    cells = [cell for cell in pair.cells if cell.context in kinds]
    if not cells:
        return ""
    best = max(cells, key=lambda cell: cell.ratio)
    return f"at best {percent(best.ratio)}, at concurrency {best.concurrency}"


def _row(pair: Pair, context: int) -> list[CellComparison]:
    return [c for c in pair.cells if c.context == context and c.verdict != "unknown"]


def _wins(pair: Pair, context: int) -> list[CellComparison]:
    """The cells from the lowest concurrency on that are better without a gap."""
    return list(takewhile(lambda cell: cell.verdict == "better", _row(pair, context)))


def _loses(pair: Pair, context: int) -> list[CellComparison]:
    return [cell for cell in _row(pair, context) if cell.verdict == "worse"]


def _at(pair: Pair, context: int) -> tuple[int, int]:
    """Return low and high at one context: the interval of the crossing, kept within the cells."""
    crossing = pair.crossovers[context]
    won = _wins(pair, context)[-1].concurrency
    lost = _loses(pair, context)[0].concurrency
    low = won if crossing.low is None else min(max(won, math.floor(crossing.low)), lost - 1)
    high = lost if crossing.high is None else min(lost, math.ceil(crossing.high))
    return low, max(high, low + 1)


def _notes(pair: Pair, kinds: Kinds) -> list[str]:
    told = []
    for context, kind in kinds.items():
        if kind != "at":
            continue
        won = _wins(pair, context)[-1].concurrency
        lost = _loses(pair, context)[0].concurrency
        measured = [cell.concurrency for cell in _row(pair, context)]
        inside = [x for x in measured if won < x < lost]
        if not inside and lost >= FAR_APART * won:
            told.append(
                f"context {context}: nothing was measured between concurrency {won} and {lost}; "
                "the crossing is read off a straight line: measure there"
            )
    told.append(
        f"{_best(pair, kinds)}: sustained_load does not weigh that against what a switch costs"
    )
    return told
