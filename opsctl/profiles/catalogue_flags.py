"""The flags of SGLang's server, from its sources: `add_argument` calls and annotated fields.

Up to 0.5.13 every flag is an `add_argument` call of `ServerArgs.add_cli_args`; since then most are
fields annotated `A[type, Arg(...)]`, first of that class, later of those in `arg_groups/fields`.
What becomes of a field is the rule of SGLang's `arg_utils.add_cli_args_from_dataclass`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, KeysView, Mapping
from dataclasses import dataclass
from typing import Any

from opsctl.profiles.catalogue_model import CatalogueError, Flag, Kind
from opsctl.profiles.catalogue_static import (
    Class,
    External,
    Member,
    Reader,
    Scope,
    Sources,
    UnreadableError,
    keywords,
    settled,
)

MODULE = "sglang.srt.server_args"
CLASS = "ServerArgs"
_SWITCHES = {"store_true", "store_false", "store_const", "append_const", "count", "help", "version"}
_TYPES = {
    "int": "int",
    "float": "float",
    "human_readable_int": "size",
    "json.loads": "json",
    "json_list_type": "json",
    "parse_cuda_graph_config_arg": "json",
}
# "Deprecated. Use ...", "[Deprecated] ...", "(Deprecated: ...)", "Note: --x is deprecated now."
_DEPRECATED = re.compile(r"\W*(note: \S+ is )?deprecated\b", re.IGNORECASE)
_HELP = Flag("help", (), "switch", None, None, False, "false", None, "argparse:0")
_Keywords = Mapping[str, object]


@dataclass(frozen=True)
class _Argument:
    """One call of `add_argument`: its keywords are expressions or, from fields, values."""

    options: tuple[str, ...]
    keywords: _Keywords
    reader: Reader
    where: str


@dataclass(frozen=True)
class _Field:
    """A field of the server's settings."""

    name: str
    annotation: ast.expr
    default: ast.expr | None
    reader: Reader
    where: str


class FlagReader:
    """Reads all flags of one SGLang; `unread` collects what could not be told."""

    def __init__(self, sources: Sources) -> None:
        module = sources.module(MODULE)
        if module is None:
            raise CatalogueError(
                f"{sources.root}: SGLang is incomplete there: {MODULE} is missing",
                hint="install that SGLang again",
            )
        self.reader = Reader(module.scope)
        node = module.scope.names.get(CLASS)
        if not isinstance(node, ast.ClassDef):
            raise CatalogueError(f"{sources.root}: no class {CLASS} in {module.where}")
        self.settings = Class(node, module.scope)
        self.unread: list[str] = []
        self.fields = {entry.name: entry for entry in self._fields()}

    def flags(self) -> dict[str, Flag]:
        """Return every flag by each of its spellings, in the order of registration."""
        register = next(
            (
                statement
                for statement in self.settings.node.body
                if isinstance(statement, ast.FunctionDef) and statement.name == "add_cli_args"
            ),
            None,
        )
        if register is None:
            raise CatalogueError(f"{MODULE}: {CLASS} has no add_cli_args")
        scope = Scope(self.settings.scope.module, register.body, self.settings.scope)
        found = {"help": _HELP}
        for argument in self._arguments(register.body, Reader(scope)):
            flag = self._flag(argument)
            found |= dict.fromkeys(flag.spellings, flag)
        if len(found) == 1:
            raise CatalogueError(f"{MODULE}: no flag found in {CLASS}.add_cli_args")
        return found

    # Fields of the settings.

    def _fields(self) -> Iterator[_Field]:
        yield from self._fields_of(self.settings)
        try:
            for inner in self.reader.name("_INPUT_NAMESPACES"):
                yield from self._fields_of(inner)
        except (UnreadableError, TypeError):
            return  # releases up to 0.5.2x declare all fields in the class itself

    def _fields_of(self, owner: Class) -> Iterator[_Field]:
        reader = Reader(owner.scope)
        for base in owner.node.bases:
            try:
                parent = reader.value(base)
            except UnreadableError:
                continue
            if isinstance(parent, Class):
                yield from self._fields_of(parent)
        for statement in owner.node.body:
            match statement:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=kind, value=default):
                    where = f"{owner.scope.module.where}:{statement.lineno}"
                    yield _Field(name, kind, default, reader, where)

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

    # Registrations.

    def _arguments(self, body: list[ast.stmt], reader: Reader) -> Iterator[_Argument]:
        for statement in body:
            match statement:
                case ast.Expr(value=ast.Call() as call) | ast.Assign(value=ast.Call() as call):
                    yield from self._call(call, reader)
                case ast.For():
                    yield from self._loop(statement, reader)
                case ast.If(body=inner, orelse=other):
                    yield from self._arguments([*inner, *other], reader)
                case ast.With(body=inner) | ast.Try(body=inner):
                    yield from self._arguments(inner, reader)

    def _loop(self, loop: ast.For, reader: Reader) -> Iterator[_Argument]:
        try:
            items = list(reader.iterable(loop.iter))
        except (UnreadableError, TypeError) as error:
            self._missed(reader, loop, f"flags added in a loop: {error}")
            return
        names = [node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)]
        for item in items:
            values = dict(zip(names, item if len(names) > 1 else (item,), strict=False))
            scope = Scope(reader.scope.module, loop.body, reader.scope, values)
            yield from self._arguments(loop.body, Reader(scope))

    def _call(self, call: ast.Call, reader: Reader) -> Iterator[_Argument]:
        match call.func:
            case ast.Name(id="add_cli_args_from_dataclass"):
                yield from filter(None, map(self._of_field, self.fields.values()))
            case ast.Attribute(attr="add_argument"):
                where = f"{reader.scope.module.where}:{call.lineno}"
                try:
                    options = tuple(reader.value(node) for node in call.args)
                except UnreadableError as error:
                    self._missed(reader, call, f"a flag's name: {error}")
                    return
                yield _Argument(options, keywords(call), reader, where)

    def _of_field(self, entry: _Field) -> _Argument | None:
        match entry.annotation:
            case ast.Subscript(
                value=ast.Name(id="A" | "Annotated"),
                slice=ast.Tuple(elts=[kind, *extras]),
            ):
                pass
            case _:
                return None
        for extra in extras:
            match extra:
                case ast.Call(func=ast.Name(id="Arg")):
                    given: dict[str, Any] = dict(keywords(extra))
                    if extra.args:
                        given["help"] = extra.args[0]
                    return self._of_annotated(entry, kind, given)
                case ast.Constant(value=str()) | ast.BinOp() | ast.JoinedStr():
                    return self._of_annotated(entry, kind, {"help": extra})
        return None

    def _of_annotated(
        self, entry: _Field, kind: ast.expr, given: dict[str, Any]
    ) -> _Argument | None:
        if self._plain(entry, given.get("no_cli")):
            return None
        name = self._plain(entry, given.get("cli_name")) or "--" + entry.name.replace("_", "-")
        options = (name, *(self._plain(entry, given.get("aliases")) or ()))
        made: dict[str, object] = {"help": given.get("help")}
        made |= self._settings(entry, kind, given)
        if entry.default is not None:
            try:
                made["default"] = self.default_of(entry.name)
            except UnreadableError as error:
                self.unread.append(f"{entry.where}: the default of {name}: {error}")
        elif not ({"action", "nargs"} & made.keys()):
            made["required"] = True
        return _Argument(options, made, entry.reader, entry.where)

    def _settings(self, entry: _Field, kind: ast.expr, given: dict[str, Any]) -> dict[str, object]:
        """Say how `add_argument` would be called for a field, as SGLang's `arg_utils` does."""
        if "action" in given:
            extra = given.get("action_kwargs")
            more = dict(self._pairs(extra)) if isinstance(extra, ast.Dict) else {}
            return {"action": given["action"], **more}
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
            case ast.Name(id="bool"):
                return {"action": "store_true"}
        return made

    def _pairs(self, node: ast.Dict) -> Iterator[tuple[str, ast.expr]]:
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, value

    # From a registration to a flag.

    def _flag(self, argument: _Argument) -> Flag:
        spellings = tuple(option.removeprefix("--") for option in argument.options)
        name = next((s for s in spellings if s.replace("-", "_") in self.fields), spellings[0])
        kind, nargs = self._kind(argument)
        value = kind == "value"
        deprecated, refused = self._deprecation(argument)
        return Flag(
            name=name,
            aliases=tuple(spelling for spelling in spellings if spelling != name),
            kind=kind,
            choices=self._choices(argument) if value else None,
            type=self._type(argument) if value else None,
            many=value and nargs not in {None, "?"},
            default=self._default(argument, kind),
            deprecated=deprecated,
            where=argument.where,
            bare=value and nargs in {"?", "*"},
            required=bool(self._evaluated(argument, "required")),
            refused=refused,
        )

    def _kind(self, argument: _Argument) -> tuple[Kind, object]:
        nargs = self._evaluated(argument, "nargs")
        action = self._evaluated(argument, "action")
        match action:
            case str():
                return ("switch" if action in _SWITCHES else "value"), nargs
            case External() if action.name.endswith("BooleanOptionalAction"):
                return "optional-switch", nargs
            case Class():
                if "nargs" not in argument.keywords:
                    nargs = _own_nargs(action)
                return ("switch" if nargs == 0 else "value"), nargs
        return "value", nargs

    def _choices(self, argument: _Argument) -> tuple[str, ...] | None:
        given = argument.keywords.get("choices")
        if given is None:
            return None
        try:
            found: Any = argument.reader.iterable(given) if isinstance(given, ast.expr) else given
            texts = [as_text(choice) for choice in found]
        except (UnreadableError, TypeError) as error:
            self.unread.append(f"{argument.where}: the choices of {argument.options[0]}: {error}")
            return None
        return tuple(dict.fromkeys(text for text in texts if text is not None))

    def _type(self, argument: _Argument) -> str:
        given = argument.keywords.get("type")
        return _TYPES.get(ast.unparse(given), "str") if isinstance(given, ast.expr) else "str"

    def _default(self, argument: _Argument, kind: Kind) -> str | None:
        given = argument.keywords.get("default")
        if given is None:
            return "false" if kind == "switch" else None
        try:
            return as_text(self._default_value(argument.reader, given))
        except UnreadableError as error:
            self.unread.append(f"{argument.where}: the default of {argument.options[0]}: {error}")
            return None

    def _default_value(self, reader: Reader, given: object) -> object:
        match given:
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner == CLASS:
                return self.default_of(name)
            case ast.Call(func=ast.Name(id="_declared_default"), args=[ast.Constant(value=name)]):
                return self.default_of(str(name))
            case ast.expr():
                return reader.value(given)
        return given

    def _deprecation(self, argument: _Argument) -> tuple[str | None, bool]:
        said = self._evaluated(argument, "help", quietly=True)
        said = " ".join(said.split()) if isinstance(said, str) else ""
        action = self._evaluated(argument, "action")
        if isinstance(action, Class) and action.name.startswith("Deprecated"):
            refusal = self._evaluated(argument, "error_message")
            instead = self._evaluated(argument, "new_flag")
            return str(instead or refusal or said or "nothing"), refusal is not None
        return (said, False) if _DEPRECATED.match(said) else (None, False)

    def _evaluated(self, argument: _Argument, key: str, *, quietly: bool = False) -> Any:
        given = argument.keywords.get(key)
        if not isinstance(given, ast.expr):
            return given
        try:
            return argument.reader.value(given)
        except UnreadableError as error:
            if not quietly:
                what = f"{key} of {argument.options[0]}"
                self.unread.append(f"{argument.where}: {what}: {error}")
            return None

    def _plain(self, entry: _Field, node: Any) -> Any:
        try:
            return None if node is None else entry.reader.value(node)
        except UnreadableError as error:
            self.unread.append(f"{entry.where}: {entry.name}: {error}")
            return None

    def _missed(self, reader: Reader, node: ast.stmt | ast.expr, what: str) -> None:
        self.unread.append(f"{reader.scope.module.where}:{node.lineno}: {what}")


def _own_nargs(action: Class) -> object:
    """The `nargs` that an action's class sets by itself, as a default of its `__init__`."""
    for statement in action.node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            arguments = statement.args
            named = [*arguments.posonlyargs, *arguments.args]
            pairs = [
                *zip(reversed(named), reversed(arguments.defaults), strict=False),
                *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
            ]
            for name, default in pairs:
                if name.arg == "nargs" and isinstance(default, ast.Constant):
                    return default.value
    return None


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


def as_text(value: object) -> str | None:
    """Write a default or a choice as one would type it; None for none."""
    match value:
        case None | External(name="argparse.SUPPRESS"):
            return None
        case bool():
            return json.dumps(value)
        case str() | int() | float():
            return str(value)
        case Member():
            return as_text(value.value)
        case list() | tuple() | dict() | KeysView():
            return json.dumps(sorted(value) if isinstance(value, KeysView) else settled(value))
    raise UnreadableError(str(value))
