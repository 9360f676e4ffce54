"""An imported profile as YAML that opsctl reads back as the very same values."""

from __future__ import annotations

import re
from typing import Any

import yaml

from opsctl.config.scalars import Unclear, resolve_plain
from opsctl.profiles.importer import Imported


class _Bare(str):
    """Text that stays without quotes, so that what it refers to may be a number."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """Quotes every text that a YAML reader, ours or another, would take for something else."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:
        return super().increase_indent(flow, False)


def _text(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    plain = _is_text(value) and value.isprintable() and "${" not in value
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')


def _is_text(value: str) -> bool:
    try:
        return isinstance(resolve_plain(value), str)
    except Unclear:
        return False


def _bare(dumper: _Dumper, value: _Bare) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(value))


def _items(dumper: _Dumper, value: list[Any]) -> yaml.SequenceNode:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(_Bare, _bare)
_Dumper.add_representer(list, _items)


def render(imported: Imported) -> str:
    """The `profiles:` section, with the notes as comments on top."""
    notes = "".join(f"# {note}\n" for note in imported.notes)
    profile = dict(imported.written)
    if "flags" in profile:
        profile["flags"] = {flag: _flag(value) for flag, value in profile["flags"].items()}
    content = {"profiles": {imported.name: profile}}
    return notes + yaml.dump(
        content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000
    )


def _flag(value: Any) -> Any:
    whole = isinstance(value, str) and re.fullmatch(r"\$\{[^}]*\}", value)
    return _Bare(value) if whole else value
