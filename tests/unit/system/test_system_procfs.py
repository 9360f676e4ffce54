from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.system import procfs, subreaper
from opsctl.system.pidfd import has_exited, kill_group, open_pidfd, signal_process


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "input()",
            "--api-key",
            "s3cret",
            "--hf-token=s3cret",
            "--port",
            "1",
        ],
        stdin=subprocess.PIPE,
        env={"NAME": "value=with=signs", "EMPTY": ""},
    )
    yield process
    process.kill()
    process.communicate()


def start_time(pid: int) -> int:
    found = procfs.stat(pid)
    assert found is not None
    return found.start_time


def test_a_name_with_spaces_and_parentheses_does_not_shift_the_fields() -> None:
    fields = ["S", "7", "8", "9"] + ["0"] * 7 + ["3", "4"] + ["0"] * 6 + ["555"] + ["0"] * 20
    found = procfs.parse_stat("42 (a) Z 1 (b) " + " ".join(fields))
    assert found is not None
    assert (found.pid, found.comm, found.state) == (42, "a) Z 1 (b", "S")
    assert (found.ppid, found.group, found.session) == (7, 8, 9)
    assert (found.cpu_time, found.start_time) == (7, 555)


@given(st.text(max_size=60))
def test_a_broken_stat_line_is_no_process(text: str) -> None:
    assert procfs.parse_stat(text) is None


def test_a_process_is_seen_as_it_is(child: subprocess.Popen[bytes]) -> None:
    found = procfs.stat(child.pid)
    assert found is not None
    assert (found.ppid, found.session) == (os.getpid(), os.getsid(0))
    assert child.pid in procfs.snapshot()
    assert procfs.environ_value(child.pid, "NAME") == "value=with=signs"
    assert procfs.environ_value(child.pid, "EMPTY") == ""
    assert procfs.environ_value(child.pid, "NAM") is None
    assert {os.getpid(), os.getppid(), 1} <= procfs.ancestors(os.getpid())
    assert child.pid not in procfs.ancestors(os.getpid())


def test_secrets_in_a_command_line_are_not_shown(child: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 5
    while "--port" not in (title := procfs.title(child.pid)):  # the kernel fills it during exec
        assert time.monotonic() < deadline
    assert "s3cret" not in title
    assert "--api-key *** --hf-token=*** --port 1" in title


def test_vanished_processes_are_no_error() -> None:
    gone = 2**22 + 1
    assert procfs.stat(gone) is None
    assert procfs.environ_value(gone, "PATH") is None
    assert procfs.cgroup_of(gone) is None
    assert procfs.shared_memory(gone) == frozenset()
    assert procfs.descriptors(gone) == ()
    assert procfs.title(gone, "name") == "[name]"


def test_a_signal_reaches_only_the_process_that_was_meant(
    child: subprocess.Popen[bytes],
) -> None:
    started = start_time(child.pid)
    assert not signal_process(child.pid, started + 1, signal.SIGKILL)
    assert child.poll() is None
    assert signal_process(child.pid, started, signal.SIGKILL)
    assert child.wait(5) == -9
    assert not signal_process(child.pid, started, signal.SIGKILL)


def test_an_exit_is_seen_before_it_is_reaped(child: subprocess.Popen[bytes]) -> None:
    descriptor = open_pidfd(child.pid, start_time(child.pid))
    assert descriptor is not None
    try:
        assert not has_exited(descriptor)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert has_exited(descriptor)
    finally:
        os.close(descriptor)


def test_a_group_without_a_witness_is_not_killed(child: subprocess.Popen[bytes]) -> None:
    assert not kill_group(os.getpgid(child.pid) + 1, witnesses=[child.pid])
    assert not kill_group(os.getpgid(0), witnesses=[])
    assert child.poll() is None


def test_reaping_names_its_processes(child: subprocess.Popen[bytes]) -> None:
    other = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert subreaper.reap([child.pid, 1, os.getpid()]) == ()
    assert other.wait() == 0  # its exit code was not stolen


def test_orphans_that_ended_unseen_are_reaped_and_awaited_children_are_not() -> None:
    code = """
import os, subprocess, sys
from opsctl.system import procfs, subreaper
subreaper.become()
read, write = os.pipe()
def orphan():
    parent = os.fork()
    if parent == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(write, str(os.getpid()).encode())
        os._exit(0)
    os.waitpid(parent, 0)
    pid = int(os.read(read, 16))
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid
reaper = subreaper.OrphanReaper()
first = orphan()
assert reaper.round() == ()
own = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"], start_new_session=True)
same = subprocess.Popen([sys.executable, "-c", "raise SystemExit(8)"])
for child in (own, same):
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
second = orphan()
assert reaper.round() == (first,), "and only once it was seen before"
assert own.wait() == 7
assert reaper.round() == (second,)
assert same.wait() == 8, "what shares the session is never touched"
assert reaper.round() == ()
"""
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


def test_orphans_are_adopted() -> None:
    code = """
import os, sys
from opsctl.system import subreaper
assert not subreaper.active()
assert subreaper.become() and subreaper.active()
read, write = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.read(read, 1)
        os.write(1, str(os.getppid()).encode())
    os._exit(0)
os.wait()
os.write(write, b"x")
orphan, _ = os.wait()
print(f" {os.getpid()}", flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    adopter, me = done.stdout.split()
    assert adopter == me
