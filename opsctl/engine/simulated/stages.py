"""The stages of a start, their share of its time, and the lines SGLang prints in them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from opsctl.engine.simulated.faults import Faults

# Shares of --sim-start-time, in order; roughly those of a warm restart on a GPU host.
_SHARES = {
    "imports": 0.25,
    "distributed": 0.10,
    "weights": 0.35,
    "kv_cache": 0.05,
    "graphs": 0.20,
    "warmup": 0.05,
}

OUT_OF_MEMORY = """\
Scheduler hit an exception: Traceback (most recent call last):
  File "sglang/srt/managers/scheduler.py", line 3612, in run_scheduler_process
    scheduler = Scheduler(
  File "sglang/srt/model_executor/model_runner.py", line 1290, in load_model
    self.model = get_model(
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity \
of 94.97 GiB of which 1.05 GiB is free. Including non-PyTorch memory, this process has 93.91 GiB \
memory in use."""

NO_WEIGHTS = """\
Scheduler hit an exception: Traceback (most recent call last):
  File "sglang/srt/managers/scheduler.py", line 3612, in run_scheduler_process
    scheduler = Scheduler(
RuntimeError: Cannot find any model weights with `{model}`"""

FAILED = """\
Scheduler hit an exception: Traceback (most recent call last):
  File "sglang/srt/managers/scheduler.py", line 3612, in run_scheduler_process
    scheduler = Scheduler(
RuntimeError: opsctl-simulated was told to fail (start_failure)"""


class Schedule:
    """When each stage of a start ends, on the monotonic clock that all processes share."""

    def __init__(self, began: float, seconds: float, faults: Faults, scale: float = 1.0) -> None:
        self._began = began
        self._seconds = seconds * scale
        self._extra = faults.seconds("slow_start") * scale
        self._stuck = faults.text("stuck_stage")

    def ends(self, stage: str) -> float:
        """Return when `stage` ends; `slow_start` makes the weights stage longer."""
        share, late = 0.0, 0.0
        for name, part in _SHARES.items():
            share += part
            late += self._extra if name == "weights" else 0.0
            if name == stage:
                break
        return self._began + share * self._seconds + late

    def stuck(self, stage: str) -> bool:
        """Whether this stage never ends."""
        return self._stuck == stage

    def pass_stage(self, stage: str, sleep: Callable[[float], None] = time.sleep) -> None:
        """Block until `stage` ends."""
        if self.stuck(stage):
            hang_for_ever()
        sleep(max(0.0, self.ends(stage) - time.monotonic()))


def hang_for_ever() -> None:
    """Make no progress and ignore SIGTERM, as a start stuck in a driver call does."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(3600)
