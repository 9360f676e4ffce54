"""Results of `python -m sglang.bench_serving --output-file`, one JSON object a line. Pure.

Read of SGLang 0.5.9 (`bench_serving.py`) and 0.5.23 (`benchmark/serving.py`, which its successor
`sglang.benchmark.serving` shares): the keys used here are the same in both. Its tokens are those
it asked for or the server's usage, so several tokens in one event are not lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from opsctl.bench.imports_common import number, quantiles, required, rounded, shortfall
from opsctl.bench.results import Cell, Profile, Quantiles, Result

FLAGS = ("speculative_algorithm", "speculative_num_steps", "tp_size", "attention_backend")


def recognised(row: Mapping[str, Any]) -> bool:
    """Whether this is a line of bench_serving."""
    return {"output_throughput", "total_output_tokens", "dataset_name", "backend"} <= set(row)


def result(rows: Sequence[dict[str, Any]], name: str) -> Result:
    """Return the lines as a result; lines with the same tag and load are repeats.

    Raises ValueError for lines that miss what a cell needs, or use different data sets.
    """
    datasets = sorted({str(row["dataset_name"]) for row in rows})
    if len(datasets) != 1:
        raise ValueError(f"several data sets in one file: {', '.join(datasets)}")
    seen: Counter[tuple[str, int, int]] = Counter()
    cells = []
    for row in rows:
        key = (str(row.get("tag") or name), _concurrency(row), _context(row))
        cells.append(_cell(row, key, seen[key]))
        seen[key] += 1
    first = {cell.profile: row for cell, row in reversed(list(zip(cells, rows, strict=True)))}
    return Result(
        schema="opsctl/bench/v1",
        started="",
        environment={"tool": "sglang.bench_serving"},
        workload=f"sglang:{datasets[0]}",
        salted=False,  # with one seed, every run sends the same prompts (vllm#54227)
        profiles=tuple(_profile(tag, row, cells) for tag, row in first.items()),
        grid={},
        complete=True,
        cells=tuple(cells),
    )


def _concurrency(row: Mapping[str, Any]) -> int:
    asked = number(row.get("max_concurrency"))
    # Without a limit there is no closed loop; the mean that ran is the best name for the cell.
    return max(1, round(required(dict(row), "concurrency") if asked is None else asked))


def _context(row: Mapping[str, Any]) -> int:
    return rounded(required(dict(row), "total_input_tokens") / max(1, int(row["completed"])))


def _cell(row: dict[str, Any], key: tuple[str, int, int], repeat: int) -> Cell:
    profile, concurrency, context = key
    tokens, seconds = required(row, "total_output_tokens"), required(row, "duration")
    effective, completed = number(row.get("concurrency")), int(row["completed"])
    reason = _reason(row) or shortfall(effective, concurrency)
    throughput = required(row, "output_throughput")
    return Cell(
        profile=profile,
        concurrency=concurrency,
        context=context,
        repeat=repeat,
        valid=not reason,
        reason=reason,
        tokens=int(tokens),
        seconds=seconds,
        throughput_tok_s=throughput,
        per_user_tok_s=throughput / (effective or concurrency),
        ttft_s=_latency(row, "ttft"),
        tpot_s=_latency(row, "tpot"),
        accept_length=number(row.get("accept_length")) or None,
        effective_concurrency=effective,
        requests=completed,
        output_tokens_mean=tokens / completed if completed else None,
        prefix_cache_hit_rate=_hit_rate(row),
    )


def _reason(row: Mapping[str, Any]) -> str:
    if int(row["completed"]) <= 0:
        return "no request was completed"
    if number(row.get("max_concurrency")) is None:
        return "no --max-concurrency: an open loop, not a concurrency"
    errors = [text for text in row.get("errors") or () if text]
    return f"{len(errors)} requests failed" if errors else ""


def _latency(row: Mapping[str, Any], what: str) -> Quantiles | None:
    values = [number(row.get(f"{name}_{what}_ms")) for name in ("median", "p90", "p99")]
    return quantiles(*values)


def _hit_rate(row: Mapping[str, Any]) -> float | None:
    report = row.get("cache_report")
    share = number(report.get("cache_hit_rate_pct")) if isinstance(report, Mapping) else None
    return None if share is None else share / 100


def _profile(tag: str, row: Mapping[str, Any], cells: Sequence[Cell]) -> Profile:
    server = row.get("server_info")
    server = server if isinstance(server, Mapping) else {}
    accepts = any(cell.accept_length for cell in cells if cell.profile == tag)
    version = server.get("version")
    return Profile(
        name=tag,
        fingerprint="",
        speculative=bool(server.get("speculative_algorithm")) or accepts,
        flags={key: server[key] for key in FLAGS if server.get(key) is not None},
        versions={"sglang": str(version)} if version else {},
    )
