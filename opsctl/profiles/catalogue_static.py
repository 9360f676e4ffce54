"""Source files, parsed: modules, and the names bound in them; nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from opsctl.profiles.catalogue_model import CatalogueError

AGAIN = "install that SGLang again, or name its version with --sglang-version"
_ENUMERATIONS = {"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"}


class UnreadableError(Exception):
    """The expression's value depends on more than these source files."""


@dataclass(frozen=True)
class Member:
    """A member of an enumeration."""

    name: str
    value: object


@dataclass(frozen=True)
class External:
    """Something of another package, known by its dotted name only."""

    name: str


@dataclass(eq=False)
class Scope:
    """The names bound in a module, a class or a function."""

    module: Module
    body: list[ast.stmt]
    outer: Scope | None = None
    values: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names: dict[str, ast.stmt] = {}
        for statement in _flat(self.body):
            for name in _bound(statement):
                # A class that is wrapped afterwards (`X = defstruct("X", ...)`) stays the class.
                if not (isinstance(self.names.get(name), ast.ClassDef) and _is_assign(statement)):
                    self.names[name] = statement
        self.additions = _additions(self.body)


@dataclass(eq=False)
class Class:
    """A class found in the sources."""

    node: ast.ClassDef
    scope: Scope

    @property
    def name(self) -> str:
        """Its name."""
        return self.node.name

    def is_enumeration(self) -> bool:
        """Whether it is an `Enum` of any kind."""
        return any(ast.unparse(base).split(".")[-1] in _ENUMERATIONS for base in self.node.bases)

    def inside(self) -> Scope:
        """Return the names bound in its body."""
        return Scope(self.scope.module, self.node.body, self.scope)

    def members(self) -> list[str]:
        """Return the names of an enumeration's members, in order."""
        return [
            name
            for name, statement in self.inside().names.items()
            if isinstance(statement, ast.Assign) and not name.startswith("_")
        ]


@dataclass(eq=False)
class Function:
    """A function found in the sources."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    scope: Scope


@dataclass(eq=False)
class Module:
    """One source file, parsed."""

    path: Path
    where: str
    tree: ast.Module
    sources: Sources

    def __post_init__(self) -> None:
        self.scope = Scope(self, self.tree.body)


class Sources:
    """The source files under one folder (`site-packages`, or an unpacked wheel)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._modules: dict[str, Module | None] = {}

    def module(self, dotted: str) -> Module | None:
        """Return a module by its dotted name; None where there is no such file."""
        if dotted not in self._modules:
            base = self.root.joinpath(*dotted.split("."))
            self._modules[dotted] = None
            for path in (base.with_suffix(".py"), base / "__init__.py"):
                if path.is_file():
                    self._modules[dotted] = self._parse(path)
                    break
        return self._modules[dotted]

    def required(self, dotted: str) -> Module:
        """Return a module that every SGLang has; raises CatalogueError."""
        module = self.module(dotted)
        if module is None:
            raise CatalogueError(
                f"{self.root}: SGLang is incomplete there: {dotted} is missing", hint=AGAIN
            )
        return module

    def _parse(self, path: Path) -> Module:
        where = path.relative_to(self.root).as_posix()
        try:
            tree = ast.parse(path.read_bytes(), filename=where)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
            raise CatalogueError(
                f"{path}{line}: not readable as Python: {error}",
                hint=AGAIN,
            ) from error
        except OSError as error:
            raise CatalogueError(f"{path}: {error.strerror}") from error
        return Module(path, where, tree, self)


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run in this scope, those of `if`, `try` and `with` included."""
    for statement in body:
        yield statement
        match statement:
            case ast.If(body=inner, orelse=other):
                yield from _flat([*other, *inner])
            case ast.Try(body=inner):
                yield from _flat(inner)
            case ast.With(body=inner):
                yield from _flat(inner)


def _is_assign(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign | ast.AnnAssign)


def _additions(body: list[ast.stmt]) -> dict[str, list[ast.expr]]:
    """`NAME += [...]`, `NAME.extend([...])` and `NAME.append(x)` that run in any case."""
    found: dict[str, list[ast.expr]] = {}
    for statement in body:
        match statement:
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value):
                found.setdefault(name, []).append(value)
            case ast.Expr(
                value=ast.Call(
                    func=ast.Attribute(value=ast.Name(id=name), attr=method), args=[value]
                )
            ):
                if method in {"extend", "update"}:
                    found.setdefault(name, []).append(value)
                elif method in {"append", "add"}:
                    found.setdefault(name, []).append(ast.List([value], ast.Load()))
    return found


def _bound(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.Assign(targets=targets):
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            yield name
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.ImportFrom(names=names):
            yield from (alias.asname or alias.name for alias in names)
        case ast.Import(names=names):
            yield from (alias.asname or alias.name.split(".")[0] for alias in names)


def keywords(node: ast.Call) -> Mapping[str, ast.expr]:
    """Return the keyword arguments of a call that are spelled out."""
    return {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
