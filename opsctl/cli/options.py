"""Options that several commands share, so that they are named and explained alike.

`--config` and `--state-dir` may stand before or after the command; the one after wins.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer


class Output(StrEnum):
    """Formats every reading command can print."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def _or_from_root(ctx: typer.Context, param: typer.CallbackParam, value: str | None) -> str | None:
    context: Any = ctx
    while value is None and context.parent is not None:
        context = context.parent
        value = context.params.get(param.name)
    return value


ConfigOption = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="PATH",
        callback=_or_from_root,
        help="Configuration file; else OPSCTL_CONFIG, ./opsctl.yaml, XDG, /etc/opsctl.",
    ),
]

StateDirOption = Annotated[
    str | None,
    typer.Option(
        "--state-dir",
        metavar="DIR",
        callback=_or_from_root,
        help="Directory of state, socket, logs and events; else OPSCTL_STATE_DIR.",
    ),
]

OutputOption = Annotated[
    Output, typer.Option("-o", "--output", help="Format of what goes to stdout.")
]
