"""`opsctl status` for people: what the watchdog rests on, in a line each."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from opsctl.cli.render import status_table

WATCHDOG: dict[str, Any] = {
    "policy": "cost_aware",
    "mechanism": "gated_restart",
    "surfaces": [{"profile": "eagle3", "points": 12}, {"profile": "baseline", "points": 12}],
    "no_surface": None,
    "to_measure": None,
    "costs": {
        "eagle3": {"prepare_s": 44.5, "closed_s": 61.0, "seen": 3},
        "baseline": {"prepare_s": 0.0, "closed_s": 240.0, "seen": 0},
    },
}
DOCUMENT: dict[str, Any] = {
    "state": "serving",
    "since": "then",
    "reason": "engine ready",
    "profile": "eagle3",
    "target": None,
    "listen": "127.0.0.1:8000",
    "engine": None,
    "load": {"running": 0, "queued": 0, "held": 0, "in_flight": 0},
    "gateway": dict.fromkeys(("completed", "failed", "rejected", "cut", "retried"), 0),
    "switches": 0,
    "automation": "on",
    "watchdog": WATCHDOG,
    "last_decision": {
        "action": "stay",
        "profile": "eagle3",
        "reason": "little would be saved",
        "change": "at 8 requests: baseline",
        "vetoes": [],
    },
    "next_switch": None,
    "quarantine": {},
}


def lines(**changes: Any) -> dict[str, str]:
    """The rows by their name."""
    console = Console(width=300, record=True, file=None, quiet=True)
    with console.capture() as capture:
        console.quiet = False
        console.print(status_table(DOCUMENT | changes))
    found = {}
    for row in capture.get().splitlines():
        name, _, value = row.partition("  ")
        found[name.strip()] = value.strip()
    return found


def test_it_says_what_the_decision_rests_on_and_what_would_change_it() -> None:
    found = lines()
    assert found["policy"] == "cost_aware, by gated_restart"
    assert found["surfaces"] == "eagle3 (12 points), baseline (12 points)"
    assert found["a switch"] == (
        "to eagle3: 61 s without an engine, 44.5 s before it (of 3 seen), "
        "to baseline: 240 s without an engine (assumed)"
    )
    assert found["would change"] == "at 8 requests: baseline"


def test_without_a_surface_it_says_why_and_what_to_do() -> None:
    blind = WATCHDOG | {"no_surface": "never measured", "to_measure": "`opsctl tune`"}
    assert lines(watchdog=blind)["no surface"] == "never measured; `opsctl tune`"


@pytest.mark.parametrize("watchdog", [None, "absent"])
def test_an_opsctl_without_a_watchdog_is_shown_all_the_same(watchdog: str | None) -> None:
    document = DOCUMENT | {"watchdog": None}
    if watchdog == "absent":
        document.pop("watchdog")
    assert status_table(document).row_count > 5


def test_inside_the_engine_a_switch_costs_nothing_worth_a_line() -> None:
    assert "a switch" not in lines(watchdog=WATCHDOG | {"mechanism": "in_engine"})
