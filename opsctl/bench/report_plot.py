"""Throughput over concurrency as characters, for a terminal. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from opsctl.bench.report import Panel

HEIGHT = 14
MARKS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
SHARED = "*"
"""Where two profiles meet in one character."""


def plot(panel: Panel, *, width: int = 72) -> str:
    """Return the curves of one panel; concurrency goes across as a logarithm."""
    width = max(width, 40)
    top = max(spot.tok_s for curve in panel.curves for spot in curve.spots)
    across = sorted({spot.concurrency for curve in panel.curves for spot in curve.spots})
    labels = [f"{top * row / (HEIGHT - 1):.0f}" for row in range(HEIGHT - 1, -1, -1)]
    margin = max(map(len, labels)) + 2
    columns = width - margin - 1
    paper = [[" "] * columns for _ in range(HEIGHT)]
    for curve in panel.curves:
        for spot in curve.spots:
            row = round((1 - spot.tok_s / top) * (HEIGHT - 1))
            column = _column(spot.concurrency, across, columns)
            taken = paper[row][column]
            paper[row][column] = MARKS[curve.colour % len(MARKS)] if taken == " " else SHARED
    lines = [
        f"{label if number % 3 == 0 else '':>{margin - 1}} |{''.join(row)}".rstrip()
        for number, (label, row) in enumerate(zip(labels, paper, strict=True))
    ]
    keys = ", ".join(f"{MARKS[c.colour % len(MARKS)]} {c.profile}" for c in panel.curves)
    title = f"tok/s over concurrency: workload {panel.workload}, context {panel.context}"
    foot = [
        " " * margin + "-" * columns,
        " " * margin + _ticks(across, columns),
        f"{keys}; {SHARED} several",
    ]
    return "\n".join([title, *lines, *foot])


def _column(concurrency: int, across: Sequence[int], columns: int) -> int:
    low, high = math.log(across[0]), math.log(across[-1])
    share = 0.5 if high == low else (math.log(concurrency) - low) / (high - low)
    return round(share * (columns - 1))


def _ticks(across: Sequence[int], columns: int) -> str:
    """Concurrencies below their columns, as many as fit."""
    line = ""
    for concurrency in across:
        text = str(concurrency)
        start = min(_column(concurrency, across, columns), columns - len(text))
        if start > len(line) or not line:
            line = line.ljust(start) + text
    return line
