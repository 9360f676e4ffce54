"""The schema, walked by key path: for suggestions, `config explain` and the reference page."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from opsctl.config.base import Model
from opsctl.config.schema import Config
from opsctl.config.units import Written

_NAMES = {str: "text", int: "whole number", float: "number", bool: "true or false"}


@dataclass(frozen=True)
class Field:
    """One key: its type in words, its default as written in YAML, and what it is for."""

    kind: str
    default: object
    description: str
    section: bool
    choices: tuple[str, ...] = ()
    model: type[Model] | None = None
    items: Any = None
    """For a mapping with free keys: the type of its values."""


ROOT = Field("mapping", None, Config.__doc__ or "", True, model=Config)


@cache
def lookup(path: tuple[str, ...]) -> Field | None:
    """The field at a key path, with any name where names are free; None when there is none."""
    field: Field | None = ROOT
    for part in path:
        field = _below(field, part)
    return field


@cache
def children(path: tuple[str, ...]) -> tuple[str, ...]:
    """Known keys below a path; empty below a value or where names are free."""
    field = lookup(path)
    return tuple(field.model.model_fields) if field is not None and field.model else ()


def _below(field: Field | None, part: str) -> Field | None:
    if field is None:
        return None
    if field.model is not None:
        info = field.model.model_fields.get(part)
        return None if info is None else _field(info)
    return None if field.items is None else _typed(field.items, None, "")


def written_mark(info: FieldInfo) -> Callable[[Any], object] | None:
    """How the field's value is formatted in YAML; None when it is written as it is."""
    return next((mark.format for mark in info.metadata if isinstance(mark, Written)), None)


def split(key: str) -> tuple[str, ...] | None:
    """The path of a dotted key; names that are free, such as a profile's, may hold dots."""
    return _split((), key.split("."))


def _split(path: tuple[str, ...], parts: list[str]) -> tuple[str, ...] | None:
    if not parts:
        return path
    field = lookup(path)
    longest = len(parts) if field is not None and field.items is not None else 1
    for count in range(1, longest + 1):
        here = (*path, ".".join(parts[:count]))
        found = _split(here, parts[count:]) if lookup(here) is not None else None
        if found is not None:
            return found
    return None


def _field(info: FieldInfo) -> Field:
    default = info.get_default(call_default_factory=True)
    return _typed(info.annotation, default, info.description or "", tuple(info.metadata))


def _typed(
    annotation: Any, default: object, description: str, marks: tuple[Any, ...] = ()
) -> Field:
    annotation, inner = _bare(annotation)
    written = next((mark for mark in (*marks, *inner) if isinstance(mark, Written)), None)
    if written is not None:
        shown = None if default is None else written.format(default)
        return Field(written.name, shown, description, False)
    if isinstance(annotation, type) and issubclass(annotation, Model):
        about = description or (annotation.__doc__ or "")
        return Field("mapping", None, about, True, model=annotation)
    if get_origin(annotation) is Literal:
        choices = tuple(map(str, get_args(annotation)))
        return Field(" or ".join(choices), default, description, False, choices)
    if get_origin(annotation) is Mapping:
        return Field("mapping", None, description, True, items=get_args(annotation)[1])
    return Field(_type_name(annotation), default, description, False)


def _bare(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    if get_origin(annotation) is Annotated:
        return annotation.__origin__, annotation.__metadata__
    return annotation, ()


def _type_name(annotation: Any) -> str:
    annotation, marks = _bare(annotation)
    for mark in marks:
        if isinstance(mark, Written):
            return mark.name
    if get_origin(annotation) in (Union, types.UnionType):
        inner = [a for a in get_args(annotation) if a is not type(None)]
        return " or ".join(dict.fromkeys(map(_type_name, inner)))
    if get_origin(annotation) is tuple:
        return f"list of {_type_name(get_args(annotation)[0])}"
    return _NAMES.get(annotation, "mapping")
