"""Runs a few functions of a released module without importing it: no torch, no CUDA, no GPU.

Importing SGLang or FlashInfer needs a GPU host. The functions that a patch changes are plain
Python, though: taken out of the module's syntax tree, they run with stand-ins for the rest.
"""

import __future__

import ast
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign
_LATE = __future__.annotations.compiler_flag


class MissingDefinitionError(LookupError):
    """The module does not define the wanted name, or defines it in several branches."""


def extract(source: str, *names: str, given: dict[str, Any]) -> dict[str, Any]:
    """Compiles the named definitions of a module, in the order of the module, and runs them.

    A name is that of a function, a class or an assignment of the module's top level (inside `if`
    and `try` too, where only one branch defines it), or `Class.method`: the method alone, as a
    plain function that takes `self` first, under that dotted name.

    `given` holds what else they look up as globals, decorators included. Annotations are never
    evaluated. The result is the namespace they ran in: `given` (copied) and what they define.
    Raises MissingDefinitionError.
    """
    module = _parsed(source)
    namespace = dict(given)
    plain = [name for name in names if "." not in name]
    chosen = [node for name in plain for node in _find(module.body, name)]
    unique = {id(node): node for node in chosen}.values()
    _run(sorted(unique, key=lambda node: node.lineno), namespace)
    for name in names:
        if "." in name:
            namespace[name] = _method(module, name, namespace)
    return namespace


@lru_cache(maxsize=64)
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _find(body: list[ast.stmt], name: str) -> list[_Definition]:
    """All definitions of the name in the straight run of the module, else the one in a branch."""
    straight = [node for node in body if _defines(node, name)]
    if not straight:
        straight = [node for node in _branches(body) if _defines(node, name)]
        if len(straight) > 1:
            raise MissingDefinitionError(f"{name}: defined in {len(straight)} branches")
    found = [node for node in straight if isinstance(node, _Definition)]
    if not found:
        raise MissingDefinitionError(name)
    return found


def _branches(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            inner = [*node.body, *node.orelse]
            if isinstance(node, ast.Try):
                inner += [*node.finalbody, *(line for h in node.handlers for line in h.body)]
            yield from inner
            yield from _branches(inner)


def _defines(node: ast.stmt, name: str) -> bool:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return node.name == name
        case ast.Assign():
            stored = [target for whole in node.targets for target in ast.walk(whole)]
            return any(isinstance(one, ast.Name) and one.id == name for one in stored)
        case ast.AnnAssign():
            return isinstance(node.target, ast.Name) and node.target.id == name
    return False


def _method(module: ast.Module, dotted: str, namespace: dict[str, Any]) -> Any:
    *classes, method = dotted.split(".")
    body = module.body
    for name in classes:
        body = [line for node in _find(body, name) for line in getattr(node, "body", [])]
    absent = object()
    found = _find(body, method)
    if not isinstance(found[-1], ast.FunctionDef | ast.AsyncFunctionDef):
        raise MissingDefinitionError(dotted)
    before = namespace.get(method, absent)
    _run(found, namespace)
    function = namespace.pop(method)
    if before is not absent:
        namespace[method] = before
    return function


def _run(nodes: list[Any], namespace: dict[str, Any]) -> None:
    code = compile(
        ast.Module(body=list(nodes), type_ignores=[]),
        "<released>",
        "exec",
        flags=_LATE,
        dont_inherit=True,
    )
    exec(code, namespace)
