"""JSON Schema of the file as it is written, for editors."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from opsctl.config.fields import children, lookup
from opsctl.config.schema import Config

_VARIABLE = {"type": "string", "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}"}
"""What may stand instead of a number or word."""


def json_schema() -> dict[str, Any]:
    """The schema of opsctl.yaml (draft 2020-12)."""
    schema = Config.model_json_schema()
    models = _models(())
    for name, definition in (*schema["$defs"].items(), ("Config", schema)):
        if name in models:
            definition["properties"] = {
                key: _property(value, (*models[name], key))
                for key, value in definition["properties"].items()
            }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _models(path: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Model names and a key path at which each is found."""
    field = lookup(path)
    assert field is not None  # noqa: S101 - only called with paths of the schema
    found: dict[str, tuple[str, ...]] = {}
    if field.model is not None:
        found[field.model.__name__] = path
        for name in children(path):
            found |= _models((*path, name))
    elif field.items is not None and _is_model(field.items):
        found |= _models((*path, "*"))
    return found


def _is_model(items: Any) -> bool:
    return isinstance(items, type) and issubclass(items, BaseModel)


def _property(schema: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    field = lookup(path)
    assert field is not None  # noqa: S101 - as above
    about: dict[str, Any] = {"description": field.description} if field.description else {}
    schema.pop("title", None)
    schema.pop("description", None)
    schema.pop("default", None)
    if field.default is not None:
        about["default"] = field.default
    if field.section:
        return {**about, "anyOf": [schema, {"type": "null"}]}
    branches = schema.pop("anyOf", None) or [schema]
    if not any(_takes_variable(branch) for branch in branches):
        return {**about, **({"anyOf": branches} if len(branches) > 1 else branches[0])}
    return {**about, "anyOf": [*branches, _VARIABLE]}


def _takes_variable(branch: dict[str, Any]) -> bool:
    """Whether a variable is not already allowed here as ordinary text, and makes sense."""
    return branch.get("type") in ("integer", "number", "boolean") or bool(
        {"enum", "const", "pattern"} & set(branch)
    )
