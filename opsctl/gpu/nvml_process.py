"""The NVML helper as a child: started, asked, and ended as gently as it allows.

A monitoring process that was killed inside an NVML call has frozen GPUs (dcgm-exporter issue 84),
so its pipe is closed first, then comes SIGTERM, and SIGKILL last. One that survives even that is
stuck in the driver; it is left alone, and while it lives no other is started: a second one would
hang in the same place.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from opsctl.system import pidfd, procfs

_MODULE = "opsctl.gpu.nvml_helper"
_PASSED_ON = ("LD_LIBRARY_PATH", "PATH", "PYTHONPATH")
_CHUNK = 65536


class HelperProcess:
    """A running helper. `pid` and `start_time` (clock ticks since boot) tell it from any other."""

    def __init__(self, *, idle: float) -> None:
        """Start it; raises OSError when no process can be started."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-m", _MODULE, f"{idle:g}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",
            env=_environment(),
            start_new_session=True,  # neither Ctrl-C nor the stop of an engine's session ends it
        )
        self.pid = self._process.pid
        found = procfs.stat(self.pid)
        self.start_time = found.start_time if found else 0
        self._rest = b""
        self._gone = threading.Event()
        # A daemon thread reaps it whenever it ends; one stuck in the driver holds up nobody.
        threading.Thread(target=self._reap, name=f"reap-{self.pid}", daemon=True).start()

    def _reap(self) -> None:
        self._process.wait()
        self._gone.set()

    @property
    def state(self) -> str:
        """The state letter of the process."""
        found = procfs.stat(self.pid)
        return found.state if found else "gone"

    def ask(self) -> bool:
        """Ask for one reading; False when the helper has ended meanwhile."""
        assert self._process.stdin is not None  # noqa: S101 - opened as a pipe
        try:
            self._process.stdin.write(b"read\n")
        except (BrokenPipeError, ValueError):
            return False
        return True

    def line(self, seconds: float) -> bytes | None:
        """The next line of its answer; empty at its end, None when none came within `seconds`."""
        assert self._process.stdout is not None  # noqa: S101 - opened as a pipe
        until = time.monotonic() + seconds
        output = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(output, select.POLLIN)
        while b"\n" not in self._rest:
            if not poll.poll(max(until - time.monotonic(), 0) * 1000):
                return None
            chunk = os.read(output, _CHUNK)
            if not chunk:
                return b""
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def leave(self, seconds: float) -> bool:
        """Close its pipe and give it time to end by itself; whether it did."""
        assert self._process.stdin is not None  # noqa: S101 - opened as a pipe
        self._process.stdin.close()
        return self._wait(seconds)

    def end(self, seconds: float) -> bool:
        """End it within `seconds`: pipe, SIGTERM, SIGKILL; False when it outlives all three."""
        if self.leave(seconds * 0.2):
            return True
        for number in (signal.SIGTERM, signal.SIGKILL):
            pidfd.signal_process(self.pid, self.start_time, number)
            if self._wait(seconds * 0.4):
                return True
        return False

    def how_it_ended(self) -> str:
        """Its exit in words; call when it has closed its output."""
        if not self._wait(1.0):
            return "it closed its output but lives"
        code = self._process.returncode
        if code >= 0:
            return f"exit code {code}"
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"

    def _wait(self, seconds: float) -> bool:
        if not self._gone.wait(seconds):
            return False
        assert self._process.stdin is not None  # noqa: S101 - opened as a pipe
        assert self._process.stdout is not None  # noqa: S101 - opened as a pipe
        self._process.stdin.close()
        self._process.stdout.close()
        return True


def stuck_elsewhere() -> int | None:
    """A helper that another opsctl had to leave behind in the kernel (state D); None if none is.

    Every `opsctl gpu ps` on a host with a hung driver would add one more otherwise. An ordinary
    call can be in state D for a moment, so it is looked at again.
    """
    candidates = _in_kernel()
    for _ in range(4):
        if not candidates:
            return None
        time.sleep(0.05)
        candidates &= _in_kernel(candidates)
    return next(iter(candidates), None)


def _in_kernel(among: set[int] | None = None) -> set[int]:
    found = set()
    for pid in procfs.pids() if among is None else among:
        entry = procfs.stat(pid)
        if entry is not None and entry.state == "D" and _MODULE in procfs.title(pid):
            found.add(pid)
    return found


def _environment() -> dict[str, str]:
    """Where libraries are, and nothing else: tokens and passwords stay with opsctl."""
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    if path := passed.get("PYTHONPATH"):
        passed["PYTHONPATH"] = os.pathsep.join(
            str(Path(entry).resolve()) for entry in path.split(os.pathsep) if entry
        )
    return {**passed, "LC_ALL": "C.UTF-8"}
