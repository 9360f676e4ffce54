"""The settings of SGLang's server as its sources declare them, and the flags made of them.

Since 0.5.14 most flags are fields annotated `A[type, Arg(...)]`: first of `ServerArgs` itself,
later of the classes in `arg_groups/fields`. What becomes of a field is the rule of SGLang's
`arg_utils.add_cli_args_from_dataclass`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from opsctl.profiles.catalogue_model import CatalogueError
from opsctl.profiles.catalogue_reader import Reader
from opsctl.profiles.catalogue_static import Class, Sources, UnreadableError, keywords

MODULE = "sglang.srt.server_args"
CLASS = "ServerArgs"


@dataclass(frozen=True)
class Argument:
    """One call of `add_argument`: its keywords are expressions or, from fields, values."""

    options: tuple[str, ...]
    keywords: Mapping[str, object]
    reader: Reader
    where: str


@dataclass(frozen=True)
class Field:
    """A field of the settings."""

    name: str
    annotation: ast.expr
    default: ast.expr | None
    reader: Reader
    where: str


class Settings:
    """All fields of `ServerArgs`; `unread` collects what could not be told."""

    def __init__(self, sources: Sources) -> None:
        module = sources.required(MODULE)
        node = module.scope.names.get(CLASS)
        if not isinstance(node, ast.ClassDef):
            raise CatalogueError(f"{module.path}: no class {CLASS} in it")
        self.owner = Class(node, module.scope)
        self.unread: list[str] = []
        self.fields = {entry.name: entry for entry in self._fields()}

    def _fields(self) -> Iterator[Field]:
        yield from _fields_of(self.owner)
        if "_INPUT_NAMESPACES" in self.owner.scope.names:
            for inner in Reader(self.owner.scope).name("_INPUT_NAMESPACES"):
                yield from _fields_of(inner)

    def default_of(self, name: str) -> object:
        """Return the default of a field; raises UnreadableError."""
        entry = self.fields.get(name)
        if entry is None or entry.default is None:
            return None
        match entry.default:
            case ast.Call(func=ast.Name(id="field") | ast.Attribute(attr="field")) as call:
                given = keywords(call)
                if "default" in given:
                    return entry.reader.value(given["default"])
                match given.get("default_factory"):
                    case ast.Lambda(body=body):
                        return entry.reader.value(body)
                    case ast.Name(id="list" | "tuple" | "set"):
                        return []
                    case ast.Name(id="dict"):
                        return {}
        return entry.reader.value(entry.default)

    def arguments(self) -> Iterator[Argument]:
        """Yield the flags that fields make."""
        for entry in self.fields.values():
            match entry.annotation:
                case ast.Subscript(
                    value=ast.Name(id="A" | "Annotated"),
                    slice=ast.Tuple(elts=[kind, *extras]),
                ):
                    given = next(filter(None, map(_given, extras)), None)
                    if given is not None and not self._plain(entry, given.get("no_cli")):
                        yield self._argument(entry, kind, given)

    def _argument(self, entry: Field, kind: ast.expr, given: Mapping[str, ast.expr]) -> Argument:
        name = self._plain(entry, given.get("cli_name")) or "--" + entry.name.replace("_", "-")
        options = (name, *(self._plain(entry, given.get("aliases")) or ()))
        made = {"help": given.get("help"), **_registered(entry, kind, given)}
        if entry.default is None:
            made.setdefault("required", not made.keys() & {"action", "nargs"})
        else:
            try:
                made["default"] = self.default_of(entry.name)
            except UnreadableError as error:
                self.unread.append(f"{entry.where}: the default of {name}: {error}")
        return Argument(options, made, entry.reader, entry.where)

    def _plain(self, entry: Field, node: ast.expr | None) -> Any:
        try:
            return None if node is None else entry.reader.value(node)
        except UnreadableError as error:
            self.unread.append(f"{entry.where}: {entry.name}: {error}")
            return None


def _fields_of(owner: object) -> Iterator[Field]:
    """Yield the fields of a class and, before them, of the classes it is made from."""
    if not isinstance(owner, Class):
        return
    reader = Reader(owner.scope)
    for base in owner.node.bases:
        try:
            yield from _fields_of(reader.value(base))
        except UnreadableError:
            continue
    for statement in owner.node.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind, value=default):
                where = f"{owner.scope.module.where}:{statement.lineno}"
                yield Field(name, kind, default, reader, where)


def _given(extra: ast.expr) -> Mapping[str, ast.expr] | None:
    """What an annotation says of a flag: `Arg(...)`, or only the help text."""
    match extra:
        case ast.Call(func=ast.Name(id="Arg"), args=[said, *_]):
            return {"help": said, **keywords(extra)}
        case ast.Call(func=ast.Name(id="Arg")):
            return {"help": ast.Constant(""), **keywords(extra)}
        case ast.Constant(value=str()) | ast.BinOp() | ast.JoinedStr():
            return {"help": extra}
    return None


def _registered(entry: Field, kind: ast.expr, given: Mapping[str, ast.expr]) -> dict[str, object]:
    """Say how `add_argument` is called for a field."""
    if "action" in given:
        extra = given.get("action_kwargs")
        return {"action": given["action"], **(_pairs(extra) if isinstance(extra, ast.Dict) else {})}
    reader, inner = _without_optional(entry.reader, kind)
    made: dict[str, object] = {
        key: given[key] for key in ("choices", "nargs", "required") if key in given
    }
    made["type"] = given.get("type_parser", inner)
    match inner:
        case ast.Subscript(value=ast.Name(id="Literal"), slice=literal):
            values = literal.elts if isinstance(literal, ast.Tuple) else [literal]
            choices = [reader.value(value) for value in values]
            made.setdefault("choices", choices)
            if "type_parser" not in given:
                made["type"] = ast.Name(type(choices[0]).__name__, ast.Load())
        case ast.Subscript(value=ast.Name(id="List" | "list"), slice=element):
            if "type_parser" not in given:
                made.setdefault("nargs", "+")
                made["type"] = element
        case ast.Name(id="bool") if "type_parser" not in given:
            return {"action": "store_true"}
    return made


def _pairs(node: ast.Dict) -> dict[str, ast.expr]:
    pairs = zip(node.keys, node.values, strict=True)
    return {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}


def _without_optional(reader: Reader, kind: ast.expr) -> tuple[Reader, ast.expr]:
    """Strip `Optional[X]`, `Union[X, None]` and `X | None`, and follow names of types."""
    match kind:
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return _without_optional(reader, inner)
        case ast.Subscript(value=ast.Name(id="Union"), slice=ast.Tuple(elts=members)):
            pass
        case ast.BinOp(op=ast.BitOr()):
            members = list(_alternatives(kind))
        case ast.Name(id=name) if name not in {"str", "int", "float", "bool"}:
            found = reader.definition(name)
            return (reader, kind) if found is None else _without_optional(*found)
        case _:
            return reader, kind
    rest = [m for m in members if not (isinstance(m, ast.Constant) and m.value is None)]
    return _without_optional(reader, rest[0]) if len(rest) == 1 else (reader, kind)


def _alternatives(kind: ast.expr) -> Iterator[ast.expr]:
    if isinstance(kind, ast.BinOp) and isinstance(kind.op, ast.BitOr):
        yield from _alternatives(kind.left)
        yield from _alternatives(kind.right)
    else:
        yield kind
