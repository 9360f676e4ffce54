"""Results of aiperf: `profile_export_aiperf.json`, one run each. Pure.

Written from its documentation (JSON Export Schema, versions 1.0 to 1.5): a mapping of metrics, each
with `unit` and `avg`, and percentiles where it is one of requests. Its `inter_token_latency` is
(latency - time to first token) / (tokens - 1) of each request: what is called time per output
token here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opsctl.bench.imports_common import number, quantiles, rounded, shortfall
from opsctl.bench.results import Cell, Profile, Quantiles, Result

FILE = "profile_export_aiperf.json"
MILLISECONDS = {"ms": 1.0, "sec": 1000.0, "s": 1000.0, "us": 0.001, "ns": 1e-6}


def recognised(row: Mapping[str, Any]) -> bool:
    """Whether this is an export of aiperf with tokens in it."""
    return {"output_token_throughput", "request_latency", "input_config"} <= set(row)


def result(rows: Sequence[dict[str, Any]], name: str) -> Result:
    """Return the runs as a result; raises ValueError for a run that misses what a cell needs."""
    configs = [row["input_config"] for row in rows]
    return Result(
        schema="opsctl/bench/v1",
        started=str(rows[0].get("start_time") or ""),
        environment={"tool": "aiperf"},
        workload=f"aiperf:{_dataset(configs[0])}",
        salted=False,
        profiles=(Profile(name=name, fingerprint="", speculative=False),),
        grid={},
        complete=not any(row.get("was_cancelled") for row in rows),
        cells=tuple(_cell(row, name, repeat) for repeat, row in enumerate(rows)),
    )


def _cell(row: Mapping[str, Any], name: str, repeat: int) -> Cell:
    count, seconds = _needed(row, "request_count"), _milliseconds(row, "benchmark_duration")
    latency, wanted = _milliseconds(row, "request_latency"), _concurrency(row["input_config"])
    if seconds is None or latency is None or seconds <= 0:
        raise ValueError("`benchmark_duration` or `request_latency` is missing")
    effective = count * latency / seconds
    concurrency = wanted or max(1, round(effective))
    throughput, length = (
        _needed(row, "output_token_throughput"),
        _stat(row, "output_sequence_length"),
    )
    reason = _reason(row, wanted) or shortfall(effective, concurrency)
    return Cell(
        profile=name,
        concurrency=concurrency,
        context=rounded(_needed(row, "input_sequence_length")),
        repeat=repeat,
        valid=not reason,
        reason=reason,
        tokens=round(throughput * seconds / 1000),
        seconds=seconds / 1000,
        throughput_tok_s=throughput,
        per_user_tok_s=throughput / effective if effective else throughput,
        ttft_s=_quantiles(row, "time_to_first_token"),
        tpot_s=_quantiles(row, "inter_token_latency"),
        effective_concurrency=effective,
        requests=int(count),
        output_tokens_mean=length,
    )


def _reason(row: Mapping[str, Any], wanted: int | None) -> str:
    if row.get("was_cancelled"):
        return "the run was cancelled"
    failed = _stat(row, "error_request_count")
    if failed or row.get("error_summary"):
        return f"{failed:.0f} requests failed" if failed else "requests failed"
    return "" if wanted else "no concurrency in its configuration: an open loop"


def _concurrency(config: Any) -> int | None:
    """Return what was asked for: in `phases` since 0.8 or so, in `loadgen` before."""
    if not isinstance(config, Mapping):
        return None
    phases = [x for x in config.get("phases") or () if isinstance(x, Mapping)]
    phases = [x for x in phases if x.get("name") == "profiling"] or phases[-1:]
    loadgen = config.get("loadgen")
    places = [*phases, loadgen if isinstance(loadgen, Mapping) else {}]
    found = next((value for x in places if (value := number(x.get("concurrency")))), None)
    return None if found is None else int(found)


def _dataset(config: Any) -> str:
    """Name the prompts; without a file or a public set they are synthetic."""
    if not isinstance(config, Mapping):
        return "unknown"
    found = config.get("datasets") or [config.get("dataset") or config.get("input") or {}]
    first: Any = next(iter(found.values() if isinstance(found, Mapping) else found), {})
    if not isinstance(first, Mapping):
        return "unknown"
    named = first.get("public_dataset") or first.get("path") or first.get("file")
    return str(named or first.get("type") or "synthetic").rpartition("/")[2]


def _stat(row: Mapping[str, Any], metric: str, stat: str = "avg") -> float | None:
    block = row.get(metric)
    return number(block.get(stat)) if isinstance(block, Mapping) else None


def _needed(row: Mapping[str, Any], metric: str) -> float:
    found = _stat(row, metric)
    if found is None:
        raise ValueError(f"`{metric}` is missing")
    return found


def _milliseconds(row: Mapping[str, Any], metric: str, stat: str = "avg") -> float | None:
    found = _stat(row, metric, stat)
    return None if found is None else found * MILLISECONDS[str(row[metric].get("unit", "ms"))]


def _quantiles(row: Mapping[str, Any], metric: str) -> Quantiles | None:
    return quantiles(*(_milliseconds(row, metric, stat) for stat in ("p50", "p90", "p99")))
