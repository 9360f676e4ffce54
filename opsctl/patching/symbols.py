"""Which functions, classes and names of a module differ between two texts. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from itertools import chain

IMPORTS, REST = "(imports)", "(module)"


def changed(before: bytes, after: bytes) -> frozenset[str]:
    """Return the dotted names that differ; raises SyntaxError or ValueError.

    Methods are told apart from their class. Imports count as "(imports)", other statements of the
    module's body as "(module)". Comments and layout do not count.
    """
    old, new = _symbols(ast.parse(before)), _symbols(ast.parse(after))
    return frozenset(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))


def _symbols(tree: ast.Module) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, text in _entries(tree.body, ""):
        found.setdefault(name, []).append(text)
    return found


def _entries(body: Iterable[ast.stmt], prefix: str) -> Iterator[tuple[str, str]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            head = [*node.bases, *node.keywords, *node.decorator_list]
            yield prefix + node.name, " ".join(ast.dump(x) for x in head)
            yield from _entries(node.body, f"{prefix}{node.name}.")
        else:
            yield prefix + _name(node), ast.dump(node)


def _name(node: ast.stmt) -> str:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name
    if isinstance(node, ast.Import | ast.ImportFrom):
        return IMPORTS
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = chain.from_iterable(ast.walk(target) for target in targets)
        return ", ".join(x.id for x in names if isinstance(x, ast.Name)) or REST
    return REST
