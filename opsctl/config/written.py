"""Models back in the form in which they are written in YAML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opsctl.config.base import Model
from opsctl.config.fields import written_mark
from opsctl.config.names import looks_secret
from opsctl.config.schema import CredentialSecret, EnvSecret, FileSecret

MASK = "***"
"""Shown instead of a literal value that looks like a secret."""


def written(model: Model) -> dict[str, Any]:
    """The model as plain data: durations and sizes with units, secrets as references.

    Loading the result again gives the same model, except for masked literals.
    """
    return {
        info.alias or name: _value(getattr(model, name), written_mark(info), name)
        for name, info in type(model).model_fields.items()
    }


def _value(value: Any, format_value: Any, name: str) -> Any:
    if name == "environment" and isinstance(value, Mapping):
        return {key: shown_variable(key, item) for key, item in value.items()}
    if isinstance(value, FileSecret | EnvSecret | CredentialSecret):
        return value.model_dump()
    if isinstance(value, Model):
        return written(value)
    if format_value is not None and value is not None:
        return format_value(value)
    return plain(value)


def shown_variable(name: str, value: Any) -> Any:
    """An environment variable's value as it may be shown."""
    if isinstance(value, Model):
        return value.model_dump()
    return MASK if value and looks_secret(name) else value


def plain(value: Any) -> Any:
    """Nested mappings and tuples as dicts and lists, models in written form."""
    if isinstance(value, Model):
        return written(value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys; lists and empty mappings are values."""
    if not isinstance(value, Mapping) or not value:
        return {prefix: value}
    rows: dict[str, Any] = {}
    for key, item in value.items():
        rows |= flat(item, f"{prefix}.{key}" if prefix else str(key))
    return rows
