"""Read the value of Python expressions from source files, without running any of them.

Enough of the language for tables of constants: literals, names (through imports of the same
package), attributes of classes, members of enumerations, the usual conversions, comprehensions
over what can be read, and functions of no argument, by their last `return`. Of a name bound under
a condition the value under the condition is taken. Everything else raises `UnreadableError`.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, KeysView
from dataclasses import dataclass
from typing import Any

from opsctl.profiles.catalogue_static import (
    Class,
    External,
    Function,
    Member,
    Module,
    Scope,
    UnreadableError,
)

DEPTH = 40
_PLAIN: dict[str, Callable[..., Any]] = {
    "list": list,
    "tuple": tuple,
    "set": lambda value=(): dict.fromkeys(value).keys(),
    "frozenset": lambda value=(): dict.fromkeys(value).keys(),
    "sorted": sorted,
    "dict": dict,
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "len": len,
}
_METHODS: dict[str, type | tuple[type, ...]] = {
    "keys": dict,
    "values": dict,
    "items": dict,
    "copy": (dict, list),
    "lower": str,
    "upper": str,
    "strip": str,
    "replace": str,
    "join": str,
}


def _product(left: object, right: object) -> int | float:
    """Numbers only: a text or a list times a number could be of any size."""
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left * right
    raise TypeError("a product of other things than numbers")


def _power(base: object, exponent: object) -> int:
    if isinstance(base, int) and isinstance(exponent, int) and abs(base) <= 1024 >= exponent >= 0:
        return int(base**exponent)
    raise TypeError("a power of any size")


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: _product,
    ast.Pow: _power,
    ast.LShift: lambda number, bits: number * _power(2, bits),
}


class Reader:
    """Evaluates expressions in a scope."""

    def __init__(self, scope: Scope, depth: int = 0) -> None:
        self.scope = scope
        self.depth = depth
        if depth > DEPTH:
            raise UnreadableError("defined in terms of itself")

    def value(self, node: ast.expr) -> Any:
        """Return what an expression evaluates to; raises UnreadableError."""
        return settled(self._value(node))

    def _value(self, node: ast.expr) -> Any:
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise UnreadableError(ast.unparse(node))
        try:
            return method(node)
        except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
            raise UnreadableError(f"{ast.unparse(node)}: {error}") from error

    def name(self, name: str) -> Any:
        """Return what a name stands for here."""
        scope: Scope | None = self.scope
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            if name in scope.names:
                found = Reader(scope, self.depth + 1)._bind(name, scope.names[name])
                scope.values[name] = found
                return found
            scope = scope.outer
        return External(name)

    def _bind(self, name: str, statement: ast.stmt) -> Any:
        match statement:
            case ast.ClassDef():
                return Class(statement, self.scope)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return Function(statement, self.scope)
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                return self._added(name, self._value(value))
            case ast.Import(names=names):
                return self._import(name, names)
            case ast.ImportFrom():
                return self._import_from(name, statement)
        raise UnreadableError(name)

    def _added(self, name: str, value: Any) -> Any:
        """Apply what later statements of the same body put into a list or set."""
        for addition in self.scope.additions.get(name, ()):
            more = self._value(addition)
            value = value + more if isinstance(value, list) else dict.fromkeys([*value, *more])
        return value

    def _import(self, name: str, names: list[ast.alias]) -> Any:
        for alias in names:
            if (alias.asname or alias.name.split(".")[0]) == name:
                return External(alias.name if alias.asname else name)
        raise UnreadableError(name)

    def _import_from(self, name: str, statement: ast.ImportFrom) -> Any:
        original = next(a.name for a in statement.names if (a.asname or a.name) == name)
        source = self._absolute(statement)
        sources = self.scope.module.sources
        if source.split(".")[0] != self.scope.module.where.split("/", maxsplit=1)[0]:
            return External(f"{source}.{original}")
        module = sources.module(source)
        if module is None or original not in module.scope.names:
            inner = sources.module(f"{source}.{original}")
            if inner is None:
                raise UnreadableError(f"{source}.{original} is not in this installation")
            return inner
        return Reader(module.scope, self.depth + 1).name(original)

    def _absolute(self, statement: ast.ImportFrom) -> str:
        if not statement.level:
            return statement.module or ""
        parts = self.scope.module.where.removesuffix(".py").split("/")
        package = parts[: len(parts) - statement.level]
        return ".".join([*package, *([statement.module] if statement.module else [])])

    def definition(self, name: str) -> tuple[Reader, ast.expr] | None:
        """Return the expression behind a name, and where to read it; for aliases of types."""
        scope: Scope | None = self.scope
        while scope is not None and name not in scope.names:
            scope = scope.outer
        if scope is None:
            return None
        reader = Reader(scope, self.depth + 1)
        match scope.names[name]:
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                return reader, value
            case ast.ImportFrom() as statement:
                module = scope.module.sources.module(reader._absolute(statement))
                original = next(a.name for a in statement.names if (a.asname or a.name) == name)
                if module is not None:
                    return Reader(module.scope, self.depth + 1).definition(original)
        return None

    def attribute(self, holder: object, name: str) -> Any:
        """Return an attribute of something read before."""
        match holder:
            case External():
                return External(f"{holder.name}.{name}")
            case Member():
                return {"name": holder.name, "value": holder.value}[name]
            case Module():
                return Reader(holder.scope, self.depth + 1).name(name)
            case Class():
                return self._of_class(holder, name)
        raise UnreadableError(f".{name}")

    def _of_class(self, holder: Class, name: str) -> Any:
        inside = holder.inside()
        if name not in inside.names:
            for base in holder.node.bases:
                parent = Reader(holder.scope, self.depth + 1)._value(base)
                if isinstance(parent, Class):
                    return Reader(holder.scope, self.depth + 1).attribute(parent, name)
            raise UnreadableError(f"{holder.name}.{name}")
        value = Reader(inside, self.depth + 1).name(name)
        return Member(name, value) if holder.is_enumeration() else value

    def call(self, function: Function) -> Any:
        """Return what a function without arguments returns in its last plain statement."""
        last = function.node.body[-1]
        if not isinstance(last, ast.Return) or last.value is None:
            raise UnreadableError(f"{function.node.name}()")
        scope = Scope(function.scope.module, function.node.body, function.scope)
        return Reader(scope, self.depth + 1)._value(last.value)

    # One method for each kind of expression, named by its node.

    def _constant(self, node: ast.Constant) -> Any:
        return node.value

    def _name(self, node: ast.Name) -> Any:
        return self.name(node.id)

    def _attribute(self, node: ast.Attribute) -> Any:
        return self.attribute(self._value(node.value), node.attr)

    def _list(self, node: ast.List) -> list[Any]:
        return list(self._elements(node.elts))

    def _tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        return tuple(self._elements(node.elts))

    def _set(self, node: ast.Set) -> Any:
        return dict.fromkeys(self._elements(node.elts)).keys()

    def _elements(self, nodes: list[ast.expr]) -> Iterator[Any]:
        for node in nodes:
            if isinstance(node, ast.Starred):
                yield from self.iterable(node.value)
            else:
                yield self._value(node)

    def _dict(self, node: ast.Dict) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                result.update(self._value(value))
            else:
                result[self._value(key)] = Deferred(self, value)
        return result

    def _subscript(self, node: ast.Subscript) -> Any:
        index = self._value(node.slice)
        holder = self._value(node.value)
        if isinstance(holder, list | tuple | dict | str) and isinstance(index, int | str):
            try:
                return settled(holder[index])  # type: ignore[index]
            except IndexError as error:
                raise UnreadableError(ast.unparse(node)) from error
        raise UnreadableError(ast.unparse(node))

    def _joinedstr(self, node: ast.JoinedStr) -> str:
        return "".join(
            str(self._value(part.value if isinstance(part, ast.FormattedValue) else part))
            for part in node.values
        )

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        value = self._value(node.operand)
        if isinstance(node.op, ast.USub):
            return -value
        if isinstance(node.op, ast.Not) and isinstance(value, bool):
            return not value
        raise UnreadableError(ast.unparse(node))

    def _binop(self, node: ast.BinOp) -> Any:
        left, right = self._value(node.left), self._value(node.right)
        if isinstance(node.op, ast.BitOr) and isinstance(left, KeysView):
            return dict.fromkeys([*left, *right]).keys()
        apply = _OPERATORS.get(type(node.op))
        if apply is None or not isinstance(right, int | float | str | list | tuple):
            raise UnreadableError(ast.unparse(node))
        return apply(left, right)

    def _listcomp(self, node: ast.ListComp) -> list[Any]:
        return list(self._comprehension(node))

    def _generatorexp(self, node: ast.GeneratorExp) -> list[Any]:
        return list(self._comprehension(node))

    def _setcomp(self, node: ast.SetComp) -> Any:
        return dict.fromkeys(self._comprehension(node)).keys()

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> Iterator[Any]:
        generator = node.generators[0]
        target = generator.target
        if len(node.generators) > 1 or generator.ifs or not isinstance(target, ast.Name):
            raise UnreadableError(ast.unparse(node))
        for item in self.iterable(generator.iter):
            inner = Scope(self.scope.module, [], self.scope, {target.id: item})
            yield Reader(inner, self.depth + 1)._value(node.elt)

    def _call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
            holder = self._value(node.func.value)
            if isinstance(holder, _METHODS[node.func.attr]):
                if node.func.attr in {"values", "items"}:
                    holder = settled(holder)
                return getattr(holder, node.func.attr)(*map(self._value, node.args))
        function = self._value(node.func)
        if isinstance(function, Function) and not node.args and not node.keywords:
            return self.call(function)
        if isinstance(function, External) and function.name in _PLAIN and not node.keywords:
            return _PLAIN[function.name](*map(self.iterable, node.args))
        raise UnreadableError(ast.unparse(node))

    def iterable(self, node: ast.expr) -> Any:
        """Return an expression's value, with the members where that is an enumeration."""
        value = self._value(node)
        if isinstance(value, Class) and value.is_enumeration():
            return [self.attribute(value, name) for name in value.members()]
        return value


@dataclass(frozen=True)
class Deferred:
    """A dictionary's entry, read when asked for: often only the keys matter, and the values are
    classes of a dozen other modules.
    """

    reader: Reader
    node: ast.expr


def settled(value: Any) -> Any:
    """Read what was put off; raises UnreadableError."""
    if isinstance(value, Deferred):
        return value.reader.value(value.node)
    if isinstance(value, dict):
        return {key: settled(entry) for key, entry in value.items()}
    return value
