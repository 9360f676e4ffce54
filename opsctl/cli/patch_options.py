"""Options that the verbs of `opsctl patch` share, each group as one value."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar, get_type_hints

import typer

from opsctl.cli.options import ConfigOption, Output, OutputOption

P = ParamSpec("P")
T = TypeVar("T")
_LAST = frozenset({"config", "output"})
"""Options that stand at the end of every command's help."""


@dataclass(frozen=True)
class Chosen:
    """Which environment, which patches of it, and how they are shown."""

    python: Annotated[
        str | None,
        typer.Option(
            "--python",
            metavar="PATH",
            help="Interpreter (or folder) of the environment; else that of the profiles.",
        ),
    ] = None
    site_packages: Annotated[
        Path | None,
        typer.Option("--site-packages", metavar="DIR", help="Its site-packages folder, instead."),
    ] = None
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help="This patch; may be repeated."),
    ] = None
    config: ConfigOption = None
    output: OutputOption = Output.TABLE


DiffOption = Annotated[bool, typer.Option("--diff", help="Show the changed lines.")]


@dataclass(frozen=True)
class Change(Chosen):
    """What is to be changed, and how."""

    all_: Annotated[bool, typer.Option("--all", help="Every patch that can be.")] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; exit code 3 when something would.")
    ] = False
    diff: DiffOption = False
    jit_cache: Annotated[
        list[Path] | None,
        typer.Option(
            "--jit-cache",
            metavar="DIR",
            help="FlashInfer's cache of the user who serves; else the caller's.",
        ),
    ] = None


def taking(kind: type[T]) -> Callable[[Callable[Concatenate[T, P], None]], Callable[..., None]]:
    """Give a command the options that `kind` has as fields; it gets them as one value, first.

    Typer reads a command's signature, so that is made of both.
    """

    def decorate(command: Callable[Concatenate[T, P], None]) -> Callable[..., None]:
        names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
        _, *own = inspect.signature(command).parameters.values()
        hints = get_type_hints(command, include_extras=True) | get_type_hints(
            kind, include_extras=True
        )
        shared = inspect.signature(kind).parameters.values()

        @wraps(command)
        def run(**values: Any) -> None:
            command(kind(**{name: values.pop(name) for name in names}), **values)  # type: ignore[call-arg]

        parameters = [
            each.replace(annotation=hints[each.name], kind=inspect.Parameter.KEYWORD_ONLY)
            for each in sorted((*shared, *own), key=lambda each: each.name in _LAST)
        ]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate
