"""From a tree to the frozen models, with pydantic's complaints put in words and positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from opsctl.config.extends import suggestion
from opsctl.config.fields import Field, children, lookup
from opsctl.config.schema import Config
from opsctl.config.tree import Items, Node, Origin, Scalar, Table
from opsctl.errors import Problem


def validate(root: Table) -> tuple[Config | None, list[Problem]]:
    """The configuration, or None and everything that is wrong with it."""
    try:
        return Config.model_validate(data(root), context={"written": True}), []
    except ValidationError as error:
        return None, _problems(root, error.errors(include_url=False, include_input=False))


def data(node: Node, path: tuple[str, ...] = ()) -> Any:
    """The tree as plain data; a section that is only named (`serve:`) counts as left out."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Items):
        return [data(item) for item in node.items]
    return {
        key: data(entry.node, (*path, key))
        for key, entry in node.entries.items()
        if not _only_named(entry.node, (*path, key))
    }


def _only_named(node: Node, path: tuple[str, ...]) -> bool:
    if not isinstance(node, Scalar) or node.value is not None:
        return False
    field = lookup(path)
    return field is not None and field.section


def _problems(root: Table, errors: list[ErrorDetails]) -> list[Problem]:
    found: dict[tuple[str, ...], Problem] = {}
    for error in errors:
        path, entry_key, node = _find(root, error["loc"])
        if path in found:
            continue  # the other branches of a union say nothing new
        about_key = error["type"] == "extra_forbidden" or "[key]" in error["loc"]
        origin = entry_key if about_key and entry_key is not None else node.origin
        found[path] = origin.problem(".".join(path), _words(error, path, node))
    return list(found.values())


def _find(root: Table, loc: tuple[int | str, ...]) -> tuple[tuple[str, ...], Origin | None, Node]:
    """Follow a location as far as the tree goes; union branches in it are not in the tree."""
    path: tuple[str, ...] = ()
    key: Origin | None = None
    node: Node = root
    for part in loc:
        if isinstance(node, Table) and part in node.entries:
            entry = node.entries[str(part)]
            path, key, node = (*path, str(part)), entry.key, entry.node
        elif isinstance(node, Items) and isinstance(part, int) and part < len(node.items):
            path, key, node = (*path, str(part)), None, node.items[part]
        else:
            break
    return path, key, node


def _words(error: ErrorDetails, path: tuple[str, ...], node: Node) -> str:
    make = _WORDS.get(error["type"])
    if make is not None:
        return make(error.get("ctx", {}), path, node)
    return error["msg"].removeprefix("Value error, ")


def _unknown(_: Mapping[str, Any], path: tuple[str, ...], __: Node) -> str:
    known = children(path[:-1])
    near = suggestion(path[-1], known)
    if near:
        return "unknown key" + near
    elsewhere = [name for name in _all_keys() if name.rsplit(".", 1)[-1] == path[-1]]
    if elsewhere:
        return f"unknown key here (did you mean {elsewhere[0]}?)"
    return f"unknown key; known here: {', '.join(known)}" if known else "unknown key"


def _all_keys(prefix: tuple[str, ...] = ()) -> Iterator[str]:
    for name in children(prefix):
        yield ".".join((*prefix, name))
        yield from _all_keys((*prefix, name))


def _text(_: Mapping[str, Any], path: tuple[str, ...], node: Node) -> str:
    if isinstance(node, Scalar) and isinstance(node.value, bool):
        word = str(node.value).lower()
        return f'must be text; if the word {word} is meant, put it in quotes: "{word}"'
    if isinstance(node, Scalar) and node.value is not None:
        example = f'"127.0.0.1:{node.value}"' if path[-1:] == ("listen",) else f'"{node.value}"'
        return f"must be text, not a number; write {example}"
    return f"must be text, not {_kind(node)}"


def _kind(node: Node) -> str:
    if isinstance(node, Items):
        return "a list"
    if isinstance(node, Table):
        return "a mapping"
    match node.value:
        case None:
            return "empty"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
    return "text"


def _must_be(what: str) -> Callable[[Mapping[str, Any], tuple[str, ...], Node], str]:
    return lambda _, __, node: f"must be {what}, not {_kind(node)}"


def _bound(words: str, name: str) -> Callable[[Mapping[str, Any], tuple[str, ...], Node], str]:
    return lambda context, _, __: f"must be {words} {context[name]:g}"


def _choice(context: Mapping[str, Any], path: tuple[str, ...], node: Node) -> str:
    field: Field | None = lookup(path)
    choices = field.choices if field is not None else ()
    what = f"must be one of {', '.join(choices)}" if choices else f"must be {context['expected']}"
    if isinstance(node, Scalar) and isinstance(node.value, str):
        what += suggestion(node.value, choices)
    return what


_NUMBER = _must_be("a number")
_WHOLE = _must_be("a whole number")
_MAPPING = _must_be("a mapping (lines of `key: value`)")
_WORDS: Mapping[str, Callable[[Mapping[str, Any], tuple[str, ...], Node], str]] = {
    "extra_forbidden": _unknown,
    "missing": lambda _, __, ___: "a key is missing here",
    "string_type": _text,
    "int_type": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": _NUMBER,
    "bool_type": _must_be("true or false"),
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
    "mapping_type": _MAPPING,
    "dict_type": _MAPPING,
    "tuple_type": _must_be("a list"),
    "literal_error": _choice,
    "greater_than": _bound("more than", "gt"),
    "greater_than_equal": _bound("at least", "ge"),
    "less_than": _bound("less than", "lt"),
    "less_than_equal": _bound("at most", "le"),
}
