"""`opsctl profile import`: a pasted launch command becomes a launch profile."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import Annotated

import typer

from opsctl.cli.output import message
from opsctl.errors import UsageError


class Form(StrEnum):
    """Forms of an imported profile."""

    YAML = "yaml"
    JSON = "json"


def import_command(
    command: Annotated[
        str, typer.Argument(metavar="COMMAND|-", help="The command, quoted; - reads it from stdin.")
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="The profile's name; else the model's.")
    ] = None,
    output: Annotated[
        Form, typer.Option("-o", "--output", help="Format of what goes to stdout.")
    ] = Form.YAML,
) -> None:
    """Turn a launch command that works into a launch profile.

    Takes what is pasted from a shell: exports, quotes, continued lines, docker run around it.
    Nothing of it is run. What cannot be taken over is noted; secrets are not repeated.
    """
    from opsctl.profiles.importer import parse
    from opsctl.profiles.importer_yaml import render

    imported = parse(_standard_input() if command == "-" else command, name=name)
    if output is Form.YAML:
        sys.stdout.write(render(imported))
    else:
        content = {
            "schema": "opsctl/profile-import/v1",
            "name": imported.name,
            "profile": imported.written,
            "notes": imported.notes,
        }
        sys.stdout.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()
    for note in imported.notes:
        message(f"note: {note}")


def _standard_input() -> str:
    from opsctl.profiles.importer_lexer import MAX_CHARACTERS

    raw = sys.stdin.buffer.read(4 * MAX_CHARACTERS + 1)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"the command is not UTF-8: byte {error.start + 1}") from None
