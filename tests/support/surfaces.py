"""Surfaces of numbers that a test states; `opsctl.autospec.suite.surface` makes those of tables."""

from __future__ import annotations

from collections.abc import Mapping

from opsctl.autospec.surface import Point, Surface

Rows = Mapping[int, Mapping[int, float]]
"""Tok/s by context and concurrency."""


def surface(
    rows: Rows,
    *,
    profile: str = "eagle3",
    speculative: bool = True,
    spread: float | None = None,
    fingerprint: str = "sha256:a",
    accept_length: float | None = None,
) -> Surface:
    """Return a surface; `spread` is the half-width of its intervals, as a share, if it has any."""
    points = tuple(
        Point(
            concurrency=n,
            context=context,
            tok_s=rate,
            low=None if spread is None else rate * (1 - spread),
            high=None if spread is None else rate * (1 + spread),
            accept_length=accept_length,
        )
        for context, row in rows.items()
        for n, rate in row.items()
    )
    return Surface(
        schema="opsctl/surface/v1",
        profile=profile,
        fingerprint=fingerprint,
        speculative=speculative,
        points=points,
    )
