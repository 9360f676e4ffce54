"""A process of its own for calls into the driver that may never return.

As in opsctl/gpu/nvml_process.py: the helper announces each call before it makes it, so that it is
known which one did not return; it is ended as gently as it allows; one that survives SIGKILL is
left behind, and no other is started while it is there.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opsctl.gpu.nvml_process import stuck_elsewhere
from opsctl.system import pidfd, procfs

HELPERS = ("opsctl.doctor.nvml_helper", "opsctl.doctor.cuda_helper")
_PASSED_ON = ("LD_LIBRARY_PATH", "PATH", "PYTHONPATH")
_CHUNK = 65536
_GRACE = 0.5  # seconds for each way of ending a helper

Lines = list[dict[str, Any]]


@dataclass
class Said:
    """What a helper said. `trouble` is why that is not all; empty when it is."""

    lines: Lines = field(default_factory=list)
    trouble: str = ""
    _call: str = "its start"

    def take(self, line: bytes) -> bool:
        """Take one line; whether more are to come. Raises ValueError when it is not one."""
        said = json.loads(line)
        if not isinstance(said, dict):
            raise ValueError("not an object")
        if "call" in said:
            self._call = str(said["call"])
        elif "failed" in said:
            self.trouble = str(said["failed"])
            return False
        elif "end" in said:
            return False
        else:
            self.lines.append(said)
        return True

    def stop(self, why: str) -> Said:
        """Note that the helper did not get to its end."""
        self.trouble = f"{why} at {self._call}"
        return self


def ask(module: str, *, silence: float = 5.0, longest: float = 30.0) -> Said:
    """Run one of HELPERS to its end; at most `silence` seconds for a call, `longest` for all."""
    if pid := stuck_elsewhere() or _stuck():
        return Said(trouble=f"process {pid}, a helper of opsctl, is stuck in the driver")
    try:
        process = _start(module)
    except OSError as error:
        return Said(trouble=f"the helper {module} does not start: {error}")
    gone = threading.Event()

    def reap() -> None:
        process.wait()
        gone.set()

    # A daemon thread reaps it whenever it ends; one stuck in the driver holds up nobody.
    threading.Thread(target=reap, name=f"reap-{process.pid}", daemon=True).start()
    said = _listen(process, silence, longest)
    _end(process.pid, gone.wait)
    return said


def _start(module: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-s", "-m", module],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        cwd="/",
        env=_environment(os.environ),
        start_new_session=True,
    )


def _listen(process: subprocess.Popen[bytes], silence: float, longest: float) -> Said:
    assert process.stdout is not None  # noqa: S101 - opened as a pipe
    said, rest, last = Said(), b"", time.monotonic() + longest
    poll = select.poll()
    poll.register(process.stdout.fileno(), select.POLLIN)
    with process.stdout as output:
        while True:
            line, newline, after = rest.partition(b"\n")
            if newline:
                rest = after
                try:
                    if not said.take(line):
                        return said
                except (ValueError, TypeError):
                    return said.stop("the helper said what cannot be read")
                continue
            left = min(silence, last - time.monotonic())
            if left <= 0 or not poll.poll(left * 1000):
                return said.stop("no answer")
            chunk = os.read(output.fileno(), _CHUNK)
            if not chunk:
                return said.stop("the helper died")
            rest += chunk


def _end(pid: int, wait: Callable[[float], bool]) -> None:
    """See it gone: by itself, by SIGTERM, by SIGKILL."""
    started = procfs.stat(pid)
    if started is None or wait(_GRACE):
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        pidfd.signal_process(pid, started.start_time, number)
        if wait(_GRACE):
            return


def _stuck() -> int | None:
    """A helper of any opsctl that is in the kernel, now and a moment later."""
    found = _in_kernel(procfs.pids())
    for _ in range(4 if found else 0):
        time.sleep(0.05)
        found = _in_kernel(found)
    return next(iter(found), None)


def _in_kernel(pids: Any) -> set[int]:
    found = set()
    for pid in pids:
        entry = procfs.stat(pid)
        if entry is not None and entry.state == "D":
            title = procfs.title(pid)
            if any(helper in title for helper in HELPERS):
                found.add(pid)
    return found


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """Where libraries are, and nothing else: tokens and passwords stay with opsctl."""
    passed = {name: own[name] for name in _PASSED_ON if name in own}
    if path := passed.get("PYTHONPATH"):
        entries = [str(Path(entry).resolve()) for entry in path.split(os.pathsep) if entry]
        passed["PYTHONPATH"] = os.pathsep.join(entries)
    # All devices, numbered as NVML numbers them.
    return {**passed, "LC_ALL": "C.UTF-8", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
