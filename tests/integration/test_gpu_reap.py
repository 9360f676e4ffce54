"""`opsctl gpu reap` against a fake NVML and real processes."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from opsctl.gpu import survey
from opsctl.gpu.model import Census
from opsctl.gpu.reaper import Plan, plan, reap
from opsctl.system import pidfd, ports, procfs
from opsctl.system.cgroup import Cgroup, writable_parent
from tests.support.fake_nvml import GIB, FakeNvml
from tests.support.gpu_holders import (
    Holders,
    Started,
    look_only_at,
    opsctl_argv,
    record_engine,
    wait_until,
)

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
CHILD = "sglang::scheduler_TP0"
MAIN = "python -m sglang.launch_server --port 30000"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="starts processes of several users")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that other users may enter, unlike tmp_path."""
    path = Path(tempfile.mkdtemp(prefix="reap-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def fake(folder: Path) -> FakeNvml:
    return FakeNvml.eight_sm120(folder)


@pytest.fixture
def holders(folder: Path, fake: FakeNvml) -> Iterator[Holders]:
    with Holders(folder, fake) as started:
        yield started


class Host:
    """Runs opsctl with the fake driver and a state directory of the test's own."""

    def __init__(self, folder: Path, holders: Holders) -> None:
        self.state = folder / "state"
        self.holders = holders
        self.environment = {
            **os.environ,
            **holders.fake.environment,
            "HOME": str(folder),
            "PYTHONPATH": str(ROOT),
        }
        self.environment.pop("OPSCTL_NONCE", None)

    def argv(self, *words: str) -> list[str]:
        return opsctl_argv(
            self.holders, "--state-dir", str(self.state), "gpu", "reap", "--grace", "1s", *words
        )

    def run(self, *words: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*prefix, *self.argv(*words)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=self.environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
        )

    def reap(self, *words: str, prefix: tuple[str, ...] = ()) -> dict[str, Any]:
        done = self.run("--yes", "-o", "json", *words, prefix=prefix)
        assert done.stdout, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        assert document["exit_code"] == done.returncode, done.stderr
        return document


@pytest.fixture
def host(folder: Path, holders: Holders) -> Host:
    return Host(folder, holders)


def outcomes(document: dict[str, Any]) -> dict[int, tuple[list[str], str]]:
    return {one["pid"]: (one["signals"], one["outcome"]) for one in document["targets"]}


def dead_engine(host: Host, nonce: str) -> None:
    """A state file of an engine whose supervisor and main process are gone."""
    gone = Started(2**22 + 1, 1)
    record_engine(host.state, gone, nonce, supervisor=2**22 + 2)


def test_what_a_dead_engine_left_is_ended_and_everything_it_held_is_back(
    host: Host, holders: Holders
) -> None:
    nonce = uuid.uuid4().hex
    dead_engine(host, nonce)
    segment = Path(f"/dev/shm/sgl_shm_{nonce}")
    weights = Path(f"/dev/shm/weights_{nonce}")
    local = Path(tempfile.gettempdir()) / f"tmp{nonce[:8]}"
    try:
        stubborn = holders.start(
            CHILD,
            gpus=[0],
            nonce=nonce,
            ignore_term=True,
            port=True,
            files=[segment, weights],
            socket=local,
        )
        tokenizer = holders.start("sglang::tokenizer_worker_0", nonce=nonce, port=True)
        willing = holders.start(CHILD, gpus=[1], nonce=nonce)
        bystander = holders.start("/srv/sglang/train.py", gpus=[2])
        document = host.reap()
        assert outcomes(document) == {
            stubborn.pid: (["TERM", "KILL"], "killed"),
            tokenizer.pid: (["TERM"], "exited"),
            willing.pid: (["TERM"], "exited"),
        }
        assert [(gpu["gpu"], gpu["released"]) for gpu in document["memory"]] == [
            (0, True),
            (1, True),
        ]
        assert all(gpu["before_bytes"] - gpu["after_bytes"] == GIB for gpu in document["memory"])
        assert set(document["ports_freed"]) == {*stubborn.ports, *tokenizer.ports}
        assert ports.listeners(document["ports_freed"]) == ()
        assert document["files_removed"] == sorted([str(segment), str(local)])
        assert weights.exists()
        assert not segment.exists()
        assert not local.exists()
        assert [one["pid"] for one in document["blocked_by"]] == [bystander.pid]
        assert document["exit_code"] == 4  # GPU 2 is held by what may not be touched
    finally:
        for path in (segment, weights, local):
            path.unlink(missing_ok=True)
    assert not any(one.alive for one in (stubborn, tokenizer, willing))
    assert bystander.alive
    entry = json.loads((host.state / "events.jsonl").read_text())
    assert entry["event"] == "gpu_reap"
    assert {one["pid"] for one in entry["targets"]} == set(outcomes(document))
    assert host.run("--yes", "--gpu", "0", "--gpu", "1").returncode == 0


def test_a_gpu_limits_it_to_trees_that_hold_it_and_a_serving_engine_stays(
    host: Host, holders: Holders, folder: Path
) -> None:
    serving, dead, other = (uuid.uuid4().hex for _ in range(3))
    supervisor = holders.start("opsctl serve")
    main = holders.start(MAIN, gpus=[3], nonce=serving)
    record_engine(host.state, main, serving, supervisor=supervisor.pid)
    worker = holders.start(CHILD, gpus=[0], nonce=serving)
    reaped = [
        holders.start(CHILD, gpus=[0], nonce=dead),
        holders.start(CHILD, gpus=[1], nonce=dead),
    ]
    second = holders.start(CHILD, gpus=[2], nonce=other)
    decoy = holders.start("/opt/sglang/bin/editor")
    document = host.reap("--gpu", "0")
    assert set(outcomes(document)) == {one.pid for one in reaped}
    assert document["exit_code"] == 0
    assert [(one["pid"], one["verdict"]) for one in document["left"]] == [(worker.pid, "managed")]
    assert "opsctl stop" in document["left"][0]["why"]
    assert not any(one.alive for one in reaped)
    assert all(one.alive for one in (supervisor, main, worker, second, decoy))


def test_a_stray_is_left_with_the_word_that_ends_it_and_then_goes_with_its_tree(
    host: Host, holders: Holders
) -> None:
    spec = holders.spec(
        MAIN,
        port=True,
        children=[
            holders.spec(CHILD, gpus=[0], ignore_term=True),
            holders.spec("sglang::detokenizer"),
            holders.spec("ninja"),
        ],
    )
    family = holders.family(spec)
    document = host.reap()
    assert document["targets"] == []
    assert {one["pid"]: one["word"] for one in document["left"]} == dict.fromkeys(
        (one.pid for one in family), "--include stray"
    )
    assert document["exit_code"] == 4
    assert all(one.alive for one in family)
    document = host.reap("--include", "stray")
    assert document["exit_code"] == 0
    assert document["targets"][0]["pid"] == family[0].pid  # the main process first
    assert outcomes(document)[family[0].pid] == (["TERM"], "exited")
    assert outcomes(document)[family[1].pid] == (["TERM", "KILL"], "killed")
    assert not any(one.alive for one in family)


def test_of_a_zombie_the_living_of_its_group_go_and_the_negligent_parent_is_named(
    host: Host, holders: Holders, fake: FakeNvml
) -> None:
    nonce = uuid.uuid4().hex
    dead_engine(host, nonce)
    living = holders.spec(CHILD, nonce=nonce, gpus=[0])
    spec = holders.spec(
        "bash", children=[holders.spec("python", dies=True, leader=True, children=[living])]
    )
    parent, zombie, member = holders.family(spec)
    wait_until(lambda: zombie.state == "Z")
    fake.set_process(zombie.pid, gpus=[0], memory=GIB, fixed=True)
    document = host.reap("--gpu", "0")
    assert set(outcomes(document)) == {member.pid}
    left = {one["pid"]: one for one in document["left"]}
    assert left[zombie.pid]["verdict"] == "zombie"
    assert f"parent {parent.pid} does not reap it" in left[zombie.pid]["why"]
    assert not member.alive
    assert parent.alive
    assert document["exit_code"] == 4  # NVML still lists the zombie


def test_a_stopped_process_is_woken_to_hear_the_signal(host: Host, holders: Holders) -> None:
    nonce = uuid.uuid4().hex
    dead_engine(host, nonce)
    stopped = holders.start(CHILD, gpus=[0], nonce=nonce)
    os.kill(stopped.pid, signal.SIGSTOP)
    wait_until(lambda: stopped.state == "T")
    document = host.reap()
    assert outcomes(document) == {stopped.pid: (["TERM", "CONT"], "exited")}


def test_another_users_stray_needs_a_name_and_without_the_right_it_is_reported(
    host: Host, holders: Holders
) -> None:
    stray = holders.start(CHILD, gpus=[0], uid=NOBODY, port=True)
    assert host.reap("--include", "stray")["targets"] == []
    mine = holders.start(CHILD, gpus=[1], port=True)
    as_nobody = ("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups")
    assert mine.alive
    document = host.reap("--include", "stray", "--user", "root", prefix=as_nobody)
    if document["targets"]:  # only where nobody may see whose ports they are
        assert outcomes(document) == {mine.pid: ([], "denied")}
    document = host.reap("--include", "stray", "--user", "nobody")
    assert outcomes(document) == {stray.pid: (["TERM"], "exited")}
    assert mine.alive


def test_an_orphan_of_another_user_is_reported_by_name_when_it_may_not_be_ended(
    host: Host, holders: Holders
) -> None:
    nonce = uuid.uuid4().hex
    main = holders.start(MAIN, gpus=[0], nonce=nonce)
    record_engine(host.state, main, nonce, supervisor=2**22 + 2)
    host.state.chmod(0o755)
    (host.state / "state.json").chmod(0o644)
    as_nobody = ("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups")
    document = host.reap(prefix=as_nobody)
    assert outcomes(document) == {main.pid: ([], "denied")}
    assert "user root" in document["targets"][0]["detail"]
    assert document["exit_code"] == 4
    assert main.alive


def test_foreign_goes_by_exact_identity_only(host: Host, holders: Holders) -> None:
    foreign = holders.start("python train.py", gpus=[0])
    stale = host.run("--yes", "--include", f"foreign:{foreign.pid}@{foreign.start_time - 1}")
    assert stale.returncode == 2
    assert "new owner" in stale.stderr
    assert foreign.alive
    document = host.reap("--include", f"foreign:{foreign.pid}@{foreign.start_time}")
    assert outcomes(document) == {foreign.pid: (["TERM"], "exited")}
    assert document["exit_code"] == 0


def test_without_a_terminal_nobody_is_ended_unasked(host: Host, holders: Holders) -> None:
    nonce = uuid.uuid4().hex
    dead_engine(host, nonce)
    orphan = holders.start(CHILD, gpus=[0], nonce=nonce)
    assert host.run("--check").returncode == 3
    assert host.run("--dry-run").returncode == 0
    asked = host.run()
    assert asked.returncode == 2
    assert "--yes" in asked.stderr
    assert str(orphan.pid) in asked.stdout
    assert orphan.alive
    assert not (host.state / "events.jsonl").exists()


@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("", 1), ("y", 0)])
def test_at_a_terminal_it_asks(host: Host, holders: Holders, answer: str, code: int) -> None:
    nonce = uuid.uuid4().hex
    dead_engine(host, nonce)
    orphan = holders.start(CHILD, gpus=[0], nonce=nonce)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        host.argv(),
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=host.environment,
        cwd=ROOT,
    ) as process:
        os.write(ours, f"{answer}\n".encode())
        _, errors = process.communicate(timeout=30)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == code, errors
    assert "End 1 process? [y/N]" in errors
    assert orphan.alive is (code != 0)


def test_a_silent_driver_does_not_save_an_orphan_but_a_stray(
    host: Host, holders: Holders, fake: FakeNvml
) -> None:
    nonce = uuid.uuid4().hex
    dead_engine(host, nonce)
    orphan = holders.start(CHILD, gpus=[0], nonce=nonce)
    stray = holders.start(CHILD, gpus=[1], port=True)
    fake.block("nvmlInitWithFlags")
    document = host.reap("--include", "stray")
    assert outcomes(document) == {orphan.pid: (["TERM"], "exited")}
    assert document["driver"] == "unresponsive"
    assert document["exit_code"] == 4
    assert stray.alive


def census_of(holders: Holders, host: Host) -> Census:
    look_only_at([one.pid for one in holders.started], holders.device_prefix)
    return survey.look([str(host.state)])


def planned(view: Census) -> Plan:
    return plan(view, caller_uid=0, me=os.getpid(), spared=procfs.ancestors(os.getpid()))


@pytest.fixture
def in_process(host: Host, fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Host:
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(survey.processes, "read", survey.processes.read)  # put back at the end
    return host


async def test_memory_that_never_comes_back_is_named_and_bounded(
    in_process: Host, holders: Holders, fake: FakeNvml
) -> None:
    nonce = uuid.uuid4().hex
    dead_engine(in_process, nonce)
    orphan = holders.start(CHILD, nonce=nonce, gpus=[5])
    fake.remove_process(orphan.pid)
    fake.set_process(orphan.pid, gpus=[5], memory=GIB, linger=None)
    before = census_of(holders, in_process)
    look = partial(survey.look_async, [str(in_process.state)])
    outcome = await reap(planned(before), grace=1, memory_deadline=1, look=look)
    assert {result.outcome for result in outcome.results} == {"exited"}
    assert [(gpu.gpu, gpu.released) for gpu in outcome.memory] == [(5, False)], outcome.memory
    assert outcome.exit_code == 5


async def test_memory_that_lingers_is_waited_for(
    in_process: Host, holders: Holders, fake: FakeNvml
) -> None:
    nonce = uuid.uuid4().hex
    dead_engine(in_process, nonce)
    orphan = holders.start(CHILD, nonce=nonce, gpus=[5])
    fake.remove_process(orphan.pid)
    fake.set_process(orphan.pid, gpus=[5], memory=GIB, linger=1.0)
    look = partial(survey.look_async, [str(in_process.state)])
    outcome = await reap(
        planned(census_of(holders, in_process)), grace=1, memory_deadline=10, look=look
    )
    assert [(gpu.gpu, gpu.released) for gpu in outcome.memory] == [(5, True)]
    assert outcome.exit_code == 0


async def test_a_number_that_changed_hands_since_the_plan_is_not_signalled(
    in_process: Host, holders: Holders
) -> None:
    nonce = uuid.uuid4().hex
    dead_engine(in_process, nonce)
    orphan = holders.start(CHILD, nonce=nonce)
    made = planned(census_of(holders, in_process))
    (target,) = made.targets
    earlier = replace(target, holder=replace(target.holder, start_time=target.start_time - 1))
    outcome = await reap(replace(made, targets=(earlier,)), grace=1)
    assert [(one.signals, one.outcome) for one in outcome.results] == [((), "replaced")]
    assert orphan.alive


async def test_who_joins_after_the_plan_goes_with_the_launch_and_nobody_else(
    in_process: Host, holders: Holders
) -> None:
    nonce = uuid.uuid4().hex
    dead_engine(in_process, nonce)
    parent = holders.start(CHILD, nonce=nonce, ignore_term=True)
    made = planned(census_of(holders, in_process))
    late = holders.start("worker", nonce=nonce)
    other = holders.start("worker", nonce=uuid.uuid4().hex)
    outcome = await reap(made, grace=0.2)
    assert {one.target.pid: one.outcome for one in outcome.results} == {
        parent.pid: "killed",
        late.pid: "exited",
    }
    assert not late.alive
    assert other.alive


async def test_locks_of_a_reaped_builder_are_reported_and_go_only_when_asked(
    in_process: Host, holders: Holders, folder: Path
) -> None:
    nonce = uuid.uuid4().hex
    dead_engine(in_process, nonce)
    extensions = folder / "ext"
    lock = extensions / "fused" / "lock"
    lock.parent.mkdir(parents=True)
    environment = {"TORCH_EXTENSIONS_DIR": str(extensions), "HOME": str(folder)}
    for clear in (False, True):
        holders.start(CHILD, nonce=nonce, files=[lock], environment=environment)
        outcome = await reap(
            planned(census_of(holders, in_process)), grace=1, clear_jit_locks=clear
        )
        assert [one.outcome for one in outcome.results] == ["exited"]
        (found,) = outcome.jit_locks
        assert (found.path, found.stale, found.removed) == (str(lock), True, clear)
        assert lock.exists() is not clear


async def test_an_unkillable_one_ends_in_a_verdict_not_in_a_loop(
    in_process: Host, holders: Holders, monkeypatch: pytest.MonkeyPatch
) -> None:
    nonce = uuid.uuid4().hex
    dead_engine(in_process, nonce)
    orphan = holders.start(CHILD, nonce=nonce)
    delivered = []

    def deliver(descriptor: int, number: signal.Signals) -> str:
        delivered.append(number)
        return "sent"

    monkeypatch.setattr(pidfd, "deliver", deliver)
    made = planned(census_of(holders, in_process))
    outcome = await asyncio.wait_for(reap(made, grace=0.2, kill_grace=0.3), 10)
    (result,) = outcome.results
    assert (result.signals, result.outcome) == (("TERM", "KILL"), "survived")
    assert result.detail is not None
    assert "state S in " in result.detail
    assert "reset" in result.detail
    assert delivered == [signal.SIGTERM, signal.SIGKILL]
    assert outcome.exit_code == 4
    assert orphan.alive


@pytest.mark.parametrize("shared", [False, True])
async def test_the_cgroup_of_a_dead_launch_is_killed_whole_and_removed(
    in_process: Host, holders: Holders, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    killed: list[Path] = []

    def kill(group: Cgroup) -> bool:
        killed.append(group.path)
        return real(group)

    real = Cgroup.kill
    monkeypatch.setattr(Cgroup, "kill", kill)
    parent = writable_parent()
    if parent is None:
        pytest.skip("no cgroup can be made here")
    nonce = uuid.uuid4().hex
    group = parent.create(f"opsctl-{nonce}")
    try:
        member = holders.start("worker", cgroup=group.path, ignore_term=True)
        # in the cgroup, but of no other tie to it
        made = planned(census_of(holders, in_process))
        assert [target.pid for target in made.targets] == [member.pid]
        guest = holders.start("guest", cgroup=group.path) if shared else None
        if guest is not None:  # such as an opsctl that somebody put there
            made = replace(made, spared=made.spared | {guest.pid})
        outcome = await reap(made, grace=0.2)
        assert [(one.signals, one.outcome) for one in outcome.results] == [
            (("TERM", "KILL"), "killed")
        ]
        assert killed == ([] if shared else [group.path])
        assert group.path.exists() is shared
        assert guest is None or guest.alive
    finally:
        if group.path.exists():
            group.kill()
            wait_until(group.remove)


_NAMESPACE = """
import os, subprocess, sys, time
from pathlib import Path
from tests.support.fake_nvml import FakeNvml, GIB
from tests.support.gpu_holders import Holders, opsctl_argv
folder = Path(sys.argv[1])
innocent = subprocess.Popen(["sleep", "600"])
fake = FakeNvml.eight_sm120(folder)
fake.set_process(innocent.pid, gpus=[0], memory=GIB, fixed=True)
fake.set_process(40170, gpus=[1], memory=GIB, fixed=True)
holders = Holders(folder, fake)
holders.started.append(innocent)
done = subprocess.run(
    opsctl_argv(holders, "gpu", "reap", "--yes", "-o", "json", "--include", "stray",
                "--user", "all", *sys.argv[2:]),
    env={**os.environ, **fake.environment, "OPSCTL_STATE_DIR": str(folder / "none")},
)
print(done.returncode, innocent.poll())
innocent.kill()
innocent.wait()
"""


def in_pid_namespace(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ["unshare", "-pf", "--mount-proc", "--kill-child", sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    if "Operation not permitted" in done.stderr:
        pytest.skip("no pid namespace can be made here")
    return done


def test_in_a_container_numbers_of_the_host_are_reported_only(folder: Path) -> None:
    done = in_pid_namespace(_NAMESPACE, str(folder))
    *document, last = done.stdout.splitlines()
    assert last == "4 None", done.stderr
    found = json.loads("\n".join(document))
    assert found["targets"] == []
    assert {one["verdict"] for one in found["left"]} >= {"unmapped"}
    assert {one["word"] for one in found["left"] if one["verdict"] == "unmapped"} == {None}


_REUSE = """
import asyncio, os, signal, subprocess, sys, time
from opsctl.gpu.model import Census, Holder, HostProcess, Snapshot, Verdict
from opsctl.gpu.reaper import plan, reap
from opsctl.system import procfs

def sleeper():
    return subprocess.Popen(["sleep", "600"])

first = sleeper()
entry = procfs.stat(first.pid)
body = HostProcess(entry.pid, entry.start_time, "S", entry.ppid, entry.session, entry.group,
                   "sleep", "sglang::scheduler", uid=0)
holder = Holder(Verdict.ORPHAN, entry.pid, entry.start_time, (), 0, (), body)
made = plan(Census(Snapshot("absent"), (holder,)), caller_uid=0, me=os.getpid())
assert len(made.targets) == 1
first.kill(); first.wait()
while time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK") < entry.start_time + 3:
    time.sleep(0.01)
open("/proc/sys/kernel/ns_last_pid", "w").write(str(first.pid - 1))
second = sleeper()
outcome = asyncio.run(reap(made, grace=0.5, kill_grace=0.5))
print(first.pid == second.pid, outcome.results[0].outcome, outcome.results[0].signals,
      second.poll())
second.kill(); second.wait()
"""


def test_a_really_reused_number_is_not_signalled() -> None:
    done = in_pid_namespace(_REUSE)
    assert done.stdout.split() == ["True", "replaced", "()", "None"], done.stderr
