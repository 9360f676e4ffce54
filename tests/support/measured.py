"""Results of benchmarks that were not run: throughput tables with a known noise."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from opsctl.bench.compare_model import Source
from opsctl.bench.results import Cell, Profile, Quantiles, Result

ROOT = Path(__file__).parents[2]
TABLES = yaml.safe_load((ROOT / "opsctl/engine/simulated/surfaces.yaml").read_text())["tables"]
"""Each table there says where its numbers come from."""
Rows = Mapping[int, Mapping[int, float]]
"""Tok/s by context and concurrency."""


def column(table: str, name: str) -> dict[int, dict[int, float]]:
    """One column of the packaged tables as rows; what was not measured is left out."""
    found = TABLES[table]
    return {
        context: {
            concurrency: rate
            for concurrency, rate in zip(found["concurrency"], rates, strict=True)
            if rate is not None
        }
        for context, rates in found["columns"][name].items()
    }


def cells(
    profile: str, rows: Rows, *, noise: float = 0.004, repeats: int = 3, **more: Any
) -> list[Cell]:
    """Repeats of a table, each off by lognormal noise; seeded, so that tests repeat."""
    source = random.Random(f"{profile} {noise}")
    found = []
    for context, row in rows.items():
        for concurrency, rate in row.items():
            for repeat in range(repeats):
                measured = rate * math.exp(source.gauss(0.0, noise))
                found.append(cell(profile, concurrency, context, measured, repeat=repeat, **more))
    return found


def cell(
    profile: str, concurrency: int, context: int, rate: float, *, repeat: int = 0, **more: Any
) -> Cell:
    """One measurement."""
    per_user = rate / concurrency
    facts: dict[str, Any] = {
        "valid": True,
        "tokens": int(rate * 30),
        "seconds": 30.0,
        "throughput_tok_s": rate,
        "per_user_tok_s": per_user,
        "ttft_s": Quantiles(p50=0.2, p90=0.3, p99=0.5),
        "tpot_s": Quantiles(p50=1 / per_user, p90=1.1 / per_user, p99=1.3 / per_user),
        "effective_concurrency": concurrency * 0.99,
        "requests": 4 * concurrency,
        "output_tokens_mean": 512.0,
    }
    return Cell(
        profile=profile, concurrency=concurrency, context=context, repeat=repeat, **(facts | more)
    )


def profile(name: str, *, fingerprint: str = "", **more: Any) -> Profile:
    """A profile; one whose name says `baseline` does not speculate."""
    facts = {"speculative": "baseline" not in name, "fingerprint": fingerprint or f"sha256:{name}"}
    return Profile(name=name, **(facts | more))


ENVIRONMENT = {"driver": "580.95.05", "gpus": ["NVIDIA RTX PRO 6000 Blackwell"] * 8}


def result(*found: Cell, profiles: tuple[Profile, ...] = (), **more: Any) -> Result:
    """A finished run that holds these cells."""
    names = dict.fromkeys(item.profile for item in found)
    facts: dict[str, Any] = {
        "started": "2026-02-03T04:05:06Z",
        "environment": ENVIRONMENT,
        "workload": "mixed",
        "salted": True,
        "grid": {},
        "complete": True,
    }
    return Result(
        schema="opsctl/bench/v1",
        profiles=profiles or tuple(profile(name) for name in names),
        cells=found,
        **(facts | more),
    )


def source(name: str, *found: Cell, **more: Any) -> Source:
    """The same, as an argument of `bench compare` is."""
    return Source(name, result(*found, **more))


def reference_host() -> Source:
    """The table that started the project: EAGLE-3 against none, on diverse prompts."""
    return source(
        "reference",
        *cells("baseline", column("reference_host", "baseline")),
        *cells("eagle3", column("reference_host", "eagle3")),
        workload="diverse",
    )


def fixed_prompt() -> Source:
    """The same host on one fixed prompt: measured at concurrency 1 (96.1 against 92.6 tok/s).

    At higher concurrency nobody measured it there: the diverse column times the ratio at
    concurrency 1, which is what the simulated engine does with that prompt.
    """
    easy = column("reference_host", "eagle3_fixed_prompt")[0][1]
    diverse = column("reference_host", "eagle3")[0]
    rows = {0: {n: rate * easy / diverse[1] for n, rate in diverse.items()}}
    return source(
        "fixed",
        *cells("baseline", column("reference_host", "baseline")),
        *cells("eagle3", rows),
        workload="fixed",
    )
