"""The environment variables that an SGLang reads, from its sources."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from opsctl.profiles.catalogue_flags import as_text
from opsctl.profiles.catalogue_reader import Reader
from opsctl.profiles.catalogue_static import (
    Function,
    Module,
    Sources,
    UnreadableError,
    keywords,
)

MODULE = "sglang.srt.environ"
_USE = re.compile(rb"""SGL(?:ANG)?_[A-Z0-9_]*[A-Z0-9](?=["'])""")
_SEARCHED = ("srt", "jit_kernel", "kernels")
_WARNINGS = {"_print_deprecated_env", "_warn_deprecated_env_to_cli_flag"}


def environment(sources: Sources) -> tuple[dict[str, str | None], dict[str, str]]:
    """Return the variables with their defaults, and what is said of the deprecated ones."""
    module = sources.required(MODULE)
    deprecated = dict(_deprecated(module))
    declared = dict(_declared(module, deprecated))
    used = used_in(sources.root / "sglang", deprecated.keys())
    return dict.fromkeys(sorted(used)) | declared, deprecated


def _declared(module: Module, deprecated: dict[str, str]) -> Iterator[tuple[str, str | None]]:
    reader = Reader(module.scope)
    for owner in module.tree.body:
        if not isinstance(owner, ast.ClassDef):
            continue
        for statement in owner.body:
            match statement:
                case ast.Assign(
                    targets=[ast.Name(id=name)],
                    value=ast.Call(func=ast.Name(id=kind)) as call,
                ) if kind.startswith("Env"):
                    yield name, _default(reader, call)
                    alias = keywords(call).get("deprecated_name")
                    if isinstance(alias, ast.Constant):
                        deprecated[str(alias.value)] = f"use {name}"
                        yield str(alias.value), None


def _default(reader: Reader, call: ast.Call) -> str | None:
    given = call.args[0] if call.args else keywords(call).get("default")
    try:
        return None if given is None else as_text(reader.value(given))
    except UnreadableError:
        return None  # worked out when SGLang runs: from the platform, or another variable


def _deprecated(module: Module) -> Iterator[tuple[str, str]]:
    reader = Reader(module.scope)
    rest = [node for node in module.tree.body if not isinstance(node, ast.ClassDef)]
    for node in ast.walk(ast.Module(rest, [])):
        match node:
            case ast.Call(func=ast.Name(id=function)) if function in _WARNINGS:
                yield from _warned(reader, function, node)
            case (
                ast.Assign(targets=[ast.Name(id="_DEPRECATED_ENVS")], value=ast.Dict() as table)
                | ast.AnnAssign(target=ast.Name(id="_DEPRECATED_ENVS"), value=ast.Dict() as table)
            ):
                yield from _table(reader, table)
            case ast.Assign(
                targets=[ast.Name(id="_deprecated_ms_to_s")], value=ast.Dict() as table
            ):
                for old, new in reader.value(table).items():
                    yield old, f"use {new}, which is in seconds"


def _warned(reader: Reader, function: str, call: ast.Call) -> Iterator[tuple[str, str]]:
    """A call of one of SGLang's two helpers; their parameters changed places, so by name."""
    helper = reader.name(function)
    if not isinstance(helper, Function):
        return
    named = dict(zip([a.arg for a in helper.node.args.args], call.args, strict=False))
    named |= keywords(call)
    try:
        said = {key: str(reader.value(node)) for key, node in named.items()}
    except UnreadableError:
        return
    old = said.get("old_name") or said.get("env_name")
    if old:
        new = said.get("new_name")
        yield old, f"use {new}" if new else said.get("suggestion", "it has no effect")


def _table(reader: Reader, table: ast.Dict) -> Iterator[tuple[str, str]]:
    for key, value in zip(table.keys, table.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(value, ast.Call):
            continue
        named = dict(zip(("replacement", "transform", "note"), value.args, strict=False))
        named |= keywords(value)
        said = []
        for part, form in (("replacement", "use {}"), ("note", "{}")):
            if part in named:
                said.append(form.format(reader.value(named[part])))
        yield str(key.value), ". ".join(said) or "it has no effect"


def used_in(package: Path, only_warned_of: Collection[str]) -> set[str]:
    """Return every `SGLANG_` and `SGL_` name that stands quoted in the sources of the server.

    Where they are declared they stand quoted also for the sake of the warning.
    """
    found: set[str] = set()
    declarations = str(package / "srt" / "environ.py")
    for folder in _SEARCHED:
        for path in python_files(package / folder):
            with open(path, "rb") as file:  # noqa: PTH123 - thousands of files, half a second
                content = file.read()
            if b"SGL" in content:
                names = {name.decode() for name in _USE.findall(content)}
                found |= names.difference(only_warned_of) if path == declarations else names
    return found


def python_files(folder: Path | str) -> Iterator[str]:
    """Yield the paths of all Python files below a folder."""
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.name.endswith(".py"):
            yield entry.path
        elif entry.is_dir(follow_symlinks=False):
            yield from python_files(entry.path)
