"""What opsctl adds to a switch and to a restart, beside the bare engine in the same run.

Switch: its whole time without traffic, less what the bare engine needs to stop and to start.
Restart: from the engine's death to the beginning of the next start, less the configured backoff.
The engine is simulated; it starts in about a second, most of which is Python's imports.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.request import urlopen

ROUNDS = 7
BACKOFF = 0.1
TARGET = 1.0
FLAGS = ("--sim-start-time", "0.5", "--sim-drain-poll", "0.1")
CONFIGURATION = """
profiles:
  a:
    engine: simulated
    model: simulated/demo
    served_name: demo
    flags: {sim-start-time: 0.5, sim-drain-poll: 0.1}
  b:
    extends: a
    flags: {sim-seed: 2}
serve:
  listen: 127.0.0.1:0
  profile: a
  restart: {backoff_first: 100ms, backoff_max: 100ms, budget: 100, quarantine_after: 100}
"""


def until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Return the first true result of `condition`, asked every 5 ms."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError("the benchmark waited in vain")
        time.sleep(0.005)
    return result


def ready(port: int) -> bool:
    """Whether the bare engine answers that it is ready."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/ready", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def bare_engine(port: int, log: Path) -> tuple[float, float]:
    """Seconds the engine itself takes to get ready, and to end after SIGTERM."""
    began = time.monotonic()
    with log.open("ab") as output:
        argv = [
            sys.executable, "-m", "opsctl.engine.simulated", "--port", str(port),
            "--model-path", "simulated/demo", "--served-model-name", "demo",
            "--enable-metrics", *FLAGS,
        ]  # fmt: skip
        engine = subprocess.Popen(argv, stdout=output, stderr=output, start_new_session=True)
    try:
        until(lambda: ready(port))
        started = time.monotonic() - began
        began = time.monotonic()
        engine.send_signal(signal.SIGTERM)
        engine.wait(30)
        return started, time.monotonic() - began
    finally:
        if engine.poll() is None:
            os.killpg(engine.pid, signal.SIGKILL)
            engine.wait()


class Instance:
    """A running `opsctl serve`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        config = directory / "opsctl.yaml"
        config.write_text(CONFIGURATION)
        with (directory / "output").open("wb") as output:
            self.process = subprocess.Popen(
                [*self._opsctl("serve"), "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        until(lambda: self.events("serving"))

    def _opsctl(self, verb: str) -> list[str]:
        return [sys.executable, "-m", "opsctl", verb, "--state-dir", str(self.directory)]

    def opsctl(self, verb: str, *arguments: str) -> None:
        """Run a verb to its end; it must succeed."""
        done = subprocess.run(
            [*self._opsctl(verb), *arguments], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(done.stderr)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Events of one name so far."""
        path = self.directory / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [entry for entry in map(json.loads, lines) if entry["event"] == name]

    def engine_pid(self) -> int:
        """Pid of the engine's main process, from the state file."""
        record = json.loads((self.directory / "state.json").read_text())["engine"]
        return int(json.loads(record["identity"])["pid"])


def switches(instance: Instance) -> list[dict[str, float]]:
    """Switch to and fro without traffic."""
    for number in range(ROUNDS):
        instance.opsctl("switch", "ba"[number % 2])
    return instance.events("switched")


def deaths(instance: Instance) -> list[float]:
    """Seconds from SIGKILL of the engine to the beginning of the next start, without backoff."""
    found = []
    for _ in range(ROUNDS):
        starts, served = len(instance.events("starting")), len(instance.events("serving"))
        pid = instance.engine_pid()
        killed = datetime.now(UTC)
        os.kill(pid, signal.SIGKILL)
        until(lambda starts=starts: len(instance.events("starting")) > starts)
        begun = datetime.fromisoformat(instance.events("starting")[-1]["time"])
        found.append((begun - killed).total_seconds() - BACKOFF)
        until(lambda served=served: len(instance.events("serving")) > served)
    return found


def free_port() -> int:
    """Return a port nobody listens on now."""
    import socket  # noqa: PLC0415

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Measure and print; with `-o json` as one object."""
    with tempfile.TemporaryDirectory(prefix="opsctl-bench-") as name:
        directory = Path(name)
        bare = [bare_engine(free_port(), directory / "bare.log") for _ in range(ROUNDS)]
        instance = Instance(directory)
        try:
            switched = switches(instance)
            restarts = deaths(instance)
            instance.opsctl("stop")
        finally:
            instance.process.terminate()
            instance.process.wait(30)
    start = statistics.median(pair[0] for pair in bare)
    stop = statistics.median(pair[1] for pair in bare)
    whole = statistics.median(entry["seconds"] for entry in switched)
    figures = {
        "rounds": ROUNDS,
        "bare_start_s": round(start, 3),
        "bare_stop_s": round(stop, 3),
        "switch_s": round(whole, 3),
        "switch_added_s": round(whole - start - stop, 3),
        "switch_ratio": round(whole / (start + stop), 2),
        "death_to_restart_s": round(statistics.median(restarts), 3),
        "death_to_restart_max_s": round(max(restarts), 3),
        "target_switch_added_s": TARGET,
        "met": whole - start - stop < TARGET,
    }
    if "json" in sys.argv:
        print(json.dumps(figures))
        return
    for key, value in figures.items():
        print(f"{key:<24} {value}")


if __name__ == "__main__":
    main()
