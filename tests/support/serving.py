"""`opsctl serve` as its users run it: a process of its own, spoken to through the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.support.server import marked_processes, session_processes, wait_until

NONCE = "OPSCTL_TEST_NONCE"
OPSCTL = Path(sys.executable).with_name("opsctl")


@dataclass
class Serving:
    """One instance with a state directory of its own. On leaving the context it is gone."""

    arguments: tuple[str, ...]
    state_dir: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    # A command that runs the one behind it, such as `sh -c 'ulimit -n 256; exec "$0" "$@"'`.
    wrapper: tuple[str, ...] = ()
    nonce: str = field(default_factory=lambda: os.urandom(8).hex())
    # Sessions of every engine seen: their members are the instance's even when orphaned.
    sessions: set[int] = field(default_factory=set)

    def __enter__(self) -> Serving:
        self.state_dir.mkdir(parents=True, exist_ok=True)
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [*self.wrapper, str(OPSCTL), "serve", *self.arguments],
                env={**self._environment(), NONCE: self.nonce},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)
        for process in self.leftovers():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        wait_until(lambda: not self.leftovers(), seconds=30, what="nothing is left over")

    @property
    def output(self) -> Path:
        """What `opsctl serve` itself printed."""
        return self.state_dir / "serve.output"

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "OPSCTL_STATE_DIR": str(self.state_dir), **self.environment}

    def opsctl(self, *arguments: str, seconds: float = 300) -> subprocess.CompletedProcess[str]:
        """Run another opsctl command against this instance, to its end."""
        return subprocess.run(
            [str(OPSCTL), *arguments],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def status(self) -> dict[str, Any] | None:
        """Return the status document; None while nothing answers."""
        done = self.opsctl("status", "-o", "json")
        if done.returncode != 0:
            return None
        document: dict[str, Any] = json.loads(done.stdout)
        if document["engine"]:
            self.sessions.add(document["engine"]["pid"])
        return document

    def wait_serving(self, profile: str | None = None, seconds: float = 180) -> dict[str, Any]:
        """Wait until the instance serves (from `profile`); return its status."""

        def serving() -> dict[str, Any] | None:
            if self.process.poll() is not None:
                raise AssertionError(
                    f"exit code {self.process.returncode}\n{self.output.read_text()[-3000:]}"
                )
            document = self.status()
            if document is None or document["state"] != "serving":
                return None
            return document if profile in (None, document["profile"]) else None

        return wait_until(serving, seconds=seconds, what=f"serving from {profile}", every=0.3)

    def events(self) -> list[dict[str, Any]]:
        """Return the journal, as `opsctl events` tells it."""
        done = self.opsctl("events", "-o", "json")
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def leftovers(self) -> list[psutil.Process]:
        """Return every living process this instance has brought into the world."""
        found = set(marked_processes(NONCE, self.nonce))
        ledger = str(self.state_dir / "run" / "simulated-gpu.jsonl")
        found.update(marked_processes("OPSCTL_SIMULATED_GPU", ledger))
        for session in {self.process.pid, *self.sessions}:
            found.update(session_processes(session))
        return list(found)
