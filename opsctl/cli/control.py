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
    before = ask(where, "GET", "/v1/status")["last_failure"]
    document = ask(where, "POST", "/v1/switch", {"profile": profile})
    if wait:
        document = _follow_switch(where, profile, before)
    _show(document, output)


def _follow_switch(where: Places, profile: str, before: object) -> dict[str, Any]:
    """Tell what happens until something serves again; raises when it is not `profile`."""
    last = ""
    while True:
        try:
            document = ask(where, "GET", "/v1/status")
        except NotRunningError:
            raise _how_it_ended(where) from None
        state, reason = document["state"], document["reason"]
        if state == "serving" and document["target"] is None:
            if document["profile"] == profile:
                return document
            failure = document["last_failure"]
            why = failure["why"] if failure is not None and failure != before else reason
            raise OpsctlError(
                f"still serving {document['profile']}: {why}",
                hint="see `opsctl events` and `opsctl logs`",
            )
        line = f"{state}: {reason}"
        if line != last:
            message(line)
            last = line
        time.sleep(POLL)


def _how_it_ended(where: Places) -> OpsctlError:
    """The error with which serving ended, from what it left in the state file."""
    from opsctl.serve.remembered import read

    past = read(where.state)
    code = past.exit_code if past is not None else None
    error = OpsctlError(
        f"opsctl serve has ended: {past.reason}" if past is not None else "opsctl serve is gone",
        hint="see `opsctl events`",
    )
    error.exit_code = code if code is not None else 1
    return error


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

    The engine stays loaded. It outlasts a crash of opsctl, not a stop. End it with
    `opsctl drain --off`.
    """
    where = places(state_dir, config)
    document = ask(where, "POST", "/v1/drain", {"off": off})
    while wait and not off and document["state"] == "draining":
        time.sleep(POLL)
        document = ask(where, "GET", "/v1/status")
    done = not document.get("drain_asked") if off else document["state"] in {"drained", "draining"}
    if not done:
        raise TemporaryError(
            f"cannot do that while {document['state']}: {document['reason']}",
            hint="see `opsctl status`",
        )
    _show(document, output)


def stop(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    wait: WaitOption = True,
    output: OutputOption = Output.TABLE,
) -> None:
    """End `opsctl serve`: finish requests in flight, stop the engine, verify its release.

    Fails with the exit code of `opsctl serve` when that did not end well.
    """
    where = places(state_dir, config)
    pid = ask(where, "POST", "/v1/stop")["pid"]
    if wait:
        _follow_stop(where)
        _wait_for_exit(pid)
        error = _how_it_ended(where)
        if error.exit_code:
            raise error
        message("stopped")
    if output is not Output.TABLE:
        emit({"stopped": wait, "pid": pid}, output, schema="opsctl/stop/v1")


def _follow_stop(where: Places) -> None:
    last = ""
    while True:
        try:
            document = ask(where, "GET", "/v1/status")
        except NotRunningError:
            return
        line = f"{document['state']}: {document['reason']}"
        if line != last:
            message(line)
            last = line
        time.sleep(POLL)


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
