"""One engine (real or simulated) started the way opsctl starts it, without opsctl around it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import psutil

from opsctl.config.schema import LaunchProfile
from opsctl.profiles.launch import command

NONCE = "OPSCTL_TEST_NONCE"

T = TypeVar("T")


def free_port() -> int:
    """Return a loopback port nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], T], *, seconds: float, what: str, every: float = 0.05) -> T:
    """Return the first true result of `condition`; fails with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while True:
        if result := condition():
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        pause.wait(every)


def marked_processes(variable: str, value: str) -> list[psutil.Process]:
    """Return every living process whose environment holds `variable=value`, zombies left out.

    A process that has retitled itself (SGLang's children) has overwritten its environment, and is
    not found this way.
    """
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(variable) == value:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def session_processes(session: int) -> list[psutil.Process]:
    """Return every living process of a session, zombies left out."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def shared_memory(processes: Iterable[psutil.Process]) -> set[Path]:
    """Return the files in /dev/shm that living processes have mapped."""
    found = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found.update(Path(area.path) for area in process.memory_maps())
    return {path for path in found if path.parent == Path("/dev/shm")}


@dataclass
class Server:
    """A started engine. Use as a context manager: on leaving, its whole tree is gone."""

    profile: LaunchProfile
    log_path: Path
    port: int = field(default_factory=free_port)
    nonce: str = field(default_factory=lambda: os.urandom(8).hex())
    # What /ready answered while starting, each answer once: None stands for a refused connection.
    answers: list[int | None] = field(default_factory=list)
    # Files in /dev/shm that the ready engine had mapped; it would leave them behind.
    segments: set[Path] = field(default_factory=set)

    def __enter__(self) -> Server:
        launch = command(self.profile, port=self.port, caller_environment=os.environ)
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                launch.argv,
                env={**launch.environment, NONCE: self.nonce},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        """Base address of the engine's HTTP server."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """Everything the engine has printed so far."""
        return self.log_path.read_text(errors="replace")

    def members(self) -> list[psutil.Process]:
        """Return the living processes of the tree, orphans and runaways of it included."""
        marked = marked_processes(NONCE, self.nonce)
        return list({*marked, *session_processes(self.process.pid)})

    def status(self, path: str) -> int | None:
        """Return the HTTP status of a GET, or None when the connection is refused."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=30) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except (urllib.error.URLError, ConnectionError):
            return None

    def wait_ready(self, seconds: float = 150) -> None:
        """Wait for /ready to answer 200, keeping the answers before it in `answers`."""

        def ready() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(f"exit code {self.process.returncode}\n{self.log[-3000:]}")
            answer = self.status("/ready")
            if not self.answers or self.answers[-1] != answer:
                self.answers.append(answer)
            return answer == 200

        wait_until(ready, seconds=seconds, what="/ready answers 200")
        self.segments.update(shared_memory(self.members()))

    def terminate(self) -> None:
        """Send SIGTERM to the main process only, as opsctl does."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill whatever is left of the tree, and wait until it is gone."""
        for process in self.members():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait(30)
        wait_until(lambda: not self.members(), seconds=30, what=f"tree of {self.nonce} gone")
        for segment in self.segments:
            segment.unlink(missing_ok=True)
