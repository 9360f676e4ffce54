"""Load of one engine, read from `/v1/loads` or, on older engines, from its metrics.

Unknown is not idle and not-a-number is not zero: a number that is missing or broken is None, and
without running and queued counts there is no answer at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

_STALE_AFTER = 5.0


@dataclass(frozen=True)
class Loads:
    """Sums over all data-parallel ranks.

    `timestamp` (UNIX seconds) is the oldest rank's; None when the engine does not say.
    `stale`: the numbers are old although requests are running; treat the load as unknown.
    `progress`: whatever moves when the engine works; equal twice means that it did not.
    """

    timestamp: float | None
    running: int
    queued: int
    used_tokens: int | None
    capacity_tokens: int | None
    max_running: int | None
    generation_tokens_total: int | None
    prefill_tokens_total: int | None
    accept_length: float | None
    progress: tuple[float | None, ...]
    stale: bool = False


def from_json(data: object, *, now: float, stale_after: float = _STALE_AFTER) -> Loads | None:
    """Read the answer of `/v1/loads`; None when it does not hold a load.

    The time stamp is no progress: a stalled scheduler publishes it too.
    """
    ranks = data.get("loads") if isinstance(data, Mapping) else None
    if not isinstance(ranks, list) or not ranks:
        return None
    if not all(isinstance(rank, Mapping) for rank in ranks):
        return None

    def total(name: str) -> int | None:
        return _sum(_count(rank.get(name)) for rank in ranks)

    running, queued = total("num_running_reqs"), total("num_waiting_reqs")
    if running is None or queued is None:
        return None
    stamps = [_number(rank.get("timestamp")) for rank in ranks]
    known = [stamp for stamp in stamps if stamp]
    timestamp = min(known) if known else None
    used = total("num_used_tokens")
    prefill = total("total_prefill_uncached_tokens")
    return Loads(
        timestamp=timestamp,
        running=running,
        queued=queued,
        used_tokens=used,
        capacity_tokens=total("max_total_num_tokens"),
        max_running=total("max_running_requests"),
        generation_tokens_total=None,
        prefill_tokens_total=prefill,
        accept_length=_accept_length(ranks),
        progress=(used, prefill, total("total_prefill_busy_us"), *_decode_moments(ranks)),
        stale=timestamp is not None and running > 0 and now - timestamp > stale_after,
    )


def from_metrics(text: str) -> Loads | None:
    """Read the Prometheus exposition; None when it does not hold a load.

    Every tensor-parallel rank may publish its own copy, so the largest one per data-parallel
    rank counts. Names begin with `sglang:`, behind some exporters with `sglang_`.
    """
    samples = _samples(text)

    def total(name: str, within: Callable[[Iterable[float]], float] = max) -> int | None:
        found = samples.get(name)
        return None if not found else _sum(_count(within(values)) for values in found.values())

    running, queued = total("num_running_reqs"), total("num_queue_reqs")
    if running is None or queued is None:
        return None
    used = total("num_used_tokens")
    prompt, generated = total("prompt_tokens_total", sum), total("generation_tokens_total", sum)
    realtime = total("realtime_tokens_total", sum)
    lengths = [max(values) for values in samples.get("spec_accept_length", {}).values()]
    return Loads(
        timestamp=None,
        running=running,
        queued=queued,
        used_tokens=used,
        capacity_tokens=total("max_total_num_tokens"),
        max_running=total("max_running_requests"),
        generation_tokens_total=generated,
        prefill_tokens_total=prompt,
        # Real lengths begin at 1; 0 says that nothing has been drafted.
        accept_length=_mean([length for length in lengths if length > 0]),
        progress=(used, prompt, generated, realtime),
    )


def _samples(text: str) -> dict[str, dict[str, list[float]]]:
    """Finite values by short metric name and data-parallel rank."""
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - slow

    found: dict[str, dict[str, list[float]]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name.removeprefix("sglang:").removeprefix("sglang_")
                if name != sample.name and math.isfinite(sample.value):
                    ranks = found.setdefault(name, {})
                    ranks.setdefault(sample.labels.get("dp_rank", ""), []).append(sample.value)
    except ValueError:
        return {}
    return found


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return None
    return number if math.isfinite(number) else None


def _count(value: object) -> int | None:
    number = _number(value)
    return None if number is None or number < 0 else int(number)


def _sum(values: Iterable[int | None]) -> int | None:
    """One unknown part makes the sum unknown."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _accept_length(ranks: list[Mapping[str, object]]) -> float | None:
    found = []
    for rank in ranks:
        section = rank.get("speculative")
        value = _number(section.get("accept_length")) if isinstance(section, Mapping) else None
        if value:
            found.append(value)
    return _mean(found)


def _decode_moments(ranks: list[Mapping[str, object]]) -> tuple[float | None, ...]:
    """Sums over decode steps (0.5.2x): they move with every step, whatever the tokens do."""
    moments = [rank.get("decode_moments") for rank in ranks]
    return tuple(_number(v) for values in moments if isinstance(values, list) for v in values[:8])
