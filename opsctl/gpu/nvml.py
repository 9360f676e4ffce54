"""Read NVML without ever hanging: a helper process reads, against a deadline.

When a driver hangs, every NVML call blocks for ever, and the caller with it, in a state that no
signal ends. So opsctl itself never loads the library. `read` takes at most `deadline` seconds
without news from the helper and says then which call did not return.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from types import TracebackType
from typing import Self

from opsctl.gpu.model import Snapshot
from opsctl.gpu.nvml_process import HelperProcess, stuck_elsewhere
from opsctl.gpu.nvml_report import Report
from opsctl.system import procfs

_LONGEST = 6  # deadlines: GPUs without persistence mode take a second each to wake, at every start
_FOR_ENDING = 0.2  # of the deadline, so that the answer is there when it is over
_COURTESY = 1.0  # seconds a helper that has answered gets to end


class _Turn:
    """At most one helper is at work in this process, and none while one is stuck."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._left: HelperProcess | None = None
        self._stuck_since: str | None = None

    def leave_behind(self, helper: HelperProcess, *, stuck: bool) -> None:
        """Note a helper that is still there: it could not be ended, or takes its time to."""
        self._left = helper
        self._stuck_since = time.strftime("%H:%M:%S") if stuck else None

    def obstacle(self, seconds: float) -> str | None:
        """Why no helper may be started, in words; waits for one that is only slow to leave.

        Without persistence mode the last one to leave puts the GPUs to sleep, which takes seconds.
        """
        left = self._left
        if left is not None and self._stuck_since is None and not left.end(seconds):
            self.leave_behind(left, stuck=True)
        # One that was stuck and has left the kernel is ending: the signals wait for it there.
        leaving = left is not None and left.state != "D"
        if left is None or left.leave(min(seconds, _COURTESY) if leaving else 0):
            self._left = None
            return None
        return (
            f"since {self._stuck_since} the helper process {left.pid} has been stuck in the "
            f"driver (state {left.state}); it cannot be ended, and no second one is started"
        )


_turn = _Turn()


class Nvml:
    """A reader whose helper stays between readings, for whoever reads again and again.

    The helper ends `keep` seconds after its last reading, at `close`, or with this process. While
    it is there it holds /dev/nvidiactl open, which keeps a GPU from being reset.
    """

    def __init__(self, *, keep: float = 5.0) -> None:
        self._keep = keep
        self._helper: HelperProcess | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def read(self, *, deadline: float = 5.0) -> Snapshot:
        """Everything NVML says now; never raises for what is wrong with GPUs or driver.

        `deadline` bounds the time without a call returning, in seconds; a driver that answers,
        but slowly, gets six times as long in all.
        """
        if not _turn.lock.acquire(timeout=deadline):
            return Snapshot("unresponsive", "another reading of this process has not ended")
        try:
            return self._read(deadline)
        finally:
            _turn.lock.release()

    async def read_async(self, *, deadline: float = 5.0) -> Snapshot:
        """`read` for an event loop, which stays free; when cancelled, the reading ends alone."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Snapshot] = loop.create_future()

        def deliver(snapshot: Snapshot) -> None:
            if not answer.done():
                answer.set_result(snapshot)

        def work() -> None:
            snapshot = self.read(deadline=deadline)
            with contextlib.suppress(RuntimeError):  # the loop is gone
                loop.call_soon_threadsafe(deliver, snapshot)

        # A thread of the loop's pool would be waited for when the program ends.
        threading.Thread(target=work, name="nvml", daemon=True).start()
        return await answer

    def close(self) -> None:
        """End the helper."""
        if _turn.lock.acquire(timeout=_COURTESY):  # else one is reading, and ends by itself
            try:
                self._dismiss()
            finally:
                _turn.lock.release()

    def _read(self, deadline: float) -> Snapshot:
        if why := _turn.obstacle(deadline):
            return Snapshot("unresponsive", why)
        snapshot = self._ask_again(deadline)
        if snapshot is None:
            try:
                snapshot = self._start() or self._listen(Report(), deadline)
            except OSError as error:
                return Snapshot("fault", f"the helper that reads NVML does not start: {error}")
        if self._keep == 0:
            self._dismiss()
        return snapshot

    def _ask_again(self, deadline: float) -> Snapshot | None:
        """Ask the helper that stayed; None when there is none, or it had ended meanwhile."""
        if self._helper is not None and self._helper.ask():
            report = Report()
            snapshot = self._listen(report, deadline)
            if report.started or snapshot.state == "unresponsive":
                return snapshot
        self._dismiss()
        return None

    def _start(self) -> Snapshot | None:
        if pid := stuck_elsewhere():
            why = f"process {pid}, an NVML helper of another opsctl, is stuck in the driver"
            return Snapshot("unresponsive", why)
        self._helper = HelperProcess(idle=self._keep or 60.0)
        self._helper.ask()
        return None

    def _listen(self, report: Report, deadline: float) -> Snapshot:
        assert self._helper is not None  # noqa: S101 - it was asked
        silence = deadline * (1 - _FOR_ENDING)
        last = time.monotonic() + deadline * _LONGEST
        while not report.ended:
            left = last - time.monotonic()
            line = self._helper.line(min(silence, left)) if left > 0 else None
            if line is None:
                return self._give_up(report, deadline, slow=left < silence)
            if not line:
                return self._died(report)
            try:
                report.feed(line)
            except (ValueError, TypeError, KeyError):
                self._end(deadline * _FOR_ENDING)
                return report.broken("the helper that reads NVML said what cannot be read")
        return report.snapshot(kernel_module=_kernel_module())

    def _give_up(self, report: Report, deadline: float, *, slow: bool) -> Snapshot:
        assert self._helper is not None  # noqa: S101 - it was listened to
        pid = self._helper.pid
        ended = self._end(deadline * _FOR_ENDING)
        rest = f"helper process {pid}" + (
            " ended" if ended else " is stuck in the driver and cannot be ended"
        )
        if slow:
            took = f"NVML took longer than {deadline * _LONGEST:g} s for all its calls"
            return report.stopped(f"{took}; stopped at {report.pending} ({rest})")
        silence = deadline * (1 - _FOR_ENDING)
        return report.unresponsive(f"{report.pending} did not return within {silence:g} s ({rest})")

    def _died(self, report: Report) -> Snapshot:
        assert self._helper is not None  # noqa: S101 - it was listened to
        how = self._helper.how_it_ended()
        self._dismiss()
        return report.broken(f"the helper that reads NVML died in {report.pending}: {how}")

    def _dismiss(self) -> None:
        """Let a helper go that is in no call."""
        helper, self._helper = self._helper, None
        if helper is not None and not helper.leave(_COURTESY):
            _turn.leave_behind(helper, stuck=False)

    def _end(self, seconds: float) -> bool:
        """End a helper that may hang in a call."""
        helper, self._helper = self._helper, None
        if helper is None or helper.end(seconds):
            return True
        _turn.leave_behind(helper, stuck=True)
        return False


def read(*, deadline: float = 5.0) -> Snapshot:
    """One reading with a helper that is gone afterwards; see `Nvml.read`."""
    return Nvml(keep=0).read(deadline=deadline)


async def read_async(*, deadline: float = 5.0) -> Snapshot:
    """`read` for an event loop."""
    return await Nvml(keep=0).read_async(deadline=deadline)


def _kernel_module() -> str | None:
    """The version of the NVIDIA kernel module that is loaded; None when none is."""
    try:
        text = (procfs.PROC / "driver/nvidia/version").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", text)
    return found.group() if found else None
