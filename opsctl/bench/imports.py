"""Results named on a command line: opsctl's own, or those of other tools.

`[NAME=]PATH`: a result directory, a JSONL file of `sglang.bench_serving`, or a JSON file (or the
artifact folder) of aiperf. NAME is the profile's name for files that do not know one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from opsctl.bench import imports_aiperf, imports_sglang
from opsctl.bench.compare_model import Source
from opsctl.bench.results import RESULT, SCHEMA, Result, ResultError, load

_HINT = (
    "name a result directory of `opsctl bench run`, a JSONL file of sglang.bench_serving, or a "
    "profile_export_aiperf.json"
)
MAX_BYTES = 256 * 2**20
_Row = dict[str, Any]
READERS: tuple[tuple[Callable[[_Row], bool], Callable[[Sequence[_Row], str], Result]], ...] = (
    (imports_sglang.recognised, imports_sglang.result),
    (imports_aiperf.recognised, imports_aiperf.result),
)


def load_source(argument: str) -> Source:
    """Read what one argument names; raises ResultError saying what is wrong with it."""
    given, path = _split(argument)
    file = _file(path)
    if file.name == RESULT and file.parent == path:
        return Source(path.resolve().name, load(path))
    text = _read(file)
    name = given or _default_name(path, file)
    rows = _rows(text, file)
    if rows[0].get("schema") == SCHEMA:
        return Source(file.stem, load(file))
    result = _imported(rows, name, file)
    return Source(name if given else str(path), result)


def load_sources(arguments: Sequence[str]) -> tuple[Source, ...]:
    """Read all; two results of one name are told apart by their paths."""
    sources = [load_source(argument) for argument in arguments]
    names = [source.name for source in sources]
    return tuple(
        Source(argument, source.result) if names.count(source.name) > 1 else source
        for argument, source in zip(arguments, sources, strict=True)
    )


def _split(argument: str) -> tuple[str, Path]:
    match = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,63})=(.+)", argument)
    if match is None or Path(argument).exists():
        return "", Path(argument)
    return match[1], Path(match[2])


def _file(path: Path) -> Path:
    if not path.is_dir():
        return path
    for name in (RESULT, imports_aiperf.FILE):
        if (path / name).is_file():
            return path / name
    raise ResultError(f"{path}: holds neither {RESULT} nor {imports_aiperf.FILE}", hint=_HINT)


def _read(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise ResultError(f"{file}: larger than {MAX_BYTES // 2**20} MiB", hint=_HINT)
        return raw.decode("utf-8")
    except OSError as error:
        raise ResultError(f"{file}: {error.strerror}", hint=_HINT) from error
    except UnicodeDecodeError as error:
        raise ResultError(f"{file}: not a text file", hint=_HINT) from error


def _rows(text: str, file: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON or JSONL file."""
    try:
        content = json.loads(text)
        rows = content if isinstance(content, list) else [content]
    except ValueError:
        rows = [
            _row(line, number, file) for number, line in enumerate(text.splitlines(), 1) if line
        ]
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ResultError(f"{file}: not made of JSON objects", hint=_HINT)
    return rows


def _row(line: str, number: int, file: Path) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ResultError(f"{file}:{number}: not JSON: {error}", hint=_HINT) from error


def _imported(rows: Sequence[dict[str, Any]], name: str, file: Path) -> Result:
    for recognised, read in READERS:
        if all(recognised(row) for row in rows):
            try:
                return read(rows, name)
            except (KeyError, TypeError, ValueError) as error:
                raise ResultError(f"{file}: cannot be used: {error!r}") from error
    raise ResultError(f"{file}: the form of this file is not known", hint=_HINT)


def _default_name(path: Path, file: Path) -> str:
    stem = path.resolve().name if path.is_dir() else file.stem
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).strip("-.")[:64] or "imported"
