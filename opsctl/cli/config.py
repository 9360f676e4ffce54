"""`opsctl config`: write, check and explain the configuration."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl.cli.loading import load_config, paths
from opsctl.cli.options import ConfigOption, Output, OutputOption
from opsctl.cli.output import emit, grid, message
from opsctl.errors import ConfigError, PreconditionError, UsageError

if TYPE_CHECKING:
    from opsctl.config.fields import Field
    from opsctl.config.load import Loaded

app = typer.Typer(
    help="Write, check and explain the configuration.",
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
)


class Preset(StrEnum):
    """Files `config init` can write."""

    MINIMAL = "minimal"
    SIMULATED = "simulated"
    KIMI_K25 = "kimi-k2.5-int4-8x-rtx-pro-6000"
    SINGLE_RTX_PRO_6000 = "single-rtx-pro-6000"
    SINGLE_RTX_5090 = "single-rtx-5090"
    TWO_HALVES = "two-halves-of-one-host"


PRESETS = {
    Preset.MINIMAL: "the least that starts an engine",
    Preset.SIMULATED: "two profiles of the simulated engine and a watchdog; needs no GPU",
    Preset.KIMI_K25: "Kimi K2.5 or K2.6 INT4, TP8: baseline, eagle3, eagle3-tree, eagle3-adaptive",
    Preset.SINGLE_RTX_PRO_6000: "a model on one 96 GB card: baseline, eagle3",
    Preset.SINGLE_RTX_5090: "a small model on one 32 GB card",
    Preset.TWO_HALVES: "GPUs 0-3 and 4-7 as two independent servers",
}
"""What each preset is for."""


class SchemaOutput(StrEnum):
    """Forms of the schema."""

    JSON = "json"
    YAML = "yaml"
    MARKDOWN = "markdown"


@app.command()
def init(
    path: Annotated[str, typer.Argument(help="File to write; - is stdout.")] = "opsctl.yaml",
    preset: Annotated[Preset, typer.Option(help="What to start from.")] = Preset.SIMULATED,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    list_presets: Annotated[
        bool, typer.Option("--list-presets", help="Print the presets and write nothing.")
    ] = False,
) -> None:
    """Write a commented configuration to start from."""
    from importlib.resources import files

    if list_presets:
        width = max(map(len, PRESETS))
        sys.stdout.write("".join(f"{name:{width}}  {what}\n" for name, what in PRESETS.items()))
        return
    text = files("opsctl.config").joinpath(f"presets/{preset}.yaml").read_text(encoding="utf-8")
    if path == "-":
        sys.stdout.write(text)
        return
    try:
        with Path(path).open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise PreconditionError(
            f"{path} exists", hint="overwrite it with --force, or name another file"
        ) from None
    except OSError as error:
        raise PreconditionError(f"{path} cannot be written: {error.strerror}") from None
    message(f"wrote {path}; check it with `opsctl config validate --config {path}`")


@app.command()
def validate(config: ConfigOption = None, output: OutputOption = Output.TABLE) -> None:
    """Report every problem of the configuration; exit 78 when there is one."""
    if output is Output.TABLE:
        loaded = load_config(config)
        names = ", ".join(loaded.config.profiles)
        sys.stdout.write(f"ok: {', '.join(map(str, loaded.files))} (profiles: {names})\n")
        return
    problems: tuple[Any, ...] = ()
    warnings: tuple[Any, ...] = ()
    try:
        warnings = load_config(config, warn=False).warnings
    except ConfigError as error:
        problems = error.problems
    facts = {
        "ok": not problems,
        "problems": [vars(problem) for problem in problems],
        "warnings": [vars(problem) for problem in warnings],
    }
    emit(facts, output, schema="opsctl/config-validate/v1")
    if problems:
        raise typer.Exit(ConfigError.exit_code)


@app.command()
def show(
    config: ConfigOption = None,
    origin: Annotated[
        bool, typer.Option("--origin", help="Show where each value was written.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the configuration in effect, with defaults filled in and secrets as references."""
    from opsctl.config.written import flat, written

    loaded = load_config(config)
    content = written(loaded.config)
    if not origin:
        emit({"config": content}, output, schema="opsctl/config/v1", table=lambda: _rows(content))
        return
    rows = [
        {"key": key, "value": value, "origin": _origin(loaded, key)}
        for key, value in flat(content).items()
    ]
    emit(
        rows,
        output,
        schema="opsctl/config-origins/v1",
        table=lambda: grid(("KEY", "VALUE", "ORIGIN"), [tuple(row.values()) for row in rows]),
    )


def _rows(content: dict[str, Any]) -> Any:
    from opsctl.config.written import flat

    return grid(("KEY", "VALUE"), flat(content).items())


def _origin(loaded: Loaded, key: str) -> str:
    found = loaded.origins.get(key)
    return str(found) if found is not None else "default"


@app.command()
def schema(
    output: Annotated[SchemaOutput, typer.Option("-o", "--output")] = SchemaOutput.JSON,
) -> None:
    """Print the JSON Schema of opsctl.yaml for an editor, or the reference page.

    Editors with a YAML language server use it through a first line
    `# yaml-language-server: $schema=opsctl.schema.json`.
    """
    import json

    from opsctl.config.json_schema import json_schema
    from opsctl.config.reference import reference
    from opsctl.profiles.launch import BASE_VARIABLES

    if output is SchemaOutput.MARKDOWN:
        sys.stdout.write(reference(BASE_VARIABLES))
    elif output is SchemaOutput.JSON:
        sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")
    else:
        import yaml

        sys.stdout.write(yaml.safe_dump(json_schema(), sort_keys=False))


@app.command()
def path(config: ConfigOption = None, output: OutputOption = Output.TABLE) -> None:
    """Print the files that make up the configuration, in the order they are read."""
    found = [str(file) for file in paths(config)]
    if output is Output.TABLE:
        sys.stdout.write("".join(f"{name}\n" for name in found))
        return
    emit(found, output, schema="opsctl/config-path/v1")


@app.command()
def explain(
    key: Annotated[str, typer.Argument(help="Dotted key, such as serve.gateway.hold.time.")],
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Explain one key: its type, default and meaning, and where it is set."""
    from opsctl.config.fields import children, lookup, split

    parts = split(key)
    field = lookup(parts) if parts is not None else None
    if parts is None or field is None:
        raise _no_such_key(key)
    emit(
        {
            "key": key,
            "type": field.kind,
            "default": field.default,
            "description": field.description,
            "keys": list(children(parts)),
            **_current(field, key, config),
        },
        output,
        schema="opsctl/config-explain/v1",
    )


def _current(field: Field, key: str, config: str | None) -> dict[str, object]:
    from opsctl.config.written import flat, written

    try:
        loaded = load_config(config, warn=False)
    except ConfigError as error:
        message(f"note: no valid configuration to look the value up in: {error.problems[0]}")
        return {}
    facts: dict[str, object] = {"set_at": _origin(loaded, key)}
    if not field.section:
        facts["value"] = flat(written(loaded.config)).get(key, field.default)
    return facts


def _no_such_key(key: str) -> UsageError:
    from opsctl.config.extends import suggestion
    from opsctl.config.fields import children, split

    *above, last = key.split(".")
    parent = split(".".join(above)) if above else ()
    known = children(parent) if parent is not None else ()
    hint = f"known there: {', '.join(known)}" if known else None
    return UsageError(f"there is no key {key}{suggestion(last, known)}", hint=hint)
