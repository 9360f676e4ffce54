"""How findings and checks of the doctor are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from opsctl.cli.output import grid

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from opsctl.doctor.model import Check, Result, Status

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "unknown": "dim"}
_ORDER: tuple[Status, ...] = ("fail", "warn", "unknown", "ok")


def document(results: Iterable[Result]) -> dict[str, Any]:
    """Return the findings as JSON types."""
    return {"checks": [vars(result) for result in results]}


def summary(results: Sequence[Result]) -> str:
    """Say how many there are of each, the gravest first."""
    counts = Counter(result.status for result in results)
    told = ", ".join(f"{counts[status]} {status}" for status in _ORDER if counts[status])
    return f"{len(results)} checks: {told}"


def results_table(results: Sequence[Result]) -> RenderableType:
    """One line a check, and below it what is to be done; what is not known comes last, by reason.

    On a host without a GPU thirty checks are unknown for one reason: it is said once.
    """
    from rich.text import Text as Lines

    width = max((len(result.id) for result in results), default=0)
    text = Lines()
    for result in results:
        if result.status != "unknown":
            text.append(f"{result.status:<7}", style=_STYLES[result.status])
            text.append(f"  {result.id:<{width}}  {result.value or '-'}\n")
            if result.status != "ok":
                _append_advice(text, result)
    for why, names in _unknown(results).items():
        text.append(f"{'unknown':<7}", style=_STYLES["unknown"])
        text.append(f"  {', '.join(names)}\n")
        text.append(f"{'':<9}not known: {why}\n", style="dim")
    text.rstrip()
    return text


def _append_advice(text: Text, result: Result) -> None:
    for name, value in (("wanted", result.wanted), ("why", result.why), ("fix", result.fix)):
        text.append(f"{'':<9}{name}: {value}\n", style="dim")


def _unknown(results: Sequence[Result]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for result in results:
        if result.status == "unknown":
            found.setdefault(result.why, []).append(result.id)
    return found


def catalogue(checks: Iterable[Check]) -> list[dict[str, Any]]:
    """Return checks as JSON types."""
    names = ("id", "title", "severity", "wanted", "why", "source", "fix")
    return [{name: getattr(one, name) for name in names} for one in checks]


def catalogue_table(entries: Sequence[dict[str, Any]]) -> RenderableType:
    """One row a check."""
    return grid(
        ("CHECK", "AT WORST", "WHAT"), [(x["id"], x["severity"], x["title"]) for x in entries]
    )


def explanation_table(entry: dict[str, Any]) -> RenderableType:
    """One row a fact."""
    shown = {"severity": "at worst"}
    return grid(("", ""), [(shown.get(name, name), value) for name, value in entry.items()])
