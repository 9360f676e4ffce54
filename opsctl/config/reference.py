"""The reference page of the configuration, made from the schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files

from opsctl.config.fields import Field, children, lookup
from opsctl.config.flags import OWNED
from opsctl.config.rules import RULES

_HEAD = """\
# Configuration reference

<!-- Made by `opsctl config schema -o markdown`; change the schema, not this page. -->

opsctl reads one YAML file and, in name order, every `conf.d/*.yaml` beside it. The file is the
first of: `--config`, `OPSCTL_CONFIG`, `./opsctl.yaml`, `$XDG_CONFIG_HOME/opsctl/opsctl.yaml`
(or `~/.config/...`), `/etc/opsctl/opsctl.yaml`. In drop-ins, mappings are merged key by key;
values and lists are replaced. `opsctl config show --origin` tells which file won.

A useful file can be short:

```yaml
{minimal}```

Durations are written with a unit: `500ms`, `30s`, `5m`, `1h30m`; sizes too: `512KiB`, `8MiB`,
`1GB`. A bare number is refused, except 0.

In values, `${{NAME}}` is replaced by an environment variable of opsctl, `${{NAME:-text}}` falls
back to the text when it is unset or empty, and `$$` is a dollar sign. An unquoted result is read
like any other value, so `engine_port: ${{PORT:-0}}` is a number.

Secrets are only referred to: `{{file: PATH}}` (its first line), `{{env: NAME}}` or
`{{credential: NAME}}` (systemd's `LoadCredential=`).

Refused, with file, line and column: unknown and duplicate keys; what YAML 1.1 and 1.2 read
differently (`yes`, `off`, `012`, `12:30`, a bare date); tags and merge keys (`<<`).

## Keys

`*` stands for a name that you choose.

"""

_ENGINE = """
## What an engine inherits

Of opsctl's own environment an engine sees {variables} and `LC_*`, and `PATH` with the directory of
the profile's interpreter in front. Nothing else: `CUDA_HOME`, `LD_LIBRARY_PATH`, `NCCL_*` and
`PYTHONPATH` belong into the profile (the simulated engine gets the `PYTHONPATH` that makes it
find this opsctl). null or `""` removes a variable of the base set too.
`opsctl profile show NAME` shows the result.

## Flags a profile may not set

| flag | instead |
|---|---|
"""

_RULES = """
## Rules between keys

Broken rules are reported with the name given here. Those marked as warnings do not stop a start.

| name | rule |
|---|---|
"""


def reference(variables: Sequence[str]) -> str:
    """The page as Markdown; `variables` are the ones an engine inherits."""
    minimal = files("opsctl.config").joinpath("presets/minimal.yaml").read_text(encoding="utf-8")
    body = "\n".join(line for line in minimal.splitlines() if not line.startswith("#"))
    return "".join(
        (
            _HEAD.format(minimal=body + "\n"),
            "| key | type | default | meaning |\n|---|---|---|---|\n",
            *_rows(()),
            _ENGINE.format(variables=", ".join(f"`{name}`" for name in variables)),
            *(f"| `{name}` | {instead} |\n" for name, instead in OWNED.items()),
            _RULES,
            *(
                f"| `{rule.name}`{' (warning)' if rule.warning else ''} | {rule.text} |\n"
                for rule in RULES
            ),
        )
    )


def _rows(path: tuple[str, ...]) -> Iterator[str]:
    for name in children(path):
        here = (*path, name)
        field = lookup(here)
        assert field is not None  # noqa: S101 - children are fields
        yield _row(here, field)
        yield from _rows(here)
        if field.items is not None:
            free = (*here, "*")
            value = lookup(free)
            if value is not None and not value.section:
                yield _row(free, value)
            yield from _rows(free)


def _row(path: tuple[str, ...], field: Field) -> str:
    default = "" if field.default in (None, "", (), []) else f"`{field.default}`"
    cells = (f"`{'.'.join(path)}`", field.kind, default, field.description.replace("\n", " "))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
