"""The surface: throughput of one profile over (concurrency, context), as measured. Pure.

It is good for what it was measured on only: the same profile, software, driver and GPUs, and
prompts like those. Between the measured points it is interpolated, as a logarithm, over the
logarithms of concurrency and of 1 + context: a straight line in tok/s would make two streams
faster *each* than one alone. Outside it is clamped, because what nobody measured is not promised.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from opsctl.errors import OpsctlError

SCHEMA: Literal["opsctl/surface/v1"] = "opsctl/surface/v1"
Curve = tuple[tuple[float, float], ...]
"""Sorted points of two logarithms."""


class SurfaceError(OpsctlError):
    """A surface cannot be read or used."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Point(_Model):
    """One measured place. `low` and `high` bound the mean of the repeats (95 %), in tok/s."""

    concurrency: int = Field(ge=1)
    context: int = Field(ge=0)
    tok_s: float = Field(gt=0)
    low: float | None = Field(default=None, gt=0)
    high: float | None = Field(default=None, gt=0)
    repeats: int = Field(default=1, ge=1)
    accept_length: float | None = None
    """Tokens a verify step yields on average, the bonus token included."""


class Provenance(_Model):
    """Where the numbers come from."""

    written: str = ""
    """UTC, ISO 8601."""
    opsctl: str = ""
    results: tuple[Mapping[str, str], ...] = ()
    """`name` and `started` of each result."""
    salted: bool = True
    left_out: int = 0
    """Measurements that were not valid."""
    note: str = ""


class Surface(_Model):
    """Throughput of one profile, in tok/s of all its streams together."""

    schema_: Literal["opsctl/surface/v1"] = Field(SCHEMA, alias="schema")
    profile: str
    fingerprint: str
    """Of the launch profile."""
    speculative: bool
    versions: Mapping[str, str | None] = Field(default_factory=dict)
    environment: Mapping[str, Any] = Field(default_factory=dict)
    """What `speed_facts` keeps of the host."""
    workload: str = ""
    points: tuple[Point, ...] = Field(min_length=1)
    provenance: Provenance = Field(default_factory=Provenance)

    @property
    def contexts(self) -> tuple[int, ...]:
        """Contexts that were measured, rising."""
        return tuple(sorted({point.context for point in self.points}))

    @property
    def most(self) -> int:
        """Largest concurrency that was measured at every context."""
        return min(
            max(point.concurrency for point in self.points if point.context == context)
            for context in self.contexts
        )

    def tok_s(self, concurrency: float, context: float) -> float:
        """Return tok/s of `concurrency` streams with a mean of `context` tokens each."""
        return _read(self._rates, concurrency, context)

    def bounds(self, concurrency: float, context: float) -> tuple[float, float] | None:
        """Return what tok/s lies between; None where a point has no interval."""
        if any(point.low is None or point.high is None for point in self.points):
            return None
        low, high = self._lows, self._highs
        return _read(low, concurrency, context), _read(high, concurrency, context)

    def covers(self, concurrency: float, context: float) -> bool:
        """Whether this lies within what was measured, so that nothing is clamped."""
        contexts = self.contexts
        at = min(max(context, contexts[0]), contexts[-1])
        near = [x for x in contexts if x <= at][-1:] + [x for x in contexts if x >= at][:1]
        spans = [[p.concurrency for p in self.points if p.context == x] for x in near]
        inside = all(min(span) <= concurrency <= max(span) for span in spans)
        return inside and at == context

    def accept_length(self, concurrency: float, context: float) -> float | None:
        """Return the accept length at measurement, of the nearest point; None if unknown."""
        known = [point for point in self.points if point.accept_length is not None]
        if not known:
            return None
        return min(known, key=lambda p: _distance(p, concurrency, context)).accept_length

    @cached_property
    def _rates(self) -> tuple[tuple[float, Curve], ...]:
        return _rows(self.points, lambda point: point.tok_s)

    @cached_property
    def _lows(self) -> tuple[tuple[float, Curve], ...]:
        return _rows(self.points, lambda point: point.low or point.tok_s)

    @cached_property
    def _highs(self) -> tuple[tuple[float, Curve], ...]:
        return _rows(self.points, lambda point: point.high or point.tok_s)


def mismatch(
    surface: Surface,
    fingerprint: str,
    *,
    versions: Mapping[str, str | None] | None = None,
    environment: Mapping[str, Any] | None = None,
) -> str | None:
    """Say why a surface must not be used for this profile on this host; None when it may.

    `versions` and `environment` (a host's, as `bench` records it) are compared where they are
    given: a fact that the surface has and that is now unknown counts as changed.
    """
    if not surface.fingerprint:
        return f"the surface of {surface.profile} has no fingerprint: it fits no profile for sure"
    if surface.fingerprint != fingerprint:
        return (
            f"profile {surface.profile} has changed since it was measured "
            f"({surface.fingerprint}, now {fingerprint})"
        )
    pairs = [(surface.versions, versions)]
    if environment is not None:
        pairs.append((surface.environment, speed_facts(environment)))
    for measured, now in pairs:
        for key, value in measured.items():
            if now is not None and value is not None and now.get(key) != value:
                return (
                    f"{key} was {_short(value)} when it was measured, and is {_short(now.get(key))}"
                )
    return None


def speed_facts(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a host decides its speed: driver and GPUs, whichever copies of them."""
    gpus = environment.get("gpus") or ()
    return {"driver": environment.get("driver"), "gpus": [_gpu(gpu) for gpu in gpus]}


def parse(text: str, where: str) -> Surface:
    """Read a surface from its JSON; raises SurfaceError naming `where`."""
    try:
        return Surface.model_validate_json(text)
    except (ValidationError, ValueError) as error:
        raise SurfaceError(
            f"{where}: not a surface: {error}", hint="`opsctl tune` writes one from a measurement"
        ) from error


def dump(surface: Surface) -> str:
    """Return the JSON that `parse` reads."""
    return surface.model_dump_json(indent=1, by_alias=True) + "\n"


def _gpu(gpu: Any) -> Any:
    if not isinstance(gpu, Mapping):
        return gpu
    return {key: value for key, value in sorted(gpu.items()) if key not in ("index", "uuid")}


def _short(value: object) -> str:
    text = "unknown" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _rows(
    points: Sequence[Point], value: Callable[[Point], float]
) -> tuple[tuple[float, Curve], ...]:
    """One curve a context: logarithm of 1 + context, and the curve over log concurrency."""
    return tuple(
        (
            math.log1p(context),
            tuple(
                sorted(
                    (math.log(point.concurrency), math.log(value(point)))
                    for point in points
                    if point.context == context
                )
            ),
        )
        for context in sorted({point.context for point in points})
    )


def _read(rows: Sequence[tuple[float, Curve]], concurrency: float, context: float) -> float:
    where = math.log(max(concurrency, 1.0))
    across = [(at, _along(curve, where)) for at, curve in rows]
    return math.exp(_along(across, math.log1p(max(context, 0.0))))


def _along(points: Sequence[tuple[float, float]], at: float) -> float:
    """Interpolate between sorted points, clamped at both ends."""
    above = bisect_right(points, at, key=lambda point: point[0])
    if above == 0:
        return points[0][1]
    if above == len(points):
        return points[-1][1]
    (left, low), (right, high) = points[above - 1], points[above]
    return low + (high - low) * (at - left) / (right - left)


def _distance(point: Point, concurrency: float, context: float) -> float:
    aside = math.log(point.concurrency) - math.log(max(concurrency, 1.0))
    return abs(aside) + abs(math.log1p(point.context) - math.log1p(max(context, 0.0)))
