from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opsctl.bench.compare import compare
from opsctl.bench.imports import load_source, load_sources
from opsctl.bench.results import Cell, ResultError, save_result
from tests.support.measured import reference_host

SGLANG: dict[str, Any] = {
    "tag": None,
    "backend": "sglang-oai-chat",
    "dataset_name": "sharegpt",
    "request_rate": None,
    "max_concurrency": 16,
    "server_info": {"version": "0.5.23", "speculative_algorithm": None, "tp_size": 8},
    "duration": 40.0,
    "completed": 320,
    "total_input_tokens": 98304,
    "total_output_tokens": 24000,
    "output_throughput": 600.0,
    "median_ttft_ms": 210.0,
    "p90_ttft_ms": 300.0,
    "p99_ttft_ms": 480.0,
    "median_tpot_ms": 25.0,
    "p90_tpot_ms": 28.0,
    "p99_tpot_ms": 33.0,
    "concurrency": 15.6,
    "accept_length": None,
}
"""Keys as SGLang 0.5.23 writes them; the numbers are made up."""
AIPERF: dict[str, Any] = {
    "schema_version": "1.3",
    "input_config": {"phases": [{"name": "profiling", "concurrency": 32}], "dataset": {}},
    "request_count": {"unit": "requests", "avg": 256.0},
    "request_latency": {"unit": "ms", "avg": 2500.0, "p50": 2400.0},
    "benchmark_duration": {"unit": "sec", "avg": 20.3},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 1577.0},
    "output_sequence_length": {"unit": "tokens", "avg": 125.0},
    "input_sequence_length": {"unit": "tokens", "avg": 16384.0},
    "time_to_first_token": {"unit": "ms", "p50": 175.0, "p90": 251.0, "p99": 253.0},
    "inter_token_latency": {"unit": "ms", "p50": 34.0, "p90": 35.0, "p99": 36.0},
    "start_time": "2026-06-13T05:11:41",
    "was_cancelled": False,
    "error_summary": [],
}
"""Metrics as aiperf's documentation describes them; the numbers are made up."""


def lines(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def only(argument: str) -> Cell:
    [cell] = load_source(argument).result.cells
    return cell


# --- sglang.bench_serving ----------------------------------------------------------------------


def test_a_line_of_bench_serving_is_a_cell(tmp_path: Path) -> None:
    cell = only(lines(tmp_path / "base.jsonl", SGLANG))
    assert (cell.profile, cell.concurrency, cell.context) == ("base", 16, 310)
    assert (cell.valid, cell.tokens, cell.throughput_tok_s) == (True, 24000, 600.0)
    assert cell.ttft_s is not None and cell.tpot_s is not None
    assert (cell.ttft_s.p90, cell.tpot_s.p50) == (0.3, 0.025)
    assert (cell.output_tokens_mean, cell.effective_concurrency) == (75.0, 15.6)


def test_lines_of_one_load_are_repeats_and_tags_are_profiles(tmp_path: Path) -> None:
    spec = SGLANG | {"tag": "eagle3", "accept_length": 2.6, "output_throughput": 400.0}
    base = SGLANG | {"tag": "plain"}
    rows = [base, spec, base | {"output_throughput": 606.0}, spec | {"output_throughput": 404.0}]
    [pair] = compare([load_source(lines(tmp_path / "x.jsonl", *rows))]).pairs
    assert (pair.profile.name, pair.baseline.name) == ("eagle3", "plain")
    assert (pair.cells[0].repeats, pair.cells[0].verdict) == (2, "worse")


def test_a_name_on_the_command_line_names_the_profile(tmp_path: Path) -> None:
    files = [lines(tmp_path / f"{n}.jsonl", SGLANG, SGLANG | {"duration": 41.0}) for n in "ab"]
    sources = load_sources([f"plain={files[0]}", f"tuned={files[1]}"])
    [pair] = compare(sources, baseline="plain").pairs
    assert pair.profile.name == "tuned"


def test_a_release_without_p90_has_no_latencies_rather_than_invented_ones(tmp_path: Path) -> None:
    old = {k: v for k, v in SGLANG.items() if not k.startswith("p90")}
    cell = only(lines(tmp_path / "x.jsonl", old))
    assert (cell.ttft_s, cell.tpot_s, cell.valid) == (None, None, True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"concurrency": 14.5}, "N/A (14.5/16)"),
        ({"max_concurrency": None}, "no --max-concurrency"),
        ({"completed": 0}, "no request was completed"),
        ({"errors": ["", "timeout", "reset"]}, "2 requests failed"),
    ],
)
def test_a_line_that_measured_something_else_is_not_valid(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    cell = only(lines(tmp_path / "x.jsonl", SGLANG | change))
    assert not cell.valid
    assert cell.reason.startswith(reason)


def test_its_prompts_count_as_not_salted_and_its_random_ones_as_no_text(tmp_path: Path) -> None:
    both = [SGLANG, SGLANG | {"max_concurrency": 1, "concurrency": 1.0, "tag": "other"}]
    random = [row | {"dataset_name": "random"} for row in both]
    found = load_source(lines(tmp_path / "x.jsonl", *random)).result
    assert (found.salted, found.workload) == (False, "sglang:random")


# --- aiperf ------------------------------------------------------------------------------------


def test_an_export_of_aiperf_is_a_cell(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "profile_export_aiperf.json").write_text(json.dumps(AIPERF))
    cell = only(f"eagle3={tmp_path / 'run'}")
    assert (cell.profile, cell.concurrency, cell.context) == ("eagle3", 32, 16000)
    assert (cell.valid, cell.throughput_tok_s, cell.seconds) == (True, 1577.0, 20.3)
    assert cell.effective_concurrency == pytest.approx(256 * 2.5 / 20.3)
    assert cell.tpot_s is not None and cell.tpot_s.p50 == pytest.approx(0.034)


def test_an_older_aiperf_has_its_concurrency_elsewhere(tmp_path: Path) -> None:
    old = AIPERF | {"input_config": {"loadgen": {"concurrency": 32}}}
    assert only(lines(tmp_path / "x.json", old)).concurrency == 32


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"was_cancelled": True}, "the run was cancelled"),
        ({"error_request_count": {"avg": 3.0}}, "3 requests failed"),
        ({"error_summary": [{"count": 3}]}, "requests failed"),
        ({"input_config": {}}, "no concurrency in its configuration"),
        ({"benchmark_duration": {"unit": "sec", "avg": 30.0}}, "N/A (21.3/32)"),
    ],
)
def test_a_run_that_measured_something_else_is_not_valid(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    cell = only(lines(tmp_path / "x.json", AIPERF | change))
    assert not cell.valid
    assert cell.reason.startswith(reason)


def test_runs_given_one_by_one_under_one_name_are_repeats(tmp_path: Path) -> None:
    arguments = []
    for number in range(4):
        gain = 0.8 if number >= 2 else 1.0
        rate = {"unit": "tokens/sec", "avg": (1577.0 + number) * gain}
        path = lines(tmp_path / f"{number}.json", AIPERF | {"output_token_throughput": rate})
        arguments.append(f"{'b' if number >= 2 else 'a'}={path}")
    [pair] = compare(load_sources(arguments), baseline="a").pairs
    assert (pair.cells[0].repeats, pair.cells[0].baseline_repeats) == (2, 2)
    assert pair.cells[0].verdict == "worse"


# --- files -------------------------------------------------------------------------------------


def test_opsctls_own_results_are_read_by_folder_and_by_file(tmp_path: Path) -> None:
    wanted = reference_host().result
    save_result(tmp_path / "run", wanted)
    assert load_source(str(tmp_path / "run")).result == wanted
    assert load_source(str(tmp_path / "run" / "result.json")).result == wanted
    assert load_source(str(tmp_path / "run")).name == "run"


def test_results_of_one_name_are_told_apart(tmp_path: Path) -> None:
    paths = [tmp_path / day / "run" for day in ("monday", "tuesday")]
    for path in paths:
        save_result(path, reference_host().result)
    names = [source.name for source in load_sources([str(path) for path in paths])]
    assert names == [str(path) for path in paths]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not made of JSON objects"),
        ("[]", "not made of JSON objects"),
        ("[1]", "not made of JSON objects"),
        ('{"a": 1}', "the form of this file is not known"),
        ('{"a": 1}\n{"a"', r":2: not JSON"),
        (json.dumps(SGLANG | {"output_throughput": None}), "`output_throughput` is missing"),
        (json.dumps(AIPERF | {"request_count": {}}), "`request_count` is missing"),
        ('{"schema": "opsctl/bench/v1"}', "not a result of `opsctl bench`"),
    ],
)
def test_a_file_that_is_no_result_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(ResultError, match=words) as error:
        load_source(str(path))
    assert "file.json" in error.value.message


@pytest.mark.parametrize("what", ["missing", "empty folder", "binary"])
def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path, what: str) -> None:
    path = tmp_path / "it"
    if what == "empty folder":
        path.mkdir()
    elif what == "binary":
        path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ResultError, match="it: "):
        load_source(str(path))
