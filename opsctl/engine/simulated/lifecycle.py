"""The main process: start, serve, and every way to end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from pathlib import Path

from aiohttp import web

from opsctl.engine.simulated import children, front, mischief, stages
from opsctl.engine.simulated.core import Job
from opsctl.engine.simulated.faults import AT_START_ONLY, Fault, Faults, make
from opsctl.engine.simulated.flags import Options
from opsctl.engine.simulated.loads import Reader
from opsctl.engine.simulated.management import Management
from opsctl.engine.simulated.manager import Manager
from opsctl.engine.simulated.metrics import Metrics
from opsctl.engine.simulated.output import raw, say

_WATCHDOG = 1.0
_EXIT_TIMEOUT = 15.0
PORT_IN_USE = 3


class Engine:
    """One engine, from the fork of its children to its exit code."""

    def __init__(
        self, options: Options, family: children.Family, loads_path: Path, began: float
    ) -> None:
        self._options = options
        self._family = family
        self._loads_path = loads_path
        self._began = began
        self._faults = Faults(options.faults)
        self._manager = Manager(options, Metrics(options, Reader(loads_path)), self._faults)
        self._stopping = False
        self._server: socket.socket | None = None
        self._runner: web.AppRunner | None = None
        self._gate: web.AppRunner | None = None
        self._terminated = asyncio.Event()
        self._interrupted = asyncio.Event()

    async def run(self) -> int:
        """Live; returns the exit code (negative: the signal to die from)."""
        await self._manager.connect(self._family.control, self._family.tokens)
        watchdog = asyncio.create_task(self._watch())
        try:
            code = await self._start()
            if code is None:
                code = await self._serve()
        finally:
            self._stopping = True
            watchdog.cancel()
        await self._end()
        return code

    async def _start(self) -> int | None:
        """Load, listen and warm up; returns an exit code if that failed."""
        loading = asyncio.create_task(self._load())
        loading.add_done_callback(lambda _: self._manager.load_ended(0))
        if code := await self._manager.loaded:
            loading.cancel()
            return self._report_failure(code)
        await loading
        try:
            self._server = front.listen(self._options.host, self._options.port)
        except OSError:
            raw(
                "ERROR:    [Errno 98] error while attempting to bind on address "
                f"('{self._options.host}', {self._options.port}): address already in use"
            )
            return PORT_IN_USE
        await self._open(self._server)
        await self._warm_up()
        return None

    def _report_failure(self, code: int) -> int:
        """A failure of a child is a SIGKILL of the whole tree; one of the main process an exit."""
        if code > 0:
            return code
        say("Received sigquit from a child process. It usually means the child failed.")
        pid = os.getpid()
        say(f"kill_process_tree called: parent_pid={pid}, include_parent=True, pid={pid}")
        self._family.kill()
        os.kill(pid, -code)
        return code

    async def _load(self) -> None:
        if self._options.gated_launch_port is not None:
            await self._manager.stage.wait()
            await self._wait_at_gate(self._options.gated_launch_port)
        await self._manager.ready.wait()

    async def _wait_at_gate(self, port: int) -> None:
        opened = asyncio.Event()
        # As in SGLang, the gate's port stays taken for as long as the engine lives.
        self._gate = web.AppRunner(front.gate(opened.set), access_log=None)
        await self._gate.setup()
        await web.TCPSite(self._gate, self._options.host, port).start()
        say(f"Gated launch control server started on {self._options.host}:{port}")
        say("Gated launch waiting for activation. rank=0")
        began = time.monotonic()
        await opened.wait()
        self._began = time.monotonic() - 0.35 * self._options.start_time * self._options.time_scale
        self._manager.tell("gate")
        say(f"Gated launch activated. elapsed={time.monotonic() - began:.2f} s")

    async def _open(self, server: socket.socket) -> None:
        management = Management(self._manager, Reader(self._loads_path), self.inject)
        self._runner = web.AppRunner(
            front.application(self._manager, management),
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=1.0,
        )
        await self._runner.setup()
        await web.SockSite(self._runner, server).start()
        raw(f"INFO:     Started server process [{os.getpid()}]")
        raw("INFO:     Application startup complete.")
        raw(
            f"INFO:     Uvicorn running on http://{self._options.host}:{self._options.port} "
            "(Press CTRL+C to quit)"
        )

    async def _warm_up(self) -> None:
        """Generate a little, as SGLang does; only from here on is SIGTERM answered by a drain."""
        schedule = stages.Schedule(
            self._began, self._options.start_time, self._faults, self._options.time_scale
        )
        if schedule.stuck("warmup"):
            stages.hang_for_ever()
        self._install_signals()
        request = await self._manager.submit(Job("WARMUP", 4, 8), stream=False)
        while (await request.pieces.get()).finish is None:
            pass
        await asyncio.sleep(max(0.0, schedule.ends("warmup") - time.monotonic()))
        self._manager.answered = 0
        self._manager.on_answered = self._on_answered
        self._manager.status = "up"
        say("The server is fired up and ready to roll!")
        for fault in self._options.faults:
            if fault.name not in AT_START_ONLY:
                await self.inject(fault.name, fault.value)

    def _install_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._on_sigterm)
        loop.add_signal_handler(signal.SIGINT, self._interrupted.set)
        loop.add_signal_handler(signal.SIGQUIT, self._on_sigquit)

    def _on_sigterm(self) -> None:
        if "ignore_sigterm" in self._faults:
            return
        say("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        self._manager.draining = True
        self._terminated.set()

    def _on_sigquit(self) -> None:
        say("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
        self._crash()

    async def _serve(self) -> int:
        """Wait for an end and bring it about."""
        terminated = asyncio.create_task(self._drain())
        interrupted = asyncio.create_task(self._interrupt())
        ends = {terminated, interrupted}
        done, pending = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        return done.pop().result()

    async def _drain(self) -> int:
        """SIGTERM, as 0.5.23 takes it: looked at every few seconds; new requests are still
        accepted; there is no deadline."""
        await self._terminated.wait()
        poll = self._options.drain_poll
        # The flag is looked at on a beat that does not start with the signal.
        await asyncio.sleep(poll - (time.monotonic() - self._began) % poll)
        while True:
            if self._manager.status == "unhealthy":
                say("Signal SIGTERM received while health check failed. Force exiting.")
                self._crash()
            remaining = list(self._manager.requests)
            say(
                f"Gracefully exiting... Remaining number of requests {len(remaining)}. "
                f"Remaining requests remaining_rids={remaining}."
            )
            if not remaining:
                break
            await asyncio.sleep(poll)
        await asyncio.sleep(self._faults.seconds("slow_stop"))
        return 0

    async def _interrupt(self) -> int:
        """SIGINT: stop listening at once, let what is in flight finish, die from the signal."""
        await self._interrupted.wait()
        assert self._runner is not None  # noqa: S101  # signals are taken only while listening
        for site in list(self._runner.sites):
            await site.stop()
        while self._manager.requests:  # noqa: ASYNC110  # a poll like this one is SGLang's own way
            await asyncio.sleep(0.05)
        raw("KeyboardInterrupt")
        return -signal.SIGINT

    async def _end(self) -> None:
        """Have the schedulers release what they hold, end the rest, stop listening."""
        self._manager.tell("shutdown")
        for end in self._family.idle:
            end.close()
        deadline = time.monotonic() + _EXIT_TIMEOUT
        schedulers = [one for one in self._family.children if one.name.startswith("scheduler")]
        while any(one.poll() is None for one in schedulers) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        self._family.kill()
        for runner in (self._runner, self._gate):
            if runner is not None:
                await runner.cleanup()
        await self._manager.close()
        self._loads_path.unlink(missing_ok=True)

    async def _watch(self) -> None:
        """Look once a second whether a child has died, as SGLang's SubprocessWatchdog does."""
        while not self._stopping:
            for child in self._family.children:
                if (code := child.poll()) is not None:
                    say(
                        f"Subprocess {child.name} (pid={child.pid}) crashed with exit code "
                        f"{code}. Triggering SIGQUIT for cleanup..."
                    )
                    self._on_sigquit()
            await asyncio.sleep(_WATCHDOG)

    def _crash(self) -> None:
        """Die as SGLang dies: the event loop stands still meanwhile, then the tree is killed."""
        time.sleep(self._options.crash_delay)
        pid = os.getpid()
        say(f"kill_process_tree called: parent_pid={pid}, include_parent=True, pid={pid}")
        self._family.kill()
        os.kill(pid, signal.SIGKILL)

    async def inject(self, name: str, value: object) -> None:
        """Put a fault in force now; raises ValueError when that is not possible."""
        fault = make(name, value)
        if fault.name in AT_START_ONLY:
            raise ValueError(f"{fault.name} works only at start, with --sim-fault")
        self._apply(fault)
        self._faults.add(fault)

    def _on_answered(self, count: int) -> None:
        """Some faults wait for the nth request to have got its first token."""
        for name, then in (("crash_after", "crash_now"), ("hang_after", "hang")):
            limit = self._faults.count(name)
            if limit is not None and count >= limit and then not in self._faults:
                self._faults.add(Fault(then))
                self._apply(Fault(then))

    def _apply(self, fault: Fault) -> None:
        if fault.name == "crash_now":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.name == "kill_child":
            if (child := self._family.find(fault.value)) is None:
                raise ValueError(f"there is no child {fault.value!r}")
            child.kill()
        elif fault.name in {"hang", "freeze_gauges"}:
            self._manager.tell("fault", fault.name)
        elif fault.name == "escaped_child":
            mischief.escape()
        elif fault.name == "port_squatter" and self._server is not None:
            mischief.squat(self._server.fileno())
        elif fault.name == "abort_done":
            self._manager.end_all("abort")
