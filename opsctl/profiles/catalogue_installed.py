"""The catalogue of an installed SGLang, read from its files; nothing of it is imported or run."""

from __future__ import annotations

import ast
import contextlib
import gc
import re
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

from opsctl.profiles.catalogue_environment import environment
from opsctl.profiles.catalogue_flags import FlagReader
from opsctl.profiles.catalogue_locate import dist_infos, sources_root
from opsctl.profiles.catalogue_model import Catalogue, CatalogueError
from opsctl.profiles.catalogue_static import AGAIN, Sources

_ENTRY = b"\nEntryClass"
_VERSION = re.compile(r"^Version: *(\S+)", re.MULTILINE)
_REQUIREMENT = re.compile(
    r"^Requires-Dist: *([A-Za-z0-9][A-Za-z0-9._-]*) *(?:\[[^\]]*\])? *\(?([^;()\n]*)\)?(.*)",
    re.MULTILINE,
)


def read(site_packages: Path) -> Catalogue:
    """Read the SGLang in a `site-packages` folder; raises CatalogueError."""
    try:
        root = sources_root(site_packages)
        if root is None:
            raise CatalogueError(f"no SGLang in {site_packages}")
        version, pins = _metadata(site_packages)
        with _collector_paused():
            sources = Sources(root)
            reader = FlagReader(sources)
            flags = reader.flags()
            variables, deprecated = environment(sources)
        models = frozenset(_models(root / "sglang" / "srt" / "models"))
    except OSError as error:
        raise CatalogueError(f"{error.filename}: {error.strerror}", hint=AGAIN) from error
    except RecursionError as error:
        raise CatalogueError(f"{site_packages}: too deeply nested to read", hint=AGAIN) from error
    if not models:
        raise CatalogueError(f"{root}: SGLang is incomplete there: no models", hint=AGAIN)
    return Catalogue(
        version=version,
        flags=MappingProxyType(dict(sorted(flags.items()))),
        environment=MappingProxyType(dict(sorted(variables.items()))),
        pins=MappingProxyType(pins),
        models=models,
        deprecated_environment=MappingProxyType(deprecated),
        unread=tuple(reader.unread),
    )


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Parsing makes millions of objects that stay; looking for garbage in them doubles the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _metadata(site_packages: Path) -> tuple[str, dict[str, str]]:
    folders = dist_infos(site_packages)
    if not folders:
        raise CatalogueError(
            f"{site_packages}: SGLang has no dist-info there, so its version is unknown",
            hint=AGAIN,
        )
    if len(folders) > 1:
        names = ", ".join(path.name for path in folders)
        raise CatalogueError(
            f"{site_packages}: several versions of SGLang claim this folder: {names}", hint=AGAIN
        )
    path = folders[0] / "METADATA"
    try:
        headers = path.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except FileNotFoundError as error:
        raise CatalogueError(f"{path} is missing", hint=AGAIN) from error
    version = _VERSION.search(headers)
    if version is None:
        raise CatalogueError(f"{path}: no version in it", hint=AGAIN)
    return version[1], dict(_pins(headers))


def _pins(headers: str) -> Iterator[tuple[str, str]]:
    """What SGLang itself requires, without its extras: the name as pip compares it, the range.

    The package `packaging` would take longer to load than all of this takes.
    """
    for name, specifier, marker in _REQUIREMENT.findall(headers):
        if "extra" not in marker:
            yield re.sub(r"[-_.]+", "-", name).lower(), re.sub(r"\s", "", specifier)


def _models(folder: Path) -> Iterator[str]:
    """The architectures that SGLang registers: `EntryClass` of each module, by class name."""
    for path in sorted(folder.glob("*.py")):
        content = b"\n" + path.read_bytes()
        start = content.find(_ENTRY)
        while start >= 0:
            statement = _first_statement(content[start + 1 :].decode(errors="replace"))
            if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign):
                for node in ast.walk(statement.value or ast.Constant(None)):
                    if isinstance(node, ast.Name):
                        yield node.id
            start = content.find(_ENTRY, start + 1)


def _first_statement(text: str) -> ast.stmt | None:
    """Parse no more than needed: a model's module has thousands of lines."""
    lines = text.split("\n", 60)
    for end in range(1, min(len(lines), 60) + 1):
        try:
            return ast.parse("\n".join(lines[:end])).body[0]
        except SyntaxError:
            continue
    return None
