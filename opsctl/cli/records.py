"""`opsctl logs` and `opsctl events`: read from the files, so they also work after a crash."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from opsctl.cli.client import places
from opsctl.cli.options import ConfigOption, Output, OutputOption, StateDirOption
from opsctl.errors import OpsctlError
from opsctl.observe.events import sentence

FollowOption = Annotated[bool, typer.Option("-f", "--follow", help="Go on with what comes.")]
LinesOption = Annotated[
    int, typer.Option("-n", "--lines", min=0, help="How many of the last lines to show first.")
]
POLL = 0.25


def logs(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    follow: FollowOption = False,
    lines: LinesOption = 50,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the engine's own output."""
    path = places(state_dir, config).engine_log
    for line in _lines(path, lines, follow):
        _print(line if output is Output.TABLE else _item({"line": line}, output))


def events(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    follow: FollowOption = False,
    lines: LinesOption = 50,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the journal: every decision, switch, failure and recovery. JSON is one object a line."""
    for line in _lines(places(state_dir, config).events, lines, follow):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        _print(sentence(entry) if output is Output.TABLE else _item(entry, output))


def _item(entry: dict[str, Any], output: Output) -> str:
    """One record: a JSON object on a line, or an item of a YAML sequence."""
    if output is Output.JSON:
        return json.dumps(entry)
    import yaml

    return str(yaml.safe_dump([entry], sort_keys=False, allow_unicode=True)).rstrip()


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _lines(path: Path, last: int, follow: bool) -> Iterator[str]:
    """The last lines of a file, then (when following) those that are appended to it."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise OpsctlError(
            f"{path} does not exist", hint="nothing has served from this state directory yet"
        ) from None
    with file:
        kept: deque[bytes] = deque(maxlen=last)
        rest = b""
        for line in file:
            if follow and not line.endswith(b"\n"):
                rest = line  # still being written
            else:
                kept.append(line)
        yield from map(_text, kept)
        if follow:
            yield from _appended(path, file, rest, time.sleep)


def _appended(
    path: Path, file: BinaryIO, rest: bytes, wait: Callable[[float], None]
) -> Iterator[str]:
    """Whole lines as they come; goes on in the file that takes this one's place."""
    try:
        while True:
            if os.fstat(file.fileno()).st_size < file.tell():  # truncated
                file.seek(0)
                rest = b""
            following = _successor(path, file)
            *complete, rest = (rest + file.read()).split(b"\n")
            yield from map(_text, complete)
            if following is None:
                wait(POLL)
                continue
            file.close()
            file, rest = following, b""
    finally:
        file.close()


def _successor(path: Path, file: BinaryIO) -> BinaryIO | None:
    """The file that has the name now, when it is another one."""
    try:
        following = path.open("rb")
    except FileNotFoundError:  # between the two halves of a rotation
        return None
    if os.path.samestat(os.fstat(following.fileno()), os.fstat(file.fileno())):
        following.close()
        return None
    return following


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\n")
