"""Traces of requests, as files hold them, read into arrivals. Pure.

| Format | What a line is |
|---|---|
| CSV | columns TIMESTAMP, ContextTokens, GeneratedTokens, as the Azure LLM inference traces have |
| JSONL | `{"at": SECONDS, "prompt_tokens": N, "output_tokens": N}`, as `opsctl bench run` takes |

Of a CSV the header decides which column is which. Times become seconds since the first request.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from typing import Any, ParamSpec

from opsctl.autospec.arrivals import MEAN_OUTPUT, MEAN_PROMPT, Requests
from opsctl.errors import UsageError

MOST_DAYS = 31
"""A trace is simulated second by second: what is longer is a mistake in its times."""
MOST_TOKENS = 10_000_000
FAULTS = 10
"""Most faults of one file that are told."""
FORMATS = 'CSV with TIMESTAMP,ContextTokens,GeneratedTokens, or JSONL with {"at": SECONDS}'
_COLUMNS = {
    "at": ("timestamp", "at", "time", "arrived_at"),
    "prompt": ("contexttokens", "prompt_tokens", "context_tokens", "input_tokens"),
    "output": ("generatedtokens", "output_tokens", "generated_tokens", "max_tokens"),
}
"""Names that a column or a key may have, in lower case; the first one found counts."""

_P = ParamSpec("_P")


@dataclass(frozen=True)
class Trace:
    """The requests of a file, and what had to be assumed about them."""

    requests: Requests
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Row:
    at: float
    prompt: int | None
    output: int | None


class _FaultError(ValueError):
    """What is wrong with one line."""


def read(text: str, where: str) -> Trace:
    """Return the requests in order of time; raises UsageError with the line of every fault."""
    first = text.lstrip("\ufeff \r\n")[:1]
    if not first:
        raise UsageError(f"{where}: empty", hint=FORMATS)
    rows: list[_Row] = []
    faults: list[str] = []
    for number, row in _jsonl(text) if first in "{[" else _csv(text, where):
        if isinstance(row, _FaultError):
            faults.append(f"{where}:{number}: {row}")
        else:
            rows.append(row)
    if faults:
        more = [f"... and {len(faults) - FAULTS} more"] if len(faults) > FAULTS else []
        raise UsageError("\n".join([*faults[:FAULTS], *more]), hint=FORMATS)
    if not rows:
        raise UsageError(f"{where}: no requests in it", hint=FORMATS)
    return _trace(rows, where)


def _trace(rows: list[_Row], where: str) -> Trace:
    rows.sort(key=lambda row: row.at)
    begin = rows[0].at
    hours = (rows[-1].at - begin) / 3600
    if hours > MOST_DAYS * 24:
        what = f"{where}: it lasts {hours / 24:.0f} days"
        raise UsageError(what, hint=f"at most {MOST_DAYS} days are replayed")
    notes = []
    for what, known, mean in (
        ("prompt", [row.prompt for row in rows], MEAN_PROMPT),
        ("output", [row.output for row in rows], MEAN_OUTPUT),
    ):
        unknown = known.count(None)
        if unknown:
            notes.append(f"{unknown} of {len(rows)} requests tell no {what} tokens: {mean:g} each")
    requests = Requests(
        name=where,
        at=tuple(row.at - begin for row in rows),
        prompt=tuple(round(MEAN_PROMPT) if row.prompt is None else row.prompt for row in rows),
        # An answer has a token at least: traces count 0 for requests that failed.
        output=tuple(round(MEAN_OUTPUT) if r.output is None else max(r.output, 1) for r in rows),
        hours=max(hours, 1 / 3600),
    )
    return Trace(requests, tuple(notes))


def _csv(text: str, where: str) -> Iterator[tuple[int, _Row | _FaultError]]:
    reader = csv.reader(io.StringIO(text.lstrip("\ufeff"), newline=""))
    try:
        header = [name.strip().lower() for name in next(reader)]
        found = {key: _column(header, names) for key, names in _COLUMNS.items()}
        if found["at"] is None or len(set(header)) < len(header):
            what = f"{where}:1: not the header of a trace: {','.join(header)[:80]}"
            raise UsageError(what, hint=FORMATS)
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield reader.line_num, _csv_row(cells, len(header), found)
    except csv.Error as error:
        raise UsageError(f"{where}:{reader.line_num}: not CSV: {error}", hint=FORMATS) from error


def _column(header: list[str], names: tuple[str, ...]) -> int | None:
    return next((header.index(name) for name in names if name in header), None)


def _or_fault(read_row: Callable[_P, _Row]) -> Callable[_P, _Row | _FaultError]:
    @wraps(read_row)
    def attempt(*arguments: _P.args, **keywords: _P.kwargs) -> _Row | _FaultError:
        try:
            return read_row(*arguments, **keywords)
        except _FaultError as fault:
            return fault

    return attempt


@_or_fault
def _csv_row(cells: list[str], columns: int, found: Mapping[str, int | None]) -> _Row:
    if len(cells) != columns:
        raise _FaultError(f"{len(cells)} values for {columns} columns")
    values = {key: None if at is None else cells[at].strip() for key, at in found.items()}
    return _Row(
        _time(values["at"] or ""),
        _tokens("prompt", _number(values["prompt"])),
        _tokens("output", _number(values["output"])),
    )


def _number(text: str | None) -> object:
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        return text


def _time(text: str) -> float:
    try:
        return _seconds(float(text))
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _FaultError(f"not a time: {text[:40]!r}") from None
    # Traces without a zone are of one zone: only differences count.
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _FaultError(f"not seconds: {str(value)[:40]}")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds) or seconds < 0:
        raise _FaultError("a time is 0 seconds or more")
    return seconds


def _tokens(what: str, value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_TOKENS:
        raise _FaultError(f"{what} tokens: expected a whole number, not {str(value)[:40]!r}")
    return value


def _jsonl(text: str) -> Iterator[tuple[int, _Row | _FaultError]]:
    for number, line in enumerate(text.lstrip("\ufeff").split("\n"), 1):
        if line.strip():
            yield number, _json_row(line)


@_or_fault
def _json_row(line: str) -> _Row:
    try:
        data: Any = json.loads(line)
    except (ValueError, RecursionError):
        raise _FaultError("not JSON") from None
    if not isinstance(data, dict):
        raise _FaultError("expected an object")
    found = {key: _named(data, names) for key, names in _COLUMNS.items()}
    at = found["at"]
    if at is None:
        raise _FaultError('no time: {"at": SECONDS}')
    return _Row(
        _time(at) if isinstance(at, str) else _seconds(at),
        _tokens("prompt", found["prompt"]),
        _tokens("output", found["output"]),
    )


def _named(data: Mapping[str, Any], names: tuple[str, ...]) -> object:
    lowered = {key.lower(): value for key, value in data.items()}
    return next((lowered[name] for name in names if lowered.get(name) is not None), None)
