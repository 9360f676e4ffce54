"""The census on real processes. GPUs and their library are fake, and so are the device files:
an ordinary file named nvidia0 stands in for /dev/nvidia0."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opsctl.gpu import processes, survey
from opsctl.gpu.census import census
from opsctl.gpu.model import Census, GpuUse, Holder, HostProcess, Snapshot, Verdict
from opsctl.system import procfs, subreaper
from tests.support.engine_trees import PRELUDE
from tests.support.fake_nvml import GIB, FakeNvml
from tests.support.proc_tree import NONCE

Processes = dict[int, HostProcess]
NOBODY = 65534
IS_ROOT = os.geteuid() == 0


class Bench:
    """A fake host with eight GPUs and processes that end with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nvml = FakeNvml.eight_sm120(folder)
        self.device = folder / "nvidia0"
        self.device.touch(mode=0o666)
        self.started: list[subprocess.Popen[str]] = []
        self.pids: list[int] = []

    def run(self, code: str, *, words: int = 1, **environment: str) -> list[int]:
        """Run `code` with a device open; the process numbers it says."""
        opened = f"device = os.open({str(self.device)!r}, os.O_RDWR)\n"
        opened += "os.set_inheritable(device, True)\n"
        tree = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + opened + code],
            stdout=subprocess.PIPE,
            text=True,
            env={"PATH": os.environ["PATH"], **environment},
        )
        self.started.append(tree)
        assert tree.stdout is not None
        said = [int(tree.stdout.readline()) for _ in range(words)]
        self.pids += said
        return said

    def hold(self, pid: int, memory: int = 90 * GIB) -> None:
        """Let NVML list a process."""
        self.nvml.set_process(pid, memory=memory, ghost=True)

    def look(self, *state_dirs: Path) -> Census:
        return survey.look([str(d) for d in state_dirs], device_prefix=str(self.folder / "nvidia"))

    def clear_away(self) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for tree in self.started:
            tree.kill()
            tree.communicate()
        subreaper.reap(self.pids)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    tmp_path.chmod(0o755)
    made = Bench(tmp_path)
    for name, value in made.nvml.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OPSCTL_STATE_DIR", str(tmp_path / "no-state"))
    yield made
    made.clear_away()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "did not come true in time"
        time.sleep(0.02)


def the(holder: Holder | None) -> Holder:
    assert holder is not None
    return holder


# A child as SGLang leaves it: two forks and a session away from what started it, retitled, its
# environment gone. The one in between ends, so that init or a subreaper becomes its parent.
ESCAPED = """
pids = os.pipe()
def scheduler():
    os.write(pids[1], str(os.getpid()).encode())
    titled("sglang::scheduler_TP0", {environment})()
escape(scheduler)
say(os.read(pids[0], 20).decode())
sleep()
"""


def retitled(pid: int) -> Callable[[], bool]:
    return lambda: procfs.title(pid).startswith("sglang::")


def test_a_lost_scheduler_is_a_stray_engine(bench: Bench) -> None:
    (pid,) = bench.run(ESCAPED.format(environment="{}"))
    bench.hold(pid)
    until(retitled(pid))
    found = the(bench.look().of(pid))
    assert found.verdict is Verdict.STRAY, found.evidence
    assert (found.gpus, found.memory) == ((0,), 90 * GIB)
    assert any("title sglang::scheduler_TP0" in said for said in found.evidence)


def test_one_with_a_nonce_that_nobody_recorded_is_an_orphan(bench: Bench) -> None:
    (pid,) = bench.run(ESCAPED.format(environment="os.environ"), OPSCTL_NONCE=NONCE)
    bench.hold(pid)
    until(retitled(pid))
    assert the(bench.look().of(pid)).verdict is Verdict.ORPHAN


def record(directory: Path, pid: int, nonce: str) -> None:
    """A state file of an opsctl that is gone."""
    started = procfs.stat(pid)
    identity = {
        "nonce": nonce,
        "pid": pid,
        "start_time": started.start_time if started else 0,
        "session": pid,
        "cgroup": None,
        "boot_id": procfs.boot_id(),
    }
    engine = {"identity": json.dumps(identity)}
    directory.mkdir()
    (directory / "state.json").write_text(
        json.dumps({"boot_id": procfs.boot_id(), "pid": 2**22 + 1, "engine": engine})
    )


def test_an_engine_whose_recorded_supervisor_is_gone_is_an_orphan_also_when_stopped(
    bench: Bench, tmp_path: Path
) -> None:
    main, child = bench.run(
        """
say(os.getpid())
os.setsid()
say(child(titled("sglang::scheduler_TP0", {})))
sleep()
""",
        words=2,
        OPSCTL_NONCE=NONCE,
    )
    bench.hold(child)
    until(retitled(child))
    record(tmp_path / "state", main, NONCE)
    os.kill(child, signal.SIGSTOP)
    until(lambda: (found := procfs.stat(child)) is not None and found.state == "T")
    found = bench.look(tmp_path / "state")
    stopped = the(found.of(child))
    assert stopped.verdict is Verdict.ORPHAN, stopped.evidence
    assert stopped.process is not None
    assert stopped.process.state == "T"
    assert the(found.of(main)).verdict is Verdict.ORPHAN


def test_a_defunct_child_is_a_zombie_of_the_parent_that_does_not_reap_it(bench: Bench) -> None:
    parent, dead = bench.run("say(os.getpid())\nsay(child(lambda: None))\nsleep()\n", words=2)
    bench.nvml.set_process(dead, memory=GIB, fixed=True)
    until(lambda: (found := procfs.stat(dead)) is not None and found.state == "Z")
    found = the(bench.look().of(dead))
    assert found.verdict is Verdict.ZOMBIE
    assert f"its parent {parent} (" in found.evidence[0]


def test_a_living_launcher_keeps_its_server_from_being_a_stray(bench: Bench) -> None:
    _, child = bench.run(
        'say(os.getpid())\nsay(child(titled("sglang::scheduler_TP0", {})))\nsleep()\n', words=2
    )
    bench.hold(child)
    until(retitled(child))
    assert the(bench.look().of(child)).verdict is Verdict.FOREIGN


def test_an_innocent_process_with_a_listed_number_is_unmapped(bench: Bench) -> None:
    (pid,) = bench.run("os.close(device)\nsay(os.getpid())\nsleep()\n")
    bench.hold(pid)
    found = bench.look()
    assert [h.verdict for h in found.holders if h.pid == pid] == [Verdict.UNMAPPED]


@pytest.mark.skipif(not IS_ROOT, reason="needs root to become another user")
def test_another_users_process_is_told_as_theirs(bench: Bench) -> None:
    (pid,) = bench.run(f"os.setuid({NOBODY})\nsay(os.getpid())\nsleep()\n")
    bench.hold(pid)
    found = the(bench.look().of(pid))
    assert found.verdict is Verdict.FOREIGN
    assert found.process is not None
    assert found.process.uid == NOBODY


@pytest.mark.skipif(not IS_ROOT, reason="needs root to become another user")
def test_without_root_other_peoples_files_stay_closed_and_are_said_to(bench: Bench) -> None:
    (pid,) = bench.run("say(os.getpid())\nsleep()\n")
    prefix = str(bench.folder / "nvidia")
    read = as_nobody(lambda: processes.read([pid], device_prefix=prefix))
    assert read[pid].devices is None
    rows = Snapshot("ok", uses=(GpuUse(0, pid, "compute", GIB),))
    found = the(census(rows, read, (), me=os.getpid(), host_pids=True).of(pid))
    assert found.verdict is Verdict.FOREIGN
    assert any("may not be read without root" in said for said in found.evidence)


def as_nobody(action: Callable[[], Processes]) -> Processes:
    """Run `action` in a child of another user; what it returns."""
    receiver, sender = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        with os.fdopen(sender, "wb") as pipe:
            pipe.write(pickle.dumps(action()))
        os._exit(0)
    os.close(sender)
    with os.fdopen(receiver, "rb") as pipe:
        result: Processes = pickle.loads(pipe.read())
    os.waitpid(pid, 0)
    return result


IN_A_CONTAINER = """
import json, subprocess, sys
from opsctl.gpu import survey
innocent = subprocess.Popen(["sleep", "600"])
try:
    print(innocent.pid, flush=True)
    sys.stdin.readline()
    found = survey.look(device_prefix=sys.argv[1])
    print(json.dumps([[h.pid, h.verdict, h.evidence] for h in found.holders]), flush=True)
finally:
    innocent.kill()
"""


@pytest.mark.skipif(not IS_ROOT, reason="needs root for a pid namespace")
def test_in_a_pid_namespace_a_host_number_is_not_taken_for_the_local_process(
    bench: Bench,
) -> None:
    inside = subprocess.Popen(
        ["unshare", "-pf", "--mount-proc", "--kill-child", sys.executable, "-c", IN_A_CONTAINER]
        + [str(bench.folder / "nvidia")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    bench.started.append(inside)
    assert inside.stdin is not None
    assert inside.stdout is not None
    local = int(inside.stdout.readline())
    bench.nvml.set_process(local, memory=GIB, fixed=True)
    bench.nvml.set_process(2**22 - 5, gpus=[1], memory=GIB, fixed=True)
    inside.stdin.write("go\n")
    inside.stdin.flush()
    found = json.loads(inside.stdout.readline())
    assert {(pid, verdict) for pid, verdict, _ in found} == {
        (local, "unmapped"),
        (2**22 - 5, "unmapped"),
    }
    assert f"process {local} here (sleep 600" in found[0][2][0]


# --- the command -------------------------------------------------------------------------------


def opsctl(bench: Bench, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "opsctl", "gpu", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **bench.nvml.environment},
    )


def test_ps_says_its_contract_in_json(bench: Bench) -> None:
    (pid,) = bench.run("os.close(device)\nsay(os.getpid())\nsleep()\n")
    bench.hold(pid)
    result = opsctl(bench, "ps", "-o", "json")
    assert result.returncode == 0, result.stderr
    said = json.loads(result.stdout)
    assert list(said) == ["schema", "driver", "gpus", "processes"]
    assert len(said["gpus"]) == 8
    assert list(said["gpus"][0]) == [
        "index",
        "uuid",
        "name",
        "compute_capability",
        "memory_total_bytes",
        "memory_used_bytes",
        "state",
    ]
    assert said["gpus"][0]["compute_capability"] == "12.0"
    entry = next(one for one in said["processes"] if one["pid"] == pid)
    assert list(entry) == [
        "pid",
        "start_time",
        "gpus",
        "verdict",
        "memory_bytes",
        "user",
        "command",
        "evidence",
    ]
    assert (entry["verdict"], entry["memory_bytes"]) == ("unmapped", 90 * GIB)


def test_ps_in_a_pipe_is_a_row_per_gpu_and_holder(bench: Bench) -> None:
    (pid,) = bench.run("os.close(device)\nsay(os.getpid())\nsleep()\n")
    bench.hold(pid)
    lines = opsctl(bench, "ps").stdout.splitlines()
    assert sum("RTX PRO 6000" in line for line in lines) == 8
    assert sum(line.startswith(f"unmapped      {pid}") for line in lines) == 1
    assert not any("\x1b" in line for line in lines)


def test_explain_tells_about_any_process(bench: Bench) -> None:
    (pid,) = bench.run("os.close(device)\nsay(os.getpid())\nsleep()\n")
    said = json.loads(opsctl(bench, "explain", str(pid), "-o", "json").stdout)
    assert said["verdict"] is None
    assert said["evidence"] == [
        "holds no GPU memory that NVML tells of, and has no /dev/nvidia* open"
    ]
    assert said["process"]["user"] is not None
    assert said["parents"][0]["pid"] == os.getpid()
    bench.hold(pid)
    said = json.loads(opsctl(bench, "explain", str(pid), "-o", "json").stdout)
    assert said["verdict"] == "unmapped"
    assert said["reap"].startswith("would leave it alone: ")


def test_explain_of_a_number_nobody_has(bench: Bench) -> None:
    result = opsctl(bench, "explain", str(2**22 + 1))
    assert result.returncode == 0
    assert "no process 4194305 can be seen here" in result.stdout


def test_a_driver_that_hangs_is_said_calmly_with_exit_code_4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = FakeNvml.blocked(tmp_path)
    bench = Bench.__new__(Bench)
    bench.nvml = blocked
    monkeypatch.setenv("OPSCTL_STATE_DIR", str(tmp_path / "no-state"))
    result = opsctl(bench, "ps", "-o", "json")
    assert result.returncode == 4, result.stderr
    said = json.loads(result.stdout)
    assert (said["driver"]["state"], said["gpus"]) == ("unresponsive", [])
    assert "fault" in [entry["verdict"] for entry in said["processes"]]


def test_a_host_without_gpu_is_no_failure(tmp_path: Path) -> None:
    bench = Bench.__new__(Bench)
    bench.nvml = FakeNvml.no_driver(tmp_path)
    result = opsctl(bench, "ps")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("No GPU can be seen: ")
