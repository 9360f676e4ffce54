from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.engine.loads import Loads, from_json, from_metrics

RANK = {
    "timestamp": 1000.0,
    "dp_rank": 0,
    "num_running_reqs": 4,
    "num_waiting_reqs": 3,
    "num_used_tokens": 500,
    "max_total_num_tokens": 8192,
    "max_running_requests": 48,
    "total_prefill_uncached_tokens": 70,
    "total_prefill_busy_us": 9000,
    "decode_moments": [10.0, 2.5],
    "speculative": {"accept_length": 2.5, "accept_rate": 0.5},
}


def answer(*ranks: dict[str, object]) -> dict[str, object]:
    return {"timestamp": "2026-11-29T10:00:00+00:00", "version": "0.5.23", "loads": list(ranks)}


def read(*ranks: dict[str, object], now: float = 1001.0) -> Loads:
    loads = from_json(answer(*ranks), now=now)
    assert loads is not None
    return loads


def test_ranks_are_added_up() -> None:
    loads = read(RANK, {**RANK, "dp_rank": 1, "num_running_reqs": 6, "timestamp": 999.0})
    assert (loads.running, loads.queued, loads.used_tokens) == (10, 6, 1000)
    assert (loads.capacity_tokens, loads.max_running) == (16384, 96)
    assert loads.timestamp == 999.0
    assert loads.accept_length == 2.5
    assert loads.prefill_tokens_total == 140


def test_running_requests_with_old_numbers_are_stale_and_idle_ones_are_not() -> None:
    assert not read(RANK, now=1005.0).stale
    assert read(RANK, now=1005.1).stale
    assert not read({**RANK, "num_running_reqs": 0}, now=2000.0).stale
    assert not read({**RANK, "timestamp": None}, now=2000.0).stale
    assert not read({**RANK, "timestamp": 0.0}, now=2000.0).stale  # a rank that never published


def test_one_stuck_rank_makes_the_load_stale() -> None:
    assert read(RANK, {**RANK, "timestamp": 2000.0}, now=2000.0).stale


@pytest.mark.parametrize(
    "moved",
    [
        {"num_used_tokens": 501},
        {"total_prefill_uncached_tokens": 71},
        {"total_prefill_busy_us": 9001},
        {"decode_moments": [11.0, 2.5]},
    ],
)
def test_work_shows_as_progress(moved: dict[str, object]) -> None:
    assert read({**RANK, **moved}).progress != read(RANK).progress


def test_a_new_time_stamp_alone_is_no_progress() -> None:
    """A stalled scheduler with a queue publishes every 50 ms."""
    assert read({**RANK, "timestamp": 1000.9}).progress == read(RANK).progress


def test_missing_and_broken_numbers_are_unknown_not_zero() -> None:
    loads = read({"num_running_reqs": 1, "num_waiting_reqs": 0, "num_used_tokens": math.nan})
    assert loads.used_tokens is None
    assert loads.capacity_tokens is None
    assert loads.accept_length is None
    assert loads.timestamp is None


@pytest.mark.parametrize(
    "broken",
    [
        None,
        [],
        {},
        {"loads": []},
        {"loads": [1]},
        {"loads": [{"num_running_reqs": 1}]},
        {"loads": [{"num_running_reqs": "1", "num_waiting_reqs": 0}]},
        {"loads": [{"num_running_reqs": math.nan, "num_waiting_reqs": 0}]},
        {"loads": [{"num_running_reqs": -1, "num_waiting_reqs": 0}]},
        {"loads": [{"num_running_reqs": 10**400, "num_waiting_reqs": 0}]},
        {"loads": [RANK, {}]},
    ],
)
def test_without_both_counts_there_is_no_load(broken: object) -> None:
    assert from_json(broken, now=1.0) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(RANK)), inner),
    max_leaves=12,
)


@given(ranks=st.lists(json_values, max_size=3))
def test_hostile_answers_are_read_or_refused_but_never_raise(ranks: list[object]) -> None:
    loads = from_json({"loads": ranks}, now=1.0)
    assert loads is None or (loads.running >= 0 and loads.queued >= 0)


def exposition(prefix: str) -> str:
    return "\n".join(
        [
            f"# TYPE {prefix}num_running_reqs gauge",
            f'{prefix}num_running_reqs{{dp_rank="0",tp_rank="0"}} 4.0',
            f'{prefix}num_running_reqs{{dp_rank="0",tp_rank="1"}} 4.0',
            f'{prefix}num_running_reqs{{dp_rank="1",tp_rank="0"}} 2.0',
            f"# TYPE {prefix}num_queue_reqs gauge",
            f'{prefix}num_queue_reqs{{dp_rank="0",tp_rank="0"}} 1.0',
            f'{prefix}num_queue_reqs{{dp_rank="0",tp_rank="1"}} NaN',
            f"# TYPE {prefix}num_used_tokens gauge",
            f'{prefix}num_used_tokens{{dp_rank="0"}} 50.0',
            f"# TYPE {prefix}generation_tokens_total counter",
            f'{prefix}generation_tokens_total{{model_name="a"}} 7.0',
            f'{prefix}generation_tokens_total{{model_name="b"}} 5.0',
            f"# TYPE {prefix}spec_accept_length gauge",
            f'{prefix}spec_accept_length{{tp_rank="0"}} 2.5',
            "",
        ]
    )


@pytest.mark.parametrize("prefix", ["sglang:", "sglang_"])
def test_metrics_of_older_engines_are_read(prefix: str) -> None:
    loads = from_metrics(exposition(prefix))
    assert loads is not None
    assert (loads.running, loads.queued) == (6, 1)
    assert (loads.used_tokens, loads.generation_tokens_total) == (50, 12)
    assert loads.accept_length == 2.5
    assert loads.capacity_tokens is None
    moved = from_metrics(exposition(prefix).replace(" 7.0", " 8.0"))
    assert moved is not None
    assert moved.progress != loads.progress


def test_an_accept_length_of_zero_is_none_at_all() -> None:
    """SGLang 0.5.9 publishes one although nothing is drafted."""
    names = ("num_running_reqs", "num_queue_reqs", "spec_accept_length")
    text = "\n".join(f"sglang:{name} 0.0" for name in names)
    loads = from_metrics(text + "\n")
    assert loads is not None
    assert (loads.running, loads.accept_length) == (0, None)


@pytest.mark.parametrize(
    "text", ["", "garbage {", "other_metric 1\n", "sglang:num_running_reqs 1\n"]
)
def test_metrics_without_a_load_are_no_load(text: str) -> None:
    assert from_metrics(text) is None
