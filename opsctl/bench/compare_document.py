"""A comparison as plain data: the contract of `opsctl bench compare -o json`. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from opsctl.bench.bootstrap import CONFIDENCE, DRAWS, SEED
from opsctl.bench.compare_model import CellComparison, Comparison, Crossover, Pair

DIGITS = 4


def document(comparison: Comparison) -> dict[str, Any]:
    """Return cells, contexts with their crossover, findings, and what does not count."""
    return {
        "confidence": CONFIDENCE,
        "bootstrap": {"draws": DRAWS, "seed": SEED},
        "cells": [_cell(pair, cell) for pair in comparison.pairs for cell in pair.cells],
        "contexts": [
            {**_names(pair), "context": context, "crossover": _crossover(found)}
            for pair in comparison.pairs
            for context, found in pair.crossovers.items()
        ],
        "findings": [{**_names(pair), "finding": pair.finding} for pair in comparison.pairs],
        "left_out": [asdict(item) for item in comparison.left_out],
        "notes": list(comparison.notes),
    }


def _names(pair: Pair) -> dict[str, str]:
    return {
        "profile": pair.profile.name,
        "baseline": pair.baseline.name,
        "workload": pair.workload,
    }


def _cell(pair: Pair, cell: CellComparison) -> dict[str, Any]:
    return {
        **_names(pair),
        "concurrency": cell.concurrency,
        "context": cell.context,
        "ratio": round(cell.ratio, DIGITS),
        "low": _rounded(cell.low),
        "high": _rounded(cell.high),
        "verdict": cell.verdict,
        "why": cell.why,
        "baseline_tok_s": round(cell.baseline_tok_s, 2),
        "tok_s": round(cell.tok_s, 2),
        "baseline_repeats": cell.baseline_repeats,
        "repeats": cell.repeats,
    }


def _crossover(found: Crossover) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "words": found.words,
        "concurrency": _rounded(found.concurrency),
        "low": _rounded(found.low),
        "high": _rounded(found.high),
        "wins": list(found.wins),
        "loses": list(found.loses),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)
