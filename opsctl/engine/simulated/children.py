"""The child processes: forked before the event loop starts, titled as SGLang titles its own."""

from __future__ import annotations

import os
import signal
import socket
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from opsctl.engine.simulated import detokenizer, scheduler
from opsctl.engine.simulated.flags import Options
from opsctl.engine.simulated.titles import die_with_parent, set_title
from opsctl.engine.simulated.wire import Line

ORPHAN_LIFETIME = 600
"""Seconds after which an orphan made by `early_orphan` ends by itself. In SGLang it never does:
there the detokenizer asks to die with its parent only once it has started, so that a main process
that dies before leaves it behind."""


@dataclass
class Child:
    """One child; `exit_code` is negative for a signal, None while it lives."""

    name: str
    title: str
    pid: int
    exit_code: int | None = None

    def poll(self) -> int | None:
        """Collect the exit code if the child has ended."""
        if self.exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code

    def kill(self, signum: int = signal.SIGKILL) -> None:
        """Signal the child unless it has been collected (its pid may be another's by then)."""
        if self.poll() is None:
            os.kill(self.pid, signum)

    def wait(self) -> None:
        """Block until the child has ended."""
        if self.exit_code is None:
            _, status = os.waitpid(self.pid, 0)
            self.exit_code = os.waitstatus_to_exitcode(status)


@dataclass
class Family:
    """All children, and the front's ends of the sockets to them."""

    children: list[Child]
    control: socket.socket
    tokens: socket.socket
    idle: list[socket.socket] = field(default_factory=list)

    def find(self, name: str) -> Child | None:
        """Return a child by `scheduler`, `detokenizer` or `scheduler_TPn`."""
        wanted = "sglang::scheduler_TP0" if name == "scheduler" else f"sglang::{name}"
        return next((child for child in self.children if child.title == wanted), None)

    def kill(self) -> None:
        """Kill and collect every child."""
        for child in self.children:
            child.kill()
        for child in self.children:
            child.wait()


def start(options: Options, loads_path: Path, began: float) -> Family:
    """Fork the detokenizer and one scheduler per rank. Call before any thread or loop exists."""
    control_front, control_child = socket.socketpair()
    tokens_front, tokens_child = socket.socketpair()
    emit, collect = socket.socketpair()
    idle = [socket.socketpair() for _ in range(1, options.tp_size)]
    everything = [control_front, control_child, tokens_front, tokens_child, emit, collect]
    everything += [end for pair in idle for end in pair]

    def rank_zero() -> None:
        scheduler.run(options, Line(control_child), Line(emit), loads_path, began)

    late = any(fault.name == "early_orphan" for fault in options.faults)

    def detokenize() -> None:
        detokenizer.run(Line(collect), Line(tokens_child), _bind if late else lambda: None)

    children = [
        _fork("scheduler_0", "sglang::scheduler_TP0", rank_zero, everything, control_child, emit),
        _fork(
            "detokenizer", "sglang::detokenizer", detokenize, everything, collect, tokens_child,
            orphan=late,
        ),
    ]  # fmt: skip
    for rank, (_, theirs) in enumerate(idle, start=1):
        title = f"sglang::scheduler_TP{rank}"
        children.append(_fork(f"scheduler_{rank}", title, _wait_for(theirs), everything, theirs))
    for end in (control_child, tokens_child, emit, collect, *(theirs for _, theirs in idle)):
        end.close()
    return Family(children, control_front, tokens_front, [ours for ours, _ in idle])


def _wait_for(end: socket.socket) -> Callable[[], None]:
    """An idle rank lives until the front closes its socket."""

    def wait() -> None:
        end.recv(1)

    return wait


def _bind() -> None:
    """From now on die with the parent, and only then."""
    die_with_parent(signal.SIGKILL)
    signal.alarm(0)


def _fork(
    name: str,
    title: str,
    body: Callable[[], None],
    everything: Sequence[socket.socket],
    *keep: socket.socket,
    orphan: bool = False,
) -> Child:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        for end in everything:
            if end not in keep:
                end.close()
        _child(title, body, parent, orphan)
    return Child(name, title, pid)


def _child(title: str, body: Callable[[], None], parent: int, orphan: bool) -> NoReturn:
    code = 1
    try:
        if orphan:
            signal.alarm(ORPHAN_LIFETIME)
        else:
            die_with_parent(signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
        set_title(title)
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, signal.SIG_DFL)
        body()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
