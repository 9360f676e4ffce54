"""Comparing profiles that were measured: ratio, interval and verdict for each cell. Pure.

The answer is allowed to be "no significant difference", and "unknown" where there is one repeat
only. Cells that are not valid never count, and are named.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean

from opsctl.bench.bootstrap import interval, log_ratios
from opsctl.bench.compare_crossover import crossover, percent
from opsctl.bench.compare_gather import gather
from opsctl.bench.compare_model import (
    CellComparison,
    Comparison,
    Crossover,
    Pair,
    Place,
    Series,
    Source,
    Verdict,
)
from opsctl.errors import UsageError

DOES_NOT_PAY = "speculation does not pay on this host with these prompts"
LENGTHS_MAY_DIFFER = 0.05
"""Share by which mean output lengths of two profiles may differ; with longer answers the same
engine decodes at a larger context (tenstorrent/tt-inference-server#3699)."""


def compare(sources: Sequence[Source], baseline: str | None = None) -> Comparison:
    """Compare every profile with the baseline, within each workload.

    The baseline is named, or is the only profile that does not speculate, or the first of two
    measurements of one profile. Raises UsageError when there is none, or it cannot be told.
    """
    gathered = gather(sources)
    pairs: list[Pair] = []
    notes = list(gathered.notes)
    for workload in dict.fromkeys(item.workload for item in gathered.series):
        series = [item for item in gathered.series if item.workload == workload]
        base = _baseline(series, baseline)
        if base is None:
            notes.append(f"workload {workload!r}: the baseline {baseline!r} was not measured")
            continue
        pairs += [_pair(item, base) for item in series if item is not base]
    if not pairs:
        raise UsageError(_nothing(gathered.series), hint="give results of two profiles")
    return Comparison(tuple(pairs), gathered.series, gathered.left_out, tuple(notes))


def _nothing(series: Sequence[Series]) -> str:
    names = ", ".join(f"{item.name} ({item.workload})" for item in series) or "nothing valid"
    return f"there is nothing to compare: measured were {names}"


def _baseline(series: Sequence[Series], wanted: str | None) -> Series | None:
    if wanted is not None:
        matching = [item for item in series if item.name == wanted]
        matching = matching or [item for item in series if item.profile.name == wanted]
        if len(matching) > 1:
            raise UsageError(
                f"{wanted!r} was measured in several ways",
                hint="name one: " + ", ".join(repr(item.name) for item in matching),
            )
        return matching[0] if matching else None
    plain = [item for item in series if not item.profile.speculative]
    if len(plain) == 1:
        return plain[0]
    if len(series) > 1 and len({item.profile.name for item in series}) == 1:
        return series[0]  # one profile, measured before and after something
    if len(series) == 1:
        return series[0]
    raise UsageError(
        "it cannot be told which profile is the baseline",
        hint="say so with --baseline: " + ", ".join(repr(item.name) for item in series),
    )


def _pair(profile: Series, baseline: Series) -> Pair:
    places = sorted(set(profile.cells) & set(baseline.cells), key=lambda p: (p[1], p[0]))
    cells = tuple(_cell(profile, baseline, place) for place in places)
    crossovers = {
        context: crossover([cell for cell in cells if cell.context == context])
        for context in dict.fromkeys(cell.context for cell in cells)
    }
    finding = _finding(profile, baseline, crossovers, cells)
    return Pair(profile, baseline, cells, crossovers, finding)


def _cell(profile: Series, baseline: Series, place: Place) -> CellComparison:
    base, other = baseline.throughputs(place), profile.throughputs(place)
    why = next(_doubts(profile, baseline, place), "")
    middles = [math.exp(fmean(math.log(x) for x in values)) for values in (base, other)]
    low = high = None
    draws: tuple[float, ...] = ()
    if not why:
        name = f"{profile.workload}/{profile.name}/{baseline.name}/{place}"
        draws = log_ratios(base, other, name=name)
        low, high = (math.exp(bound) for bound in interval(draws))
    return CellComparison(
        concurrency=place[0],
        context=place[1],
        baseline_tok_s=middles[0],
        tok_s=middles[1],
        baseline_repeats=len(base),
        repeats=len(other),
        ratio=middles[1] / middles[0],
        low=low,
        high=high,
        verdict=_verdict(low, high),
        why=why,
        draws=draws,
    )


def _verdict(low: float | None, high: float | None) -> Verdict:
    if low is None or high is None:
        return "unknown"
    if low > 1:
        return "better"
    return "worse" if high < 1 else "no significant difference"


def _doubts(profile: Series, baseline: Series, place: Place) -> Iterator[str]:
    lengths = []
    for item in (profile, baseline):
        cells = item.cells[place]
        if len(cells) < 2:
            yield f"one valid repeat of {item.name}: an interval needs two"
        known = [c.output_tokens_mean for c in cells if c.output_tokens_mean is not None]
        lengths.append(fmean(known) if known else None)
    ours, theirs = lengths
    if ours and theirs and abs(ours / theirs - 1) > LENGTHS_MAY_DIFFER:
        yield f"answers are {ours:.0f} and {theirs:.0f} tokens long: not comparable"


def _finding(
    profile: Series,
    baseline: Series,
    crossovers: dict[int, Crossover],
    cells: Sequence[CellComparison],
) -> str:
    """Return the whole in one sentence."""
    kinds = {found.kind for found in crossovers.values()}
    if not cells:
        return f"{profile.name} and {baseline.name} have no cell in common"
    if kinds == {"never"}:
        best = max(cells, key=lambda cell: cell.ratio)
        never = (
            f"never on these prompts, at best {percent(best.ratio)} at concurrency "
            f"{best.concurrency}"
        )
        if profile.profile.speculative:
            return f"{never}: {DOES_NOT_PAY}"
        return f"{never}: {profile.name} is not faster than {baseline.name}"
    if len(crossovers) == 1:
        return next(iter(crossovers.values())).words
    return "; ".join(f"context {context}: {found.words}" for context, found in crossovers.items())
