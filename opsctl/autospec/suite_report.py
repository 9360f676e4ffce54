"""The suite's table: which cases hold R1 and R2, and what the plain policy does beside. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from opsctl.autospec.suite import SUSTAINED, Case, Verdict

R1, R2 = 1.05, 0.5


@dataclass(frozen=True)
class Result:
    """One case in numbers; latencies are means in seconds."""

    case: Case
    best_fixed: str
    fixed: float
    policy: float
    policy_p99: float
    fixed_p99: float
    switches: int
    hindsight: float
    hindsight_switches: int
    one_switch: float
    sustained: tuple[float, ...]
    other_fixed: float

    @property
    def ratio(self) -> float:
        """Mean latency by that of the better fixed profile."""
        return self.policy / self.fixed

    @property
    def r1_held(self) -> bool:
        """Whether it did no harm: 5 %, and one switch's price, are allowed."""
        return self.policy - self.one_switch <= R1 * self.fixed

    @property
    def share(self) -> float | None:
        """Share of hindsight's gain that was taken; None where that is 5 % or less."""
        if self.hindsight >= 0.95 * self.fixed:
            return None
        return (self.fixed - self.policy) / (self.fixed - self.hindsight)

    @property
    def r2_held(self) -> bool | None:
        """Whether half of the gain was taken; None where there is little to gain."""
        return None if self.share is None else self.share >= R2

    def words(self) -> str:
        """Tell the case in a line."""
        marks = [] if self.r1_held else ["R1 missed"]
        marks += ["R2 missed"] if self.r2_held is False else []
        share = "" if self.share is None else f", share {self.share:.2f}"
        return (
            f"{self.case.name}: {self.policy:.2f} s, {self.ratio:.2f} of {self.best_fixed} "
            f"(one switch {self.one_switch:.2f} s), hindsight {self.hindsight:.2f} s with "
            f"{self.hindsight_switches} switches, {self.switches} made{share} {'; '.join(marks)}"
        )


def result(verdict: Verdict) -> Result:
    """Return the numbers of a case."""
    ours, fixed = verdict.row("cost_aware"), verdict.row(f"always:{verdict.best_fixed}")
    both = [row.outcome.mean for row in verdict.rows if row.policy.startswith("always:")]
    return Result(
        case=verdict.case,
        best_fixed=verdict.best_fixed,
        fixed=fixed.mean,
        policy=ours.mean,
        policy_p99=ours.quantile(0.99),
        fixed_p99=fixed.quantile(0.99),
        switches=len(ours.switches),
        hindsight=verdict.hindsight.outcome.mean,
        hindsight_switches=len(verdict.hindsight.outcome.switches),
        one_switch=verdict.one_switch / len(verdict.requests),
        sustained=tuple(verdict.row(name).mean for name in SUSTAINED),
        other_fixed=max(both),
    )


def markdown(results: Sequence[Result]) -> str:
    """Return the tables: the count, what missed, and every case."""
    lines = [
        verdict(results),
        "",
        *_worst(results),
        "",
        *_missed(results),
        "",
        "## Every case",
        "",
        *_table(results),
    ]
    return "\n".join(lines) + "\n"


def verdict(results: Sequence[Result]) -> str:
    """Say in how many cases R1 and R2 held."""
    asked = [found for found in results if found.r2_held is not None]
    return (
        f"R1 held in {_held(found.r1_held for found in results)} cases, R2 in "
        f"{_held(bool(found.r2_held) for found in asked)} where hindsight gains more than 5 %."
    )


def _held(held: Iterable[bool]) -> str:
    seen = list(held)
    return f"{sum(seen)} of {len(seen)}"


def _worst(results: Sequence[Result]) -> Iterator[str]:
    """How far from the better fixed profile each policy gets, at worst and in the middle."""
    yield "| policy | mean latency by that of the better fixed profile: median | worst |"
    yield "|---|---|---|"
    columns = {"cost_aware": [found.ratio for found in results]}
    for number, name in enumerate(SUSTAINED):
        columns[name] = [found.sustained[number] / found.fixed for found in results]
    columns["the worse fixed profile"] = [found.other_fixed / found.fixed for found in results]
    for name, ratios in columns.items():
        ranked = sorted(ratios)
        yield f"| {name} | {ranked[len(ranked) // 2]:.3f} | {ranked[-1]:.2f} |"


def _missed(results: Sequence[Result]) -> Iterator[str]:
    missed = [found for found in results if not found.r1_held or found.r2_held is False]
    if not missed:
        yield "No case missed R1 or R2."
        return
    yield "Cases that missed:"
    yield ""
    for found in missed:
        yield f"- {found.words()}"


def _table(results: Sequence[Result]) -> Iterator[str]:
    names = " | ".join(SUSTAINED)
    yield (
        "| surface | trace | pattern | mechanism | truth | best fixed | mean s | cost_aware s | "
        f"switches | by best | R1 | hindsight s | R2 share | {names} |"
    )
    yield "|" + "---|" * (13 + len(SUSTAINED))
    for found in results:
        case = found.case
        share = "" if found.share is None else f"{found.share:.2f}"
        cells = [case.surface, case.trace, case.pattern, case.mechanism, case.truth]
        cells += [found.best_fixed, f"{found.fixed:.2f}", f"{found.policy:.2f}"]
        cells += [str(found.switches), f"{found.ratio:.3f}", "held" if found.r1_held else "missed"]
        cells += [f"{found.hindsight:.2f}", share, *(f"{mean:.2f}" for mean in found.sustained)]
        yield "| " + " | ".join(cells) + " |"
