"""`opsctl autospec replay --suite`: every pattern, mechanism and truth, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opsctl.cli.output import grid, message

if TYPE_CHECKING:
    from rich.console import RenderableType

    from opsctl.autospec.replay import Setting
    from opsctl.cli.autospec_setting import Wanted

SCHEMA = "opsctl/replay-suite/v1"


def suite(wanted: Wanted, mechanisms: tuple[str, ...], truths: tuple[str, ...]) -> dict[str, Any]:
    """Play all cases, told on stderr one by one; the document, `schema` left out."""
    cases = []
    for setting in _settings(wanted, mechanisms, truths):
        content = _played(setting)
        cases.append(content)
        message(f"{content['case']['name']}: {_words(content)}")
    judged = [case for case in cases if case["r1"] is not None]
    asked = [case for case in judged if case["r2"]["held"] is not None]
    return {
        "cases": cases,
        "r1": _count(judged, "r1"),
        "r2": _count(asked, "r2"),
    }


def _settings(
    wanted: Wanted, mechanisms: tuple[str, ...], truths: tuple[str, ...]
) -> Iterator[Setting]:
    from opsctl.autospec.patterns import PATTERNS
    from opsctl.cli.autospec_setting import cases_in, pair_of, setting_of

    for case in cases_in(wanted):
        chosen = replace(wanted, case=case)
        found = pair_of(chosen)
        for pattern in [wanted.pattern] if wanted.pattern else PATTERNS:
            for mechanism in mechanisms:
                for truth in truths:
                    one = replace(chosen, pattern=pattern, mechanism=mechanism, truth=truth)
                    yield setting_of(one, found)


def _played(setting: Setting) -> dict[str, Any]:
    from opsctl.autospec.replay import document, replay

    content = document(replay(setting))
    del content["decisions"], content["decisions_in_all"]
    return content


def _count(cases: list[dict[str, Any]], rule: str) -> dict[str, Any]:
    missed = [case["case"]["name"] for case in cases if not case[rule]["held"]]
    return {"applies": len(cases), "held": len(cases) - len(missed), "missed": missed}


def _words(content: dict[str, Any]) -> str:
    r1, r2 = content["r1"], content["r2"]
    if r1 is None:
        return "only fixed profiles"
    share = "" if r2["share"] is None else f", {r2['share'] * 100:.0f} % of hindsight's gain"
    verdict = "held" if r1["held"] else "MISSED"
    return f"R1 {verdict}, {r1['of_best_fixed'] * 100:.1f} % of the better fixed profile{share}"


def table(content: dict[str, Any]) -> RenderableType:
    """One row a case."""
    return grid(
        ("CASE", "BEST FIXED", "MEAN", "JUDGED", "HINDSIGHT", "SWITCHES", "OF BEST", "R1", "R2"),
        [_row(case) for case in content["cases"]],
    )


def _row(case: dict[str, Any]) -> tuple[object, ...]:
    rows = {row["policy"]: row for row in case["rows"]}
    best, judged = rows[f"always:{case['best_fixed']}"], rows.get(case["judged"])
    hindsight = f"{case['hindsight']['mean_latency_s']:.2f} s"
    fixed = (case["case"]["name"], case["best_fixed"], f"{best['mean_latency_s']:.2f} s")
    if judged is None:
        return (*fixed, None, hindsight, None, None, None, None)
    r1, r2 = case["r1"], case["r2"]
    return (
        *fixed,
        f"{judged['mean_latency_s']:.2f} s",
        hindsight,
        judged["switches"],
        f"{r1['of_best_fixed'] * 100:.1f} %",
        "held" if r1["held"] else "missed",
        None if r2["share"] is None else f"{'held' if r2['held'] else 'missed'} {r2['share']:.2f}",
    )


def tell(content: dict[str, Any]) -> None:
    """Say on stderr how many cases held, and which did not."""
    for rule, words in (("r1", "R1 (no harm)"), ("r2", "R2 (gain)")):
        found = content[rule]
        message(f"{words}: held in {found['held']} of {found['applies']} cases where it applies")
        for name in found["missed"]:
            message(f"{words} missed: {name}")
