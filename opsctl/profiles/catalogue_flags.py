"""The flags of SGLang's server, by what `ServerArgs.add_cli_args` registers."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, KeysView
from typing import Any

from opsctl.profiles.catalogue_model import CatalogueError, Flag, Kind
from opsctl.profiles.catalogue_reader import Reader
from opsctl.profiles.catalogue_settings import CLASS, Argument, Settings
from opsctl.profiles.catalogue_static import (
    Class,
    External,
    Member,
    Scope,
    Sources,
    UnreadableError,
    keywords,
)

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


class FlagReader:
    """Reads all flags of one SGLang; `unread` collects what could not be told."""

    def __init__(self, sources: Sources) -> None:
        self.settings = Settings(sources)
        self.unread = self.settings.unread

    def flags(self) -> dict[str, Flag]:
        """Return every flag by each of its spellings, in the order of registration."""
        owner = self.settings.owner
        register = owner.inside().names.get("add_cli_args")
        if not isinstance(register, ast.FunctionDef):
            raise CatalogueError(f"{owner.scope.module.path}: {CLASS} has no add_cli_args")
        scope = Scope(owner.scope.module, register.body, owner.scope)
        found = {"help": _HELP}
        for argument in self._arguments(register.body, Reader(scope)):
            flag = self._flag(argument)
            found |= dict.fromkeys(flag.spellings, flag)
        if len(found) == 1:
            raise CatalogueError(f"{owner.scope.module.path}: no flag in {CLASS}.add_cli_args")
        return found

    def _arguments(self, body: list[ast.stmt], reader: Reader) -> Iterator[Argument]:
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

    def _loop(self, loop: ast.For, reader: Reader) -> Iterator[Argument]:
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

    def _call(self, call: ast.Call, reader: Reader) -> Iterator[Argument]:
        match call.func:
            case ast.Name(id="add_cli_args_from_dataclass"):
                yield from self.settings.arguments()
            case ast.Attribute(attr="add_argument"):
                where = f"{reader.scope.module.where}:{call.lineno}"
                try:
                    options = tuple(reader.value(node) for node in call.args)
                except UnreadableError as error:
                    self._missed(reader, call, f"a flag's name: {error}")
                    return
                if all(isinstance(o, str) and o.startswith("--") for o in options) and options:
                    yield Argument(options, keywords(call), reader, where)

    def _flag(self, argument: Argument) -> Flag:
        spellings = [option.removeprefix("--") for option in argument.options]
        ours = (s for s in spellings if s.replace("-", "_") in self.settings.fields)
        name = next(ours, spellings[0])
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

    def _kind(self, argument: Argument) -> tuple[Kind, object]:
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

    def _choices(self, argument: Argument) -> tuple[str, ...] | None:
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

    def _type(self, argument: Argument) -> str:
        given = argument.keywords.get("type")
        return _TYPES.get(ast.unparse(given), "str") if isinstance(given, ast.expr) else "str"

    def _default(self, argument: Argument, kind: Kind) -> str | None:
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
                return self.settings.default_of(name)
            case ast.Call(func=ast.Name(id="_declared_default"), args=[ast.Constant(value=name)]):
                return self.settings.default_of(str(name))
            case ast.expr():
                return reader.value(given)
        return given

    def _deprecation(self, argument: Argument) -> tuple[str | None, bool]:
        said = self._evaluated(argument, "help", quietly=True)
        said = " ".join(said.split()) if isinstance(said, str) else ""
        action = self._evaluated(argument, "action")
        if isinstance(action, Class) and action.name.startswith("Deprecated"):
            refusal = self._evaluated(argument, "error_message")
            instead = self._evaluated(argument, "new_flag")
            return str(instead or refusal or said or "nothing"), refusal is not None
        return (said, False) if _DEPRECATED.match(said) else (None, False)

    def _evaluated(self, argument: Argument, key: str, *, quietly: bool = False) -> Any:
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
            return json.dumps(sorted(value) if isinstance(value, KeysView) else value)
    raise UnreadableError(str(value))
