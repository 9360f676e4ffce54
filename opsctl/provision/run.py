"""Runs playbooks in a fence: whatever ends the run, no process of it is left.

ansible-runner's own cancel, time-out and signal handling leave the running module behind on the
machine it started on. So a run is a process of its own in its own session and, where one can be
had, its own cgroup, and its environment holds nothing that it does not need: ansible-runner
writes that down whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from opsctl.errors import PreconditionError
from opsctl.system import cgroup, pidfd, procfs, spawn

Event = dict[str, Any]
POLL = 0.1
CALM = 5.0
"""Seconds for the processes of a run that was cancelled to be gone."""
PASSED = ("HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "SSH_AUTH_SOCK", "TMPDIR")
"""Environment variables a run gets from the caller."""
SETTINGS = {
    "ANSIBLE_NOCOLOR": "1",
    "ANSIBLE_FORCE_COLOR": "0",
    "ANSIBLE_PIPELINING": "1",
    "ANSIBLE_RETRY_FILES_ENABLED": "0",
    "ANSIBLE_DEPRECATION_WARNINGS": "0",
    "ANSIBLE_TIMEOUT": "20",
    "ANSIBLE_LOCALHOST_WARNING": "0",
    "ANSIBLE_INVENTORY_UNPARSED_WARNING": "0",
    "ANSIBLE_HOST_KEY_CHECKING": "1",
}


@dataclass(frozen=True)
class Play:
    """One playbook run: which, on what, how."""

    playbook: Path
    inventory: Event
    folder: Path
    """A fresh folder of this run's own; log and events stay in it."""
    tags: Sequence[str] = ()
    check: bool = False
    diff: bool = False
    forks: int = 10
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        """Ansible's whole output."""
        return self.folder / "ansible.log"


def available() -> None:
    """Raise PreconditionError where Ansible is not installed beside opsctl."""
    if find_spec("ansible_runner") is None or find_spec("ansible") is None:
        raise PreconditionError(
            "Ansible is not installed in opsctl's environment",
            hint="install the extra: pip install 'opsctl[provision]'",
        )


def run(play: Play, on_event: Callable[[Event], None]) -> int:
    """Run it to its end and return Ansible's exit code; KeyboardInterrupt leaves nothing behind."""
    play.folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    private, events = play.folder / "private", play.folder / "events.jsonl"
    private.mkdir(mode=0o700)
    events.touch(mode=0o600)
    request = private / "request.json"
    request.touch(mode=0o600)
    request.write_text(json.dumps(_request(play, private / "data", events)), encoding="utf-8")
    try:
        with _fence() as group:
            pid = spawn.spawn(
                [sys.executable, "-m", "opsctl.provision.worker", str(request)],
                environment=_environment(play),
                log_path=play.log,
                cgroup=group,
            )
            try:
                return _follow(pid, events, on_event)
            finally:
                _end(pid, group)
    finally:
        shutil.rmtree(private, ignore_errors=True)  # the inventory, and what runner wrote down


def _request(play: Play, folder: Path, events: Path) -> Event:
    folder.mkdir(mode=0o700)
    return {
        "playbook": str(play.playbook),
        "inventory": play.inventory,
        "folder": str(folder),
        "events": str(events),
        "tags": list(play.tags),
        "check": play.check,
        "diff": play.diff,
        "forks": play.forks,
    }


def _environment(play: Play) -> dict[str, str]:
    """Ansible's programs lie beside the interpreter, which need not be on the caller's PATH."""
    own = str(Path(sys.executable).parent)
    path = os.pathsep.join([own, os.environ.get("PATH", os.defpath)])
    passed = {name: os.environ[name] for name in PASSED if name in os.environ}
    return {**passed, "PATH": path, **SETTINGS, **play.settings}


@contextlib.contextmanager
def _fence() -> Iterator[cgroup.Cgroup | None]:
    parent, group = cgroup.writable_parent(), None
    if parent is not None:
        with contextlib.suppress(OSError):
            group = parent.create(f"opsctl-provision-{os.getpid()}-{time.monotonic_ns()}")
    try:
        yield group
    finally:
        if group is not None:
            group.remove()


def _follow(pid: int, events: Path, on_event: Callable[[Event], None]) -> int:
    with events.open(encoding="utf-8") as file:
        rest = ""
        while True:
            code = spawn.exit_code(pid)
            rest += file.read()
            *lines, rest = rest.split("\n")
            for line in lines:
                on_event(json.loads(line))
            if code is not None:
                return code
            time.sleep(POLL)


def _end(pid: int, group: cgroup.Cgroup | None) -> None:
    """SIGKILL what is left of the run: its cgroup, else its session, until nothing lives."""
    deadline = time.monotonic() + CALM
    while time.monotonic() < deadline:
        members = _members(pid, group)
        if not members:
            return
        if group is None or not group.kill():
            for member in members:
                pidfd.signal_process(member.pid, member.start_time, signal.SIGKILL)
        spawn.exit_code(pid)
        time.sleep(POLL / 5)


def _members(pid: int, group: cgroup.Cgroup | None) -> list[procfs.ProcessStat]:
    inside = group.pids() if group is not None else frozenset()
    return [
        stat
        for stat in procfs.snapshot().values()
        if stat.state not in "ZX" and (stat.pid in inside or stat.session == pid)
    ]
