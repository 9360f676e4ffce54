"""The process `sglang::scheduler_TP0`: loads, then runs the core against the real clock."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path
from typing import Any

from opsctl.engine.simulated import ledger, stages
from opsctl.engine.simulated.adaptive import Adaptive
from opsctl.engine.simulated.core import Adapting, Core, Job, Limits, Pace
from opsctl.engine.simulated.faults import Faults, start_failure
from opsctl.engine.simulated.flags import Options
from opsctl.engine.simulated.loads import Writer
from opsctl.engine.simulated.output import say
from opsctl.engine.simulated.report import Report
from opsctl.engine.simulated.surface import surfaces
from opsctl.engine.simulated.wire import Line

_IDLE = 0.5
"""Seconds between snapshots when there is nothing to do; SGLang's idle loop spins, this one does
not."""


class StartFailedError(Exception):
    """A start that was told to fail; `code` is the exit code of the whole engine."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def run(options: Options, control: Line, detokenizer: Line, loads_path: Path, began: float) -> None:
    """Load, announce, serve until told to stop; returns on a clean shutdown."""
    faults = Faults(options.faults)
    schedule = stages.Schedule(began, options.start_time, faults, options.time_scale)
    try:
        _load(options, faults, schedule, control)
    except StartFailedError as failure:
        control.send(["failed", failure.code])
        _wait_readable(control)
        return
    Loop(options, faults, control, detokenizer, Writer(loads_path)).run()


def _load(options: Options, faults: Faults, schedule: stages.Schedule, control: Line) -> None:
    schedule.pass_stage("imports")
    say("Init torch distributed begin.", rank=0)
    schedule.pass_stage("distributed")
    say("Init torch distributed ends. elapsed=0.10 s, mem usage=0.20 GB", rank=0)
    control.send(["distributed"])
    if options.gated_launch_port is not None:
        schedule = _wait_for_gate(options, faults, control)
    say("Load weight begin. avail mem=94.13 GB", rank=0)
    ledger.take(options, os.getppid(), faults)
    began = time.monotonic()
    schedule.pass_stage("weights")
    _fail_if_told(options, faults)
    for rank in range(options.tp_size):
        say(
            f"Load weight end. elapsed={time.monotonic() - began:.2f} s, type=OpsctlSimulated, "
            "avail mem=25.60 GB, mem usage=68.40 GB.",
            rank=rank,
        )
    schedule.pass_stage("kv_cache")
    say(
        f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {options.max_total_tokens}, "
        "K size: 8.00 GB, V size: 8.00 GB",
        rank=0,
    )
    say("Memory pool end. avail mem=9.11 GB", rank=0)
    say("Capture cuda graph begin. This can take up to several minutes. avail mem=9.11 GB", rank=0)
    began = time.monotonic()
    schedule.pass_stage("graphs")
    say(
        f"Capture cuda graph end. Time elapsed: {time.monotonic() - began:.2f} s. "
        "mem usage=1.20 GB. avail mem=7.91 GB.",
        rank=0,
    )
    say(
        f"max_total_num_tokens={options.max_total_tokens}, "
        f"chunked_prefill_size={options.chunked_prefill_size}, max_prefill_tokens=16384, "
        f"max_running_requests={options.max_running_requests}, "
        f"context_len={options.context_length}, available_gpu_mem=7.91 GB",
        rank=0,
    )


def _wait_for_gate(options: Options, faults: Faults, control: Line) -> stages.Schedule:
    """Hold before any memory is taken; the rest of the start is timed from the activation."""
    while True:
        _wait_readable(control)
        if control.closed:
            os._exit(1)
        if ["gate"] in control.receive():
            break
    # The two stages before the gate are behind us; they must not be waited for again.
    full = options.start_time * options.time_scale
    return stages.Schedule(
        time.monotonic() - 0.35 * full, options.start_time, faults, options.time_scale
    )


def _fail_if_told(options: Options, faults: Faults) -> None:
    if "bad_weights" in faults:
        say(stages.NO_WEIGHTS.format(model=options.model_path), rank=0)
        raise StartFailedError(-signal.SIGKILL)
    if options.adaptive is not None and "adaptive_oom" in faults:
        say(stages.OUT_OF_MEMORY, rank=0)
        raise StartFailedError(-signal.SIGKILL)
    if (text := faults.text("start_failure")) is not None:
        failure = start_failure(text)
        say(stages.OUT_OF_MEMORY if failure.out_of_memory else stages.FAILED, rank=0)
        raise StartFailedError(failure.code)


def _wait_readable(line: Line, timeout: float | None = None) -> None:
    select.select([line], [], [], timeout)


def _pace(options: Options, surface: str, *, drafting: bool) -> Pace:
    found = surfaces()
    return Pace(
        surface=found.find(surface),
        prefill_rate=options.prefill_rate,
        reference_accept_length=found.reference_accept_length if drafting else 1.0,
        scale=options.time_scale,
    )


def _adapting(options: Options, faults: Faults) -> Adapting | None:
    """Return what moves the draft steps: zero of them run as the table's baseline does."""
    if options.adaptive is None or "adaptive_static" in faults:
        return None
    chosen = Adaptive(options.adaptive, options.speculative_num_steps, options.graph_batches)
    baseline = options.surface.partition(":")[0] + ":baseline"
    return Adapting(chosen, _pace(options, baseline, drafting=False))


class Loop:
    """Feeds messages to the core, its tokens to the detokenizer, its state to the snapshot."""

    def __init__(
        self, options: Options, faults: Faults, control: Line, detokenizer: Line, writer: Writer
    ) -> None:
        self._control = control
        self._detokenizer = detokenizer
        self._stop = False
        self._core = Core(
            _pace(options, options.surface, drafting=options.speculating),
            Limits(
                max_running=options.max_running_requests,
                max_total_tokens=options.max_total_tokens,
                prefill_chunk=options.chunked_prefill_size,
                draft_tokens=max(1, options.speculative_num_draft_tokens),
            ),
            _adapting(options, faults),
        )
        self._report = Report(options, self._core, writer, frozen="freeze_gauges" in faults)

    def run(self) -> None:
        """Serve until told to stop or until the main process is gone."""
        self._report.publish()
        self._control.send(["ready"])
        while not (self._stop or self._control.closed):
            self._wait()
            for message in self._control.receive():
                self._take(message)
            self._detokenizer.flush()
            self._advance()

    def _wait(self) -> None:
        due = self._core.due
        timeout = _IDLE if due is None else max(0.0, due - time.monotonic())
        writing = [self._detokenizer] if self._detokenizer.pending else []
        select.select([self._control], writing, [], timeout)

    def _advance(self) -> None:
        emissions = self._core.advance(time.monotonic())
        if emissions:
            self._detokenizer.send(
                [[one.rid, one.first, one.count, one.finish, one.steps] for one in emissions]
            )
        self._report.after_step()

    def _take(self, message: list[Any]) -> None:
        kind, *rest = message
        now = time.monotonic()
        if kind == "new":
            self._core.submit(Job(*rest), now)
        elif kind == "abort":
            self._abort(rest[0])
        elif kind == "pause":
            if rest[0] == "retract":
                self._core.retract()
            self._core.pause(True, now)
        elif kind == "continue":
            self._core.pause(False, now)
        elif kind == "ask":
            self._control.send(["reply", rest[0], self._report.state()])
        elif kind == "fault":
            self._fault(rest[0])
        elif kind == "shutdown":
            self._stop = True

    def _abort(self, rid: str) -> None:
        if self._core.abort(rid):
            self._detokenizer.send([[rid, 0, 0, "abort", 0]])

    def _fault(self, name: str) -> None:
        if name == "hang":
            while True:  # reads nothing, publishes nothing, answers nothing; only SIGKILL helps
                signal.pause()
        elif name == "freeze_gauges":
            self._report.frozen = True
