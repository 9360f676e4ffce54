"""Data to stdout as a table, JSON or YAML; messages go to stderr."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opsctl.cli.options import Output

if TYPE_CHECKING:
    from rich.console import RenderableType


def plain(value: object) -> Any:
    """The value as JSON types: models dumped, mappings and sequences copied, the rest as text."""
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(mode="json"))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def emit(
    data: object,
    output: Output,
    *,
    schema: str,
    table: Callable[[], RenderableType] | None = None,
) -> None:
    """Print a model, mapping or sequence.

    JSON and YAML carry `schema` (such as `opsctl/status/v1`) as their first key; a sequence is
    put under `items`. `table` makes the human form; without it a two-column table is made.
    """
    content = plain(data)
    if output is Output.TABLE:
        _print_rich(table() if table is not None else facts(content))
        return
    if not isinstance(content, dict):
        content = {"items": content}
    content = {"schema": schema, **content}
    if output is Output.JSON:
        sys.stdout.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(_yaml(content))


def _yaml(content: dict[str, Any]) -> str:
    """YAML that opsctl reads back: PyYAML leaves a time of day such as 06:00 without quotes."""
    import re

    import yaml

    class Dumper(yaml.SafeDumper):
        """Quotes what looks like a number in base 60."""

    base_60 = re.compile(r"^[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+$")
    Dumper.add_implicit_resolver("tag:yaml.org,2002:int", base_60, list("-+0123456789"))
    return str(yaml.dump(content, Dumper=Dumper, sort_keys=False, allow_unicode=True))


def grid(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> RenderableType:
    """A plain table with one header row."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        table.add_column(header, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    return table


def facts(content: Any) -> RenderableType:
    """Nested data as rows of dotted key and value."""
    return grid(("KEY", "VALUE"), _flat(content, ""))


def _flat(value: Any, prefix: str) -> Iterable[tuple[str, object]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flat(item, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for index, item in enumerate(value):
            yield from _flat(item, f"{prefix}[{index}]")
    else:
        yield prefix, value


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "-"
    return "-" if value in ({}, "") else str(value)


def _print_rich(renderable: RenderableType) -> None:
    from rich.console import Console

    if sys.stdout.isatty():
        Console(highlight=False).print(renderable)  # rich honours NO_COLOR by itself
        return
    # A pipe gets neither escapes nor wrapped or padded lines, so that grep and cut see rows.
    console = Console(file=io.StringIO(), width=100_000, highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(renderable)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


def message(text: str) -> None:
    """One line for the person at the terminal, on stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
