"""Small process trees with the habits of engines, and a guard that none of them survives."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from opsctl.engine.process import EngineProcess
from opsctl.engine.tree import NONCE
from opsctl.profiles.launch import Command
from opsctl.system import procfs
from opsctl.system.cgroup import Cgroup

PRELUDE = """
import os, signal, socket, sys, time

def say(word):
    print(word, flush=True)

def child(action):
    pid = os.fork()
    if pid == 0:
        action()
        os._exit(0)
    return pid

def sleep():
    time.sleep(600)

def titled(title, environment=os.environ):
    # what setproctitle does to /proc/PID/cmdline (and, with an empty environment, to environ)
    return lambda: os.execve("/bin/sleep", [title, "600"], environment)

def escape(action):
    # double fork and a session of its own, as a daemon does it
    def middle():
        os.setsid()
        child(action)
    os.waitpid(child(middle), 0)
"""


async def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for a condition; fails when it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not come true in time"
        await asyncio.sleep(0.02)


class Tree:
    """A running fake engine and its log."""

    def __init__(self, process: EngineProcess, log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def words(self) -> list[str]:
        return self.log.read_text().split()

    async def said(self, word: str) -> None:
        await eventually(lambda: word in self.words)


@asynccontextmanager
async def tree(
    code: str, directory: Path, *, cgroup_parent: Cgroup | None, wait_for: str = "ready"
) -> AsyncIterator[Tree]:
    """Spawn `code` as an engine and clear it away by means of its own at the end."""
    nonce = uuid.uuid4().hex
    log = directory / f"{nonce}.log"
    process = await EngineProcess.spawn(
        Command((sys.executable, "-c", PRELUDE + code), {"PATH": os.environ["PATH"]}),
        nonce=nonce,
        log_path=log,
        cgroup_parent=cgroup_parent,
    )
    running = Tree(process, log)
    try:
        await running.said(wait_for)
        yield running
    finally:
        clear_away(process, cgroup_parent)


def clear_away(process: EngineProcess, parent: Cgroup | None) -> None:
    """Kill by pid what a failed test left, found without the code under test."""
    for pid in with_nonce(process.identity.nonce):
        os.kill(pid, signal.SIGKILL)
    group = Cgroup(parent.path / f"opsctl-{process.identity.nonce}") if parent else None
    for pid in group.pids() if group else ():
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while with_nonce(process.identity.nonce) and time.monotonic() < deadline:
        time.sleep(0.02)
    _ = process.exited
    if group is not None and group.path.exists():
        group.remove()


def with_nonce(nonce: str) -> list[int]:
    """Living processes that carry a nonce in their environment."""
    return [
        pid
        for pid in procfs.pids()
        if (entry := procfs.stat(pid)) is not None
        and entry.state not in "ZX"
        and procfs.environ_value(pid, NONCE) == nonce
    ]


def state(pid: int) -> str:
    """The state letter of a process; `gone` when there is none."""
    entry = procfs.stat(pid)
    return entry.state if entry else "gone"
