"""The status document as people read it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from opsctl.cli.options import Output
from opsctl.errors import TemporaryError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Document = dict[str, Any]


def status_table(document: Document) -> Table:
    """Two columns: what, and its value in words."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in _rows(document):
        table.add_row(name, Text(value))
    return table


def _rows(document: Document) -> Iterator[tuple[str, str]]:
    yield "state", f"{document['state']} since {document['since']}"
    yield "why", document["reason"]
    if document.get("drain_asked"):
        yield "drain", "asked for by the operator; `opsctl drain --off` ends it"
    target = document["target"]
    yield "profile", document["profile"] + (f" (switching to {target})" if target else "")
    yield "listen", document["listen"]
    yield "engine", _engine(document["engine"])
    yield "load", _load(document["load"])
    gateway = document["gateway"]
    yield (
        "requests",
        f"{gateway['completed']} completed, {gateway['failed']} failed, "
        f"{gateway['rejected']} rejected, {gateway['cut']} cut, {gateway['retried']} retried",
    )
    yield "switches", str(document["switches"])
    yield "automation", document["automation"]
    yield from _watchdog(document.get("watchdog"))
    yield from _decision(document)
    for name, until in document["quarantine"].items():
        yield "quarantine", f"{name} until {until}"
    for note in document.get("host_pending", ()):
        yield "pending", note


def _load(load: Document) -> str:
    stalled = load.get("waiting_for_client")
    return (
        f"{_known(load['running'])} running, {_known(load['queued'])} queued, "
        f"{load['held']} held, {load['in_flight']} in flight"
        + (f" ({stalled} wait for their client)" if stalled else "")
    )


def _engine(engine: Document | None) -> str:
    if engine is None:
        return "none"
    kind = "simulated, not a real engine" if engine["kind"] == "simulated" else engine["kind"]
    parts = [f"pid {engine['pid']}", f"port {engine['port']}", kind, f"stage {engine['stage']}"]
    if engine["adopted"]:
        parts.append("adopted")
    if engine["degraded"]:
        parts.append("degraded: log lacks " + ", ".join(engine["degraded"]))
    return ", ".join(parts)


def _watchdog(watchdog: Document | None) -> Iterator[tuple[str, str]]:
    if watchdog is None:
        return
    costs = ", ".join(_cost(name, cost) for name, cost in watchdog["costs"].items())
    yield "policy", f"{watchdog['policy']}, by {watchdog['mechanism']}"
    if watchdog["no_surface"]:
        yield "no surface", f"{watchdog['no_surface']}; {watchdog['to_measure']}"
    elif watchdog["surfaces"]:
        found = (f"{s['profile']} ({s['points']} points)" for s in watchdog["surfaces"])
        yield "surfaces", ", ".join(found)
    if costs and watchdog["mechanism"] != "in_engine":
        yield "a switch", costs


def _cost(name: str, cost: Document) -> str:
    source = f"of {cost['seen']} seen" if cost["seen"] else "assumed"
    beside = f", {cost['prepare_s']:g} s before it" if cost["prepare_s"] else ""
    return f"to {name}: {cost['closed_s']:g} s without an engine{beside} ({source})"


def _decision(document: Document) -> Iterator[tuple[str, str]]:
    decision = document["last_decision"]
    if decision is not None:
        yield "decision", f"{decision['action']} ({decision['profile']}): {decision['reason']}"
        if decision["vetoes"]:
            yield "but", "; ".join(decision["vetoes"])
        if decision.get("change"):
            yield "would change", decision["change"]
    following = document["next_switch"]
    if following is not None:
        allowed = "allowed now" if following["allowed"] else "; ".join(following["why"])
        yield "next switch", f"to {following['profile']}: {allowed}"


def _known(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def watch_status(read: Callable[[], Document], output: Output) -> None:
    """Show the status every second until interrupted; JSON and YAML print one after another.

    Goes on when opsctl is started again; that none runs is told meanwhile.
    """
    if output is not Output.TABLE:
        _print_one_after_another(read, output)
    from rich.live import Live

    with Live(status_table(read()), auto_refresh=False) as live:
        while True:
            time.sleep(1.0)
            live.update(_table_or_reason(read), refresh=True)


def _print_one_after_another(read: Callable[[], Document], output: Output) -> NoReturn:
    from opsctl.cli.control import SCHEMA
    from opsctl.cli.output import emit, message

    document, told = read(), ""
    while True:
        if document:
            emit(document, output, schema=SCHEMA)
            sys.stdout.flush()  # whoever reads a pipe wants it now
        time.sleep(1.0)
        try:
            document, told = read(), ""
        except TemporaryError as error:
            if error.message != told:
                message(error.message)
            document, told = {}, error.message


def _table_or_reason(read: Callable[[], Document]) -> RenderableType:
    from rich.text import Text

    try:
        return status_table(read())
    except TemporaryError as error:
        return Text(error.message)
