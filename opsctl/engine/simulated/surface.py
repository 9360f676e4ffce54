"""Throughput over (concurrency, context), read from surfaces.yaml."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import yaml

Curve = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Surface:
    """Aggregate decode throughput of one profile.

    `curves` maps log(1 + context) to points (log concurrency, log tok/s), both sorted. Throughput
    is interpolated as a logarithm: a straight line in tok/s over log concurrency would make two
    streams faster *each* than one alone.
    """

    name: str
    source: str
    curves: tuple[tuple[float, Curve], ...]

    def tokens_per_second(self, running: float, context: float) -> float:
        """Return aggregate tok/s of `running` sequences with a mean of `context` tokens each."""
        where = math.log(max(running, 1.0))
        row = [(at, _along(curve, where)) for at, curve in self.curves]
        return math.exp(_along(row, math.log1p(max(context, 0.0))))


def _along(points: Sequence[tuple[float, float]], at: float) -> float:
    """Interpolate linearly between sorted points, clamped at both ends."""
    above = bisect_right(points, at, key=lambda point: point[0])
    if above == 0:
        return points[0][1]
    if above == len(points):
        return points[-1][1]
    (left, low), (right, high) = points[above - 1], points[above]
    return low + (high - low) * (at - left) / (right - left)


@dataclass(frozen=True)
class Surfaces:
    """Everything surfaces.yaml holds."""

    tables: Mapping[str, Mapping[str, Surface]]
    accept_lengths: Mapping[str, float]
    unlabelled: tuple[str, ...]
    reference_accept_length: float

    def find(self, name: str) -> Surface:
        """Return the surface called TABLE:COLUMN; raises KeyError naming the choices."""
        table, _, column = name.partition(":")
        if table not in self.tables:
            raise KeyError(f"no table {table!r} (choose from {', '.join(sorted(self.tables))})")
        columns = self.tables[table]
        if column not in columns:
            raise KeyError(f"no column {column!r} in {table} (choose from {', '.join(columns)})")
        return columns[column]


@cache
def surfaces() -> Surfaces:
    """Load the packaged surfaces once."""
    text = files(__package__).joinpath("surfaces.yaml").read_text(encoding="utf-8")
    data = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    return Surfaces(
        tables={name: _table(name, table) for name, table in data["tables"].items()},
        accept_lengths=data["accept_lengths"],
        unlabelled=tuple(data["unlabelled"]),
        reference_accept_length=data["reference_accept_length"],
    )


def _table(name: str, table: Mapping[str, object]) -> dict[str, Surface]:
    columns = table["columns"]
    concurrency = table["concurrency"]
    assert isinstance(columns, dict)  # noqa: S101  # our own data file, checked by a test
    assert isinstance(concurrency, list)  # noqa: S101
    return {
        column: Surface(
            name=f"{name}:{column}",
            source=str(table["source"]),
            curves=tuple(
                (math.log1p(context), _curve(concurrency, rates))
                for context, rates in sorted(contexts.items())
            ),
        )
        for column, contexts in columns.items()
    }


def _curve(concurrency: Sequence[float], rates: Sequence[float | None]) -> Curve:
    pairs = zip(concurrency, rates, strict=True)
    return tuple((math.log(count), math.log(rate)) for count, rate in pairs if rate is not None)
