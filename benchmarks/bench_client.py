"""What measuring costs: CPU of `opsctl bench run` beside other load generators, in one run.

    python benchmarks/bench_client.py [-o table|json] [--streams 32] [--tokens 64]
        [--tokenizer DIR] [--sglang PYTHON] [--aiperf PROGRAM]

All of them stream chat answers of one simulated engine, one token an event. Each is run with few
requests and with many; the difference in CPU (user + system, children included) over the
difference in tokens, by the engine's own counter, is the cost of an event. Start-up drops out.
One process can take at most 1 / cost events per second. A tool that is not given is left out.
The run reports, and always exits 0: absolute figures mean nothing on a shared host.
"""

from __future__ import annotations

# ruff: noqa: D102, D103 - a script; its names say what they do
import argparse
import contextlib
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

COUNTER = re.compile(r"^sglang:generation_tokens_total\{[^}]*\} (\S+)$", re.MULTILINE)
FEW, MANY = 2, 12
"""Requests for each stream."""

Command = Callable[[int], list[str]]


@dataclass(frozen=True)
class Cost:
    """Of one tool: microseconds of CPU an event, the median of its rounds."""

    tool: str
    us_per_event: float

    @property
    def events_per_second(self) -> float:
        return 1e6 / self.us_per_event


@contextlib.contextmanager
def engine(folder: Path, scale: float) -> Iterator[str]:
    """A simulated engine; yields its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = [
        "--model-path", "demo", "--port", str(port), "--enable-metrics", "--sim-start-time", "0.2",
        "--sim-prefill-rate", "1e6", "--sim-time-scale", str(scale),
        "--sim-surface", "reference_host:baseline",
    ]  # fmt: skip
    with (folder / "engine.log").open("wb") as log:
        command = [sys.executable, "-m", "opsctl.engine.simulated", *arguments]
        with subprocess.Popen(command, stdout=log, stderr=log) as process:
            url = f"http://127.0.0.1:{port}"
            try:
                while not answers(f"{url}/ready"):
                    time.sleep(0.1)
                yield url
            finally:
                process.terminate()


def answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=2.0):
            return True
    except (URLError, OSError):
        return False


def counted(url: str) -> float:
    with urlopen(f"{url}/metrics", timeout=5.0) as response:
        return sum(float(value) for value in COUNTER.findall(response.read().decode()))


def spent(command: list[str], folder: Path) -> float:
    """CPU seconds of a command and of what it started; raises when it fails."""
    log = folder / "tool.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command[0]}: {log.read_text(errors='replace')[-1500:]}")
    return usage.ru_utime + usage.ru_stime


def cost(tool: str, command: Command, url: str, folder: Path, options: argparse.Namespace) -> Cost:
    found = []
    for _ in range(options.rounds):
        points = []
        for each in (FEW, MANY):
            before = counted(url)
            cpu = spent(command(each * options.streams), folder)
            points.append((counted(url) - before, cpu))
        (few, less), (many, more) = points
        found.append((more - less) / (many - few) * 1e6)
    return Cost(tool, statistics.median(found))


def commands(options: argparse.Namespace, url: str, folder: Path) -> dict[str, Command]:
    streams, tokens = str(options.streams), str(options.tokens)

    def ours(requests: int) -> list[str]:
        out = tempfile.mkdtemp(dir=folder)
        return [
            sys.executable, "-m", "opsctl", "bench", "run", "--url", url, "--out", out,
            "--concurrency", streams, "--requests", str(requests), "--repeats", "1",
            "--output-tokens", tokens, "-o", "json",
        ]  # fmt: skip

    def bench_serving(requests: int) -> list[str]:
        return [
            options.sglang, "-m", "sglang.bench_serving", "--backend", "sglang-oai-chat",
            "--base-url", url, "--model", "demo", "--tokenizer", options.tokenizer,
            "--dataset-name", "random-ids", "--random-input-len", "64",
            "--random-output-len", tokens, "--random-range-ratio", "1.0",
            "--num-prompts", str(requests), "--max-concurrency", streams,
            "--warmup-requests", "0", "--disable-tqdm", "--output-file", f"{folder}/sglang.jsonl",
        ]  # fmt: skip

    def aiperf(requests: int) -> list[str]:
        return [
            options.aiperf, "profile", "--model", "demo", "--url", url, "--endpoint-type", "chat",
            "--streaming", "--concurrency", streams, "--request-count", str(requests),
            "--synthetic-input-tokens-mean", "64", "--output-tokens-mean", tokens,
            "--extra-inputs", "ignore_eos:true", "--extra-inputs", f"max_tokens:{tokens}",
            "--tokenizer", options.tokenizer or "builtin", "--ui", "none",
            "--artifact-dir", tempfile.mkdtemp(dir=folder),
        ]  # fmt: skip

    found: dict[str, Command] = {"opsctl bench": ours}
    if options.sglang:
        found["sglang.bench_serving"] = bench_serving
    if options.aiperf:
        found["aiperf"] = aiperf
    return found


def measured(options: argparse.Namespace) -> list[Cost]:
    with (
        tempfile.TemporaryDirectory(prefix="opsctl-bench-client-") as name,
        engine(Path(name), options.scale) as url,
    ):
        folder = Path(name)
        costs = []
        for tool, command in commands(options, url, folder).items():
            try:
                costs.append(cost(tool, command, url, folder, options))
            except RuntimeError as error:
                print(f"{tool} does not run here: {error}", file=sys.stderr)
        return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=0.5, help="of the engine's time")
    parser.add_argument("--sglang", help="interpreter of an environment with SGLang")
    parser.add_argument("--tokenizer", help="directory of a tokenizer, for the others")
    parser.add_argument("--aiperf", help="the program aiperf")
    options = parser.parse_args()
    costs = measured(options)
    ours = costs[0].us_per_event if costs else 0.0
    rows = [
        {
            "tool": each.tool,
            "us_per_event": round(each.us_per_event, 1),
            "events_per_second_of_one_process": round(each.events_per_second),
            "times_ours": round(each.us_per_event / ours, 2),
        }
        for each in costs
    ]
    if options.output == "json":
        print(json.dumps(rows, indent=2))
        return
    print(f"{'tool':24}{'us/event':>10}{'events/s':>10}{'x ours':>8}")
    for row in rows:
        print(f"{row['tool']:24}{row['us_per_event']:>10}"
              f"{row['events_per_second_of_one_process']:>10}{row['times_ours']:>8}")  # fmt: skip


if __name__ == "__main__":
    main()
