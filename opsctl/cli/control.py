"""The verbs of a running instance: status, switch, pause, resume, drain, stop, reload."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from opsctl.cli.client import NotRunningError, ask, places
from opsctl.cli.options import ConfigOption, Output, OutputOption, StateDirOption
from opsctl.cli.output import emit, message
from opsctl.errors import OpsctlError, TemporaryError
from opsctl.serve.places import Places

POLL = 0.2
SCHEMA = "opsctl/status/v1"

WaitOption = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Return when it is done, or at once.")
]


def status(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every second.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what a running opsctl does, since when, and why. Exit code 75 when none runs."""
    where = places(state_dir, config)
    if not watch:
        _show(ask(where, "GET", "/v1/status"), output)
        return
    from opsctl.cli.render import watch_status

    watch_status(lambda: ask(where, "GET", "/v1/status"), output)


def switch(
    profile: Annotated[str, typer.Argument(help="Launch profile to serve from.")],
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    wait: WaitOption = True,
    output: OutputOption = Output.TABLE,
) -> None:
    """Replace the serving profile by another without losing a request.

    Requests in flight finish first; new ones wait at the gateway. With --auto-spec the watchdog
    may switch back later: pause it to stay.
    """
    where = places(state_dir, config)
    document = ask(where, "POST", "/v1/switch", {"profile": profile})
    if wait:
        document = _follow_switch(where, profile)
    _show(document, output)


def _follow_switch(where: Places, profile: str) -> dict[str, Any]:
    last = ""
    while True:
        document = ask(where, "GET", "/v1/status")
        state, reason = document["state"], document["reason"]
        if state == "serving" and document["target"] is None:
            if document["profile"] == profile:
                return document
            raise OpsctlError(f"still serving {document['profile']}: {reason}")
        line = f"{state}: {reason}"
        if line != last:
            message(line)
            last = line
        time.sleep(POLL)


def pause(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Turn automatic switching off; serving goes on. It stays off until `opsctl resume`."""
    _show(ask(places(state_dir, config), "POST", "/v1/pause"), output)


def resume(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Turn automatic switching on again."""
    _show(ask(places(state_dir, config), "POST", "/v1/resume"), output)


def drain(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    off: Annotated[bool, typer.Option("--off", help="End the drain: take requests again.")] = False,
    wait: WaitOption = True,
    output: OutputOption = Output.TABLE,
) -> None:
    """Take no new requests (503, /readyz not ready) and let those in flight finish.

    The engine stays loaded. End it with `opsctl drain --off`.
    """
    where = places(state_dir, config)
    document = ask(where, "POST", "/v1/drain", {"off": off})
    while wait and not off and document["state"] == "draining":
        time.sleep(POLL)
        document = ask(where, "GET", "/v1/status")
    wanted = {"serving"} if off else {"drained", "draining"}
    if document["state"] not in wanted:
        raise TemporaryError(
            f"cannot do that while {document['state']}: {document['reason']}",
            hint="see `opsctl status`",
        )
    _show(document, output)


def stop(
    config: ConfigOption = None, state_dir: StateDirOption = None, wait: WaitOption = True
) -> None:
    """End `opsctl serve`: finish requests in flight, stop the engine, verify its release."""
    where = places(state_dir, config)
    pid = ask(where, "POST", "/v1/stop")["pid"]
    last = ""
    while wait:
        try:
            document = ask(where, "GET", "/v1/status")
        except NotRunningError:
            break
        line = f"{document['state']}: {document['reason']}"
        if line != last:
            message(line)
            last = line
        time.sleep(POLL)
    if wait:
        _wait_for_exit(pid)
        message("stopped")


def _wait_for_exit(pid: int) -> None:
    """The socket closes before the process ends; a script that goes on must not meet it."""
    import os
    import select

    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([descriptor], [], [], 30.0)
    finally:
        os.close(descriptor)


def reload(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Read the configuration again; a bad one is refused and the old one stays in force."""
    document = ask(places(state_dir, config), "POST", "/v1/reload")
    for note in document["notes"]:
        message(note)
    emit({"reloaded": True, **document}, output, schema="opsctl/reload/v1")


def _show(document: dict[str, Any], output: Output) -> None:
    from opsctl.cli.render import status_table

    emit(document, output, schema=SCHEMA, table=lambda: status_table(document))
