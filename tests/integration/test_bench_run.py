"""`opsctl bench run` as a person uses it: to the end, interrupted, killed, resumed, at a URL."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl.bench.results import load
from tests.support.server import wait_until
from tests.support.simulated import profile
from tests.support.simulated_engine import simulated

SPEC = {
    "speculative_algorithm": "EAGLE3",
    "speculative_num_steps": 3,
    "speculative_num_draft_tokens": 4,
}
SHORT = ("--concurrency", "1,4", "--duration", "1s", "--output-tokens", "16")
BOTH = ("--profile", "baseline", "--profile", "eagle3")


class Bench:
    """A configuration, a result directory, and runs of the command."""

    def __init__(self, folder: Path, **flags: object) -> None:
        quick = {"tp_size": 1, "sim_prefill_rate": 1e6, "sim_time_scale": 0.5} | flags
        self.out = folder / "results"
        self.config = folder / "opsctl.yaml"
        profiles = {
            "baseline": profile("baseline", **quick),
            "eagle3": profile("speculative", **(SPEC | quick)),
        }
        self.config.write_text(
            yaml.safe_dump({"profiles": profiles, "serve": {"profile": "baseline"}})
        )

    def begin(self, *arguments: str, stderr: Any = subprocess.PIPE) -> Any:
        """Start the command."""
        return subprocess.Popen(
            [sys.executable, "-m", "opsctl", "bench", "run", "--out", str(self.out), *arguments],
            stdout=subprocess.PIPE, stderr=stderr, text=True,
            env={**os.environ, "OPSCTL_CONFIG": str(self.config)},
        )  # fmt: skip

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        process = self.begin(*arguments)
        out, err = process.communicate(timeout=150)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def cells(self) -> dict[str, float]:
        """Names of the cells on disk, and when each was written."""
        return {path.stem: path.stat().st_mtime for path in (self.out / "cells").glob("*.json")}

    def engines(self) -> list[int]:
        """Living processes whose log is in the result directory."""
        return [pid for pid in map(int, _pids()) if str(self.out) in _log_of(pid)]

    def until(self, condition: Callable[[], object], process: Any, seconds: float = 60.0) -> None:
        """Wait for something of a run that has not ended."""

        def look() -> object:
            assert process.poll() is None, process.communicate()
            return condition()

        wait_until(look, seconds=seconds, what="what the run was to do")


def _pids() -> Iterator[str]:
    return (entry.name for entry in Path("/proc").iterdir() if entry.name.isdecimal())


def _log_of(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/fd/1").readlink())
    except OSError:
        return ""


def test_two_profiles_are_measured_in_turns_and_nothing_is_left(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    done = bench.run(*BOTH, *SHORT, "--repeats", "2", "-o", "json")
    assert done.returncode == 0, done.stderr
    result = load(bench.out)
    assert result.complete
    assert len(result.cells) == 2 * 2 * 2
    starts = [line for line in done.stderr.splitlines() if line.endswith("starting its engine")]
    assert [line.split(":")[0] for line in starts] == ["baseline", "eagle3", "baseline"]
    assert json.loads(done.stdout)["schema"] == "opsctl/bench/v1"
    assert [each.speculative for each in result.profiles] == [False, True]
    assert all(each.fingerprint.startswith("sha256:") for each in result.profiles)
    assert all(each.versions for each in result.profiles)
    for cell in result.cells:
        assert cell.tokens > 0
        assert cell.throughput_tok_s > 0
        assert cell.output_tokens_mean == 16
        assert (cell.accept_length is not None) == (cell.profile == "eagle3")
    assert bench.engines() == []
    assert not (bench.out / "engine.json").exists()


def test_ctrl_c_leaves_a_valid_partial_result_and_no_engine(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    process = bench.begin(*BOTH, *SHORT, "--repeats", "2")
    bench.until(lambda: len(bench.cells()) >= 1, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    result = load(bench.out)
    assert not result.complete
    assert 1 <= len(result.cells) < 8
    assert bench.engines() == []
    assert "Traceback" not in err


def test_a_second_ctrl_c_does_not_leave_the_engine_behind(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sim_fault="slow_stop=2")
    told = tmp_path / "stderr"
    with told.open("w") as stderr:
        process = bench.begin("--profile", "baseline", *SHORT, stderr=stderr)
    bench.until(lambda: len(bench.cells()) >= 1, process)
    process.send_signal(signal.SIGINT)
    bench.until(lambda: "SIGINT: stopping" in told.read_text(), process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130, told.read_text()
    assert "please wait" in told.read_text()
    assert bench.engines() == []
    assert load(bench.out).complete is False


def test_sigterm_while_an_engine_starts_ends_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sim_start_time=30)
    process = bench.begin("--profile", "baseline", *SHORT)
    bench.until(bench.engines, process)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert bench.engines() == []


def test_a_run_that_was_killed_goes_on_and_ends_the_engine_it_left(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    process = bench.begin(*BOTH, *SHORT, "--repeats", "1")
    bench.until(lambda: len(bench.cells()) == 1, process)
    process.kill()
    process.communicate(timeout=60)
    before = bench.cells()
    left = bench.engines()
    assert left, "the engine dies with its parent, so nothing is proved here"
    done = bench.run(*BOTH, *SHORT, "--repeats", "1")
    assert done.returncode == 0, done.stderr
    assert "ended the engine of a run that was killed here" in done.stderr
    after = bench.cells()
    assert len(after) == 4
    assert {name: after[name] for name in before} == before  # what was measured is kept
    assert load(bench.out).complete
    assert bench.engines() == []


def test_a_complete_run_is_not_measured_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    options = ("--profile", "baseline", *SHORT, "--repeats", "1")
    assert bench.run(*options).returncode == 0
    before = bench.cells()
    again = bench.run(*options)
    assert again.returncode == 0
    assert "starting" not in again.stderr
    assert bench.cells() == before
    more = bench.run("--profile", "baseline", *SHORT[2:], "--concurrency", "2", "--repeats", "1")
    assert more.returncode == 0, more.stderr
    assert len(bench.cells()) == 3


def test_cells_that_were_not_valid_are_measured_again_when_asked(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    options = ("--profile", "baseline", *SHORT[2:], "--concurrency", "1,128", "--repeats", "1")
    bench.run(*options)
    before = bench.cells()
    assert "starting" not in bench.run(*options).stderr
    assert "starting" in bench.run(*options, "--again").stderr
    after = bench.cells()
    assert after["baseline-c128-k0-r0"] > before["baseline-c128-k0-r0"]


def test_another_measurement_is_not_mixed_into_a_folder(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    options = ("--profile", "baseline", "--concurrency", "1", "--duration", "1s", "--repeats", "1")
    assert bench.run(*options, "--output-tokens", "16").returncode == 0
    other = bench.run(*options, "--output-tokens", "32")
    assert other.returncode == 2
    assert "output_tokens 16, not 32" in other.stderr


def test_a_concurrency_beyond_the_engine_reads_not_available(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    done = bench.run(
        "--profile", "baseline", "--concurrency", "128", "--duration", "1s", "--repeats", "1"
    )
    assert done.returncode == 1
    assert "N/A (64/128)" in done.stdout


def test_an_engine_that_dies_is_started_again_for_the_cells_left(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sim_fault="crash_after=12", sim_crash_delay=0.1)
    done = bench.run(
        "--profile", "baseline", "--concurrency", "1,2", "--requests", "30", "--repeats", "1",
        "--output-tokens", "16",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("starting its engine") == 2
    assert "its engine is lost" in done.stderr
    assert len(bench.cells()) == 2
    assert bench.engines() == []


def test_a_profile_that_does_not_start_fails_and_keeps_what_there_is(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    document = yaml.safe_load(bench.config.read_text())
    document["profiles"]["eagle3"]["flags"]["sim-fault"] = "start_failure=1:oom"
    bench.config.write_text(yaml.safe_dump(document))
    done = bench.run(*BOTH, *SHORT, "--repeats", "1")
    assert done.returncode == 1
    assert "eagle3" in done.stderr
    result = load(bench.out)
    assert not result.complete
    assert {cell.profile for cell in result.cells} == {"baseline"}
    assert bench.engines() == []


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    process = bench.begin("--profile", "baseline", *SHORT)
    bench.until((bench.out / "engine.json").exists, process)
    other = bench.run("--profile", "baseline", *SHORT)
    assert other.returncode == 75
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)


async def test_a_running_server_is_measured_at_its_url_and_left_running(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    async with simulated(
        tmp_path, "--sim-prefill-rate", "1e6", "--sim-time-scale", "0.5"
    ) as server:
        done = await asyncio.to_thread(
            bench.run, "--url", server.url, "--profile", "mine", *SHORT, "--repeats", "1"
        )
        assert done.returncode == 0, done.stderr
        assert await server.status("/ready") == 200
    result = load(bench.out)
    assert [each.name for each in result.profiles] == ["mine"]
    assert result.profiles[0].fingerprint == ""
    assert len(result.cells) == 2


def test_an_open_loop_counts_latency_from_the_time_a_request_was_due(tmp_path: Path) -> None:
    """One slot of half a second, a request every 0.25 s: the queue grows, and is seen."""
    bench = Bench(tmp_path, max_running_requests=1, sim_time_scale=1.0)
    table = tmp_path / "arrivals.jsonl"
    table.write_text("".join(f'{{"at": {0.25 * n}, "max_tokens": 46}}\n' for n in range(8)))
    done = bench.run("--profile", "baseline", "--arrivals", str(table), "--repeats", "1")
    assert done.returncode == 0, done.stderr
    [cell] = load(bench.out).cells
    assert (cell.mode, cell.extra["loop"]) == ("latency", "open")
    # 92.6 tok/s: each takes 0.5 s, so the last waits for seven others, less its 1.75 s.
    assert cell.ttft_s is not None
    assert cell.ttft_s.p99 == pytest.approx(7 * 0.25, rel=0.25)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((), "nothing to measure"),
        (("--profile", "nobody"), "no profile 'nobody'"),
        (("--profile", "baseline", "--profile", "baseline"), "is given twice"),
        (("--profile", "baseline", "--duration", "30"), "--duration: "),
        (("--profile", "baseline", "--workload", "no.jsonl"), "--workload no.jsonl"),
        (("--url", "http://127.0.0.1:1", "--api-key-env", "NOT_SET_ANYWHERE"), "is not set"),
    ],
)
def test_a_wrong_command_line_is_refused(
    tmp_path: Path, arguments: tuple[str, ...], what: str
) -> None:
    bench = Bench(tmp_path)
    done = bench.run(*arguments)
    assert (done.returncode, what in done.stderr) == (2, True), done.stderr


def test_a_url_without_a_server_is_told(tmp_path: Path) -> None:
    done = Bench(tmp_path).run("--url", "http://127.0.0.1:1", *SHORT)
    assert done.returncode == 4
    assert "no model is listed at http://127.0.0.1:1/v1/models" in done.stderr
