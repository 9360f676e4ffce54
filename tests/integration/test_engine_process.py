"""Real process trees: started, recognised, stopped, found again; none of them left over."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from opsctl.config.schema import LaunchProfile
from opsctl.engine import preflight
from opsctl.engine import tree as engine_tree
from opsctl.engine.client import EngineClient, Readiness
from opsctl.engine.log import EngineLog
from opsctl.engine.markers import STAGES, stage_of
from opsctl.engine.process import EngineProcess, Identity, kill_leftovers, leftovers
from opsctl.engine.release import SimulatedMemory, UnknownMemory, verify
from opsctl.engine.tree import Member, living
from opsctl.errors import PreconditionError
from opsctl.profiles import launch
from opsctl.profiles.launch import Command
from opsctl.system import procfs
from opsctl.system.cgroup import Cgroup, writable_parent
from tests.support.engine_trees import clear_away, eventually, state, tree, with_nonce


@pytest.fixture(params=["cgroup", "session"])
def fence(request: pytest.FixtureRequest) -> Iterator[Cgroup | None]:
    """Both ways of fencing an engine in; no group may be left behind."""
    if request.param == "session":
        yield None
        return
    parent = writable_parent()
    if parent is None:
        pytest.skip("no cgroup2 can be written here")
    own = parent.create(f"opsctl-test-{os.getpid()}")
    yield own
    left = [path.name for path in own.path.iterdir() if path.is_dir()]
    assert own.remove()
    assert left == []


async def test_an_engine_has_its_own_session_log_and_environment(
    tmp_path: Path, fence: Cgroup | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAK", "1")
    code = """
say("cwd=" + os.getcwd())
say("names=" + ",".join(sorted(os.environ)))
say("stdin=" + os.readlink("/proc/self/fd/0"))
say("fds=" + ",".join(sorted(os.listdir("/proc/self/fd"))))
say("ignored=" + str(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN))
say("ready")
sleep()
"""
    leak = socket.socket()
    leak.set_inheritable(True)
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        async with tree(code, tmp_path, cgroup_parent=fence) as running:
            identity = running.process.identity
            names = next(word for word in running.words if word.startswith("names="))
            assert set(names.removeprefix("names=").split(",")) <= {
                "PATH",
                "OPSCTL_NONCE",
                "LC_CTYPE",  # Python itself sets it (PEP 538)
            }
            assert {"cwd=/", "stdin=/dev/null", "fds=0,1,2,3", "ignored=False"} <= set(
                running.words
            )
            assert os.getsid(identity.pid) == identity.pid == identity.session
            assert stat.S_IMODE(running.log.stat().st_mode) == 0o600
            assert (identity.cgroup is None) == (fence is None)
            report = await running.process.stop(grace=5)
            assert (report.exit_code, report.escalated) == (-signal.SIGTERM, False)
    finally:
        signal.signal(signal.SIGHUP, old)
        leak.close()


async def test_a_stop_asks_only_the_main_process(tmp_path: Path, fence: Cgroup | None) -> None:
    code = """
def told(number, frame):
    say("child-was-signalled")
def worker():
    signal.signal(signal.SIGTERM, told)
    while os.getppid() == main: time.sleep(0.02)
main = os.getpid()
child(worker)
def leave(number, frame):
    time.sleep(0.2)
    say("drained")
    os._exit(0)
signal.signal(signal.SIGTERM, leave)
say("ready")
while True: time.sleep(1)
"""
    async with tree(code, tmp_path, cgroup_parent=fence) as running:
        report = await running.process.stop(grace=10)
        assert (report.exit_code, report.escalated, report.killed) == (0, False, ())
        assert "drained" in running.words
        assert "child-was-signalled" not in running.words
        assert leftovers(running.process.identity) == ()
        assert fence is None or list(fence.path.glob("opsctl-*")) == []


async def test_a_tree_that_ignores_sigterm_is_killed_after_the_grace(
    tmp_path: Path, fence: Cgroup | None
) -> None:
    code = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child(sleep); child(sleep)
say("ready")
sleep()
"""
    async with tree(code, tmp_path, cgroup_parent=fence) as running:
        report = await running.process.stop(grace=0.3)
        assert report.escalated
        assert report.exit_code == -signal.SIGKILL
        assert len(report.killed) == 3
        assert report.survivors == ()
        assert 0.3 <= report.seconds < 10
        assert living(running.process.members()) == ()


async def test_a_forced_stop_does_not_ask(tmp_path: Path, fence: Cgroup | None) -> None:
    code = """
signal.signal(signal.SIGTERM, lambda *_: say("asked"))
say("ready")
sleep()
"""
    async with tree(code, tmp_path, cgroup_parent=fence) as running:
        report = await running.process.stop(grace=60, force=True)
        assert (report.exit_code, report.escalated) == (-signal.SIGKILL, True)
        assert "asked" not in running.words


async def test_a_second_forced_stop_ends_a_stop_that_waits(
    tmp_path: Path, fence: Cgroup | None
) -> None:
    code = """
signal.signal(signal.SIGTERM, lambda *_: say("asked"))
say("ready")
while True: time.sleep(1)
"""
    async with tree(code, tmp_path, cgroup_parent=fence) as running:
        patient = asyncio.create_task(running.process.stop(grace=60))
        await running.said("asked")
        await running.process.stop(grace=0, force=True)
        report = await asyncio.wait_for(patient, 10)
        assert report.exit_code == -signal.SIGKILL


async def test_a_child_that_escapes_by_double_fork_is_found_and_killed(
    tmp_path: Path, fence: Cgroup | None
) -> None:
    async with tree(
        "escape(sleep); say('ready'); sleep()", tmp_path, cgroup_parent=fence
    ) as running:
        engine = running.process
        escaped = [m for m in living(engine.members()) if m.pid != engine.identity.pid]
        assert [m.how for m in escaped] == ["cgroup" if fence else "nonce"]
        assert os.getsid(escaped[0].pid) != engine.identity.session
        report = await engine.stop(grace=5)
        assert [m.pid for m in report.killed] == [escaped[0].pid]
        assert state(escaped[0].pid) == "gone"


async def test_an_escaped_child_without_nonce_is_found_by_its_cgroup(tmp_path: Path) -> None:
    parent = writable_parent()
    if parent is None:
        pytest.skip("no cgroup2 can be written here")
    code = "escape(titled('sglang::detokenizer', {})); say('ready'); sleep()"
    async with tree(code, tmp_path, cgroup_parent=parent) as running:
        engine = running.process
        await eventually(lambda: any(m.title.startswith("sglang::") for m in engine.members()))
        escaped = next(m for m in engine.members() if m.title.startswith("sglang::"))
        assert escaped.how == "cgroup"
        assert procfs.environ_value(escaped.pid, "OPSCTL_NONCE") is None
        await engine.stop(grace=5)
        assert state(escaped.pid) == "gone"


async def test_a_child_with_overwritten_environment_is_found_by_its_session(
    tmp_path: Path,
) -> None:
    code = "child(titled('sglang::scheduler', {})); say('ready'); sleep()"
    async with tree(code, tmp_path, cgroup_parent=None) as running:
        engine = running.process
        await eventually(lambda: any(m.title.startswith("sglang::") for m in engine.members()))
        os.kill(engine.identity.pid, signal.SIGKILL)
        await engine.wait()
        assert [m.how for m in leftovers(engine.identity)] == ["session"]
        report = await kill_leftovers(engine.identity)
        assert len(report.killed) == 1
        assert leftovers(engine.identity) == ()


async def test_a_daemon_seen_while_it_had_a_parent_stays_a_member(tmp_path: Path) -> None:
    code = """
def daemon():
    os.setsid()
    os.execve("/bin/sleep", ["unrelated", "600"], {})
def middle():
    child(daemon)
    say("ready")
    time.sleep(600)
child(middle)
sleep()
"""
    async with tree(code, tmp_path, cgroup_parent=None) as running:
        engine = running.process
        await eventually(lambda: any(m.title.startswith("unrelated") for m in engine.members()))
        daemon = next(m for m in engine.members() if m.title.startswith("unrelated"))
        parent = procfs.stat(daemon.pid)
        assert parent is not None
        os.kill(parent.ppid, signal.SIGKILL)
        await eventually(lambda: state(parent.ppid) in ("Z", "gone"))
        assert daemon.pid in {m.pid for m in engine.members()}
        report = await engine.stop(grace=5)
        assert daemon.pid in {m.pid for m in report.killed}


async def test_zombies_are_reported_but_do_not_count_as_living(
    tmp_path: Path, fence: Cgroup | None
) -> None:
    async with tree(
        "child(lambda: None); say('ready'); sleep()", tmp_path, cgroup_parent=fence
    ) as r:
        await eventually(lambda: any(m.state == "Z" for m in r.process.members()))
        assert [m.pid for m in living(r.process.members())] == [r.process.identity.pid]


async def test_a_lost_child_is_named_once_it_had_its_title(
    tmp_path: Path, fence: Cgroup | None
) -> None:
    code = """
child(titled("sglang::scheduler_TP0"))
child(titled("sglang::detokenizer"))
untitled = child(sleep)
say("ready")
sleep()
"""
    async with tree(code, tmp_path, cgroup_parent=fence) as running:
        engine = running.process
        await eventually(
            lambda: len([m for m in engine.members() if m.title.startswith("sglang::")]) == 2
        )
        assert engine.missing_children() == ()
        by_title = {m.title: m.pid for m in engine.members()}
        untitled = next(
            p for t, p in by_title.items() if "sglang::" not in t and p != engine.identity.pid
        )
        os.kill(untitled, signal.SIGKILL)
        await eventually(lambda: state(untitled) == "Z")
        assert engine.missing_children() == ()
        os.kill(by_title["sglang::scheduler_TP0 600"], signal.SIGKILL)  # stays a zombie of main
        await eventually(lambda: engine.missing_children() == ("sglang::scheduler_TP0 600",))


async def test_a_slow_look_does_not_hold_up_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = 'child(titled("sglang::scheduler_TP0")); say("ready"); sleep()'

    def slow(identity: Identity, *, seen: Collection[tuple[int, int]]) -> tuple[Member, ...]:
        time.sleep(3)  # thousands of processes, or one whose memory the kernel holds locked
        return engine_tree.find(identity, seen=seen)

    async with tree(code, tmp_path, cgroup_parent=None) as running:
        engine = running.process
        await eventually(lambda: any(m.title.startswith("sglang::") for m in engine.members()))
        monkeypatch.setattr("opsctl.engine.process.find", slow)
        look = asyncio.ensure_future(engine.look())
        longest, last = 0.0, time.monotonic()
        while not look.done():
            await asyncio.sleep(0.01)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        assert longest < 2
        assert engine.last_members == await look
        scheduler = next(m for m in await look if m.title.startswith("sglang::"))
        begun = time.monotonic()
        assert engine.missing_children() == ()
        os.kill(scheduler.pid, signal.SIGKILL)
        await eventually(lambda: engine.missing_children() == (scheduler.title,))
        assert engine.last_members
        assert time.monotonic() - begun < 2.5, "no look at the whole host is needed for that"


async def test_the_exit_code_arrives_without_polling(tmp_path: Path) -> None:
    async with tree(
        "say('ready'); time.sleep(0.3); sys.exit(7)", tmp_path, cgroup_parent=None
    ) as r:
        assert await asyncio.wait_for(r.process.wait(), 10) == 7
        assert r.process.returncode_known
        assert await r.process.wait() == 7


async def test_an_adopted_engine_is_stopped_like_an_own_one(
    tmp_path: Path, fence: Cgroup | None
) -> None:
    async with tree(
        "child(sleep); say('ready'); sleep()", tmp_path, cgroup_parent=fence
    ) as running:
        identity = Identity.from_json(running.process.identity.to_json())
        adopted = EngineProcess.attach(identity)
        assert adopted is not None
        assert not adopted.exited
        report = await adopted.stop(grace=5)
        assert not report.escalated
        assert report.exit_code is None
        assert adopted.exited
        assert not adopted.returncode_known
        assert leftovers(identity) == ()
        assert EngineProcess.attach(identity) is None


async def test_a_process_that_took_over_the_number_is_not_attached(tmp_path: Path) -> None:
    async with tree("say('ready'); sleep()", tmp_path, cgroup_parent=None) as running:
        identity = running.process.identity
        assert EngineProcess.attach(replace(identity, start_time=identity.start_time - 1)) is None
        assert EngineProcess.attach(replace(identity, boot_id="another boot")) is None
        assert EngineProcess.attach(replace(identity, nonce="another launch")) is None
        assert leftovers(replace(identity, boot_id="another boot")) == ()
        report = await kill_leftovers(replace(identity, boot_id="another boot"))
        assert report.killed == ()
        assert not running.process.exited


async def test_leftovers_of_another_launch_in_a_reused_session_are_spared(tmp_path: Path) -> None:
    async with tree("child(sleep); say('ready'); sleep()", tmp_path, cgroup_parent=None) as running:
        identity = running.process.identity
        impostor = replace(identity, nonce="older", start_time=identity.start_time - 100)
        assert leftovers(impostor) == ()


async def test_two_engines_never_count_each_others_processes(tmp_path: Path) -> None:
    code = "child(sleep); escape(sleep); say('ready'); sleep()"
    async with (
        tree(code, tmp_path, cgroup_parent=None) as one,
        tree(code, tmp_path, cgroup_parent=None) as two,
    ):
        first, second = ({m.pid for m in t.process.members()} for t in (one, two))
        assert len(living(one.process.members())) == len(living(two.process.members())) == 3
        assert not first & second
        assert os.getpid() not in first | second
        await one.process.stop(grace=0.2, force=True)
        assert len(living(two.process.members())) == 3


async def test_an_engine_outlives_the_opsctl_that_started_it(tmp_path: Path) -> None:
    """The supervisor is killed; a new one finds the old tree by identity and clears it away."""
    code = f"""
import asyncio, os, sys
from pathlib import Path
from opsctl.engine.process import EngineProcess
from opsctl.profiles import launch
from opsctl.profiles.launch import Command
from opsctl.system.cgroup import writable_parent
two = "import os, time; os.fork(); print('up', flush=True); time.sleep(600)"
async def main():
    engine = await EngineProcess.spawn(
        Command((sys.executable, "-c", two), {{"PATH": os.environ["PATH"]}}),
        nonce="outlive-{os.getpid()}",
        log_path=Path({str(tmp_path / "log")!r}),
        cgroup_parent=writable_parent(),
    )
    print(engine.identity.to_json(), flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    supervisor = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    assert supervisor.stdout is not None
    line = await asyncio.wait_for(supervisor.stdout.readline(), 20)
    identity = Identity.from_json(line.decode())
    await eventually(lambda: (tmp_path / "log").read_text().count("up") == 2)
    supervisor.kill()
    await supervisor.wait()
    assert len(leftovers(identity)) == 2
    engine = EngineProcess.attach(identity)
    assert engine is not None
    os.kill(identity.pid, signal.SIGKILL)  # and now its main process dies too
    await engine.wait()
    assert EngineProcess.attach(identity) is None
    report = await kill_leftovers(identity)
    assert len(report.killed) == 1
    assert leftovers(identity) == ()
    assert with_nonce(identity.nonce) == []
    released = await verify(identity, ports=(), memory=UnknownMemory(), deadline=5)
    assert released.ok


async def test_a_member_of_the_group_that_cannot_be_made_falls_back_to_the_session(
    tmp_path: Path,
) -> None:
    nowhere = Cgroup(tmp_path / "not-a-cgroup")
    async with tree("say('ready'); sleep()", tmp_path, cgroup_parent=nowhere) as running:
        assert running.process.identity.cgroup is None
        assert [m.how for m in running.process.members()] == ["session"]
        await running.process.stop(grace=5)


async def test_a_group_that_cannot_be_joined_is_not_fatal(tmp_path: Path) -> None:
    class Refusing(Cgroup):
        def create(self, name: str) -> Cgroup:
            return Cgroup(self.path / "gone" / name)

    parent = Refusing(tmp_path)
    async with tree("say('ready'); sleep()", tmp_path, cgroup_parent=parent) as running:
        assert running.process.identity.cgroup is None
        assert "could not join cgroup" in running.log.read_text()
        report = await running.process.stop(grace=5)
        assert report.exit_code == -signal.SIGTERM


async def test_a_program_that_does_not_exist_is_a_precondition(
    tmp_path: Path, fence: Cgroup | None
) -> None:
    with pytest.raises(PreconditionError, match="no-such-python"):
        await EngineProcess.spawn(
            Command(("/no-such-python", "-m", "x"), {}),
            nonce="missing",
            log_path=tmp_path / "log",
            cgroup_parent=fence,
        )


async def test_a_log_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PreconditionError, match="log"):
        await EngineProcess.spawn(
            Command((sys.executable, "-c", "pass"), {}),
            nonce="link",
            log_path=tmp_path / "log",
            cgroup_parent=None,
        )


async def test_forking_cannot_outrun_the_kill(tmp_path: Path, fence: Cgroup | None) -> None:
    code = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
say("ready")
started = time.monotonic()
def hop():
    while time.monotonic() - started < 20:
        if os.fork():
            os._exit(0)
        time.sleep(0.01)
child(hop)
sleep()
"""
    async with tree(code, tmp_path, cgroup_parent=fence) as running:
        report = await running.process.stop(grace=0.1)
        assert report.survivors == ()
        assert with_nonce(running.process.identity.nonce) == []
        assert leftovers(running.process.identity) == ()


async def test_a_stopped_process_is_killed_too(tmp_path: Path, fence: Cgroup | None) -> None:
    async with tree("say('ready'); sleep()", tmp_path, cgroup_parent=fence) as running:
        os.kill(running.process.identity.pid, signal.SIGSTOP)
        await eventually(lambda: state(running.process.identity.pid) == "T")
        report = await running.process.stop(grace=0.2)
        assert report.exit_code == -signal.SIGKILL


async def test_a_compiler_on_a_cpu_counts_as_progress_and_a_waiting_one_does_not(
    tmp_path: Path,
) -> None:
    """`ptxas` here is Python under another name, first spinning, then asleep."""
    (tmp_path / "ptxas").symlink_to(sys.executable)
    code = f"""
spin = (
    "import time; end = time.monotonic() + 3\\n"
    "while time.monotonic() < end: pass\\n"
    "print('calm', flush=True); time.sleep(600)"
)
child(lambda: os.execv({sys.executable!r}, [{str(tmp_path / "ptxas")!r}, "-c", spin]))
say("ready")
sleep()
"""
    async with tree(code, tmp_path, cgroup_parent=None) as running:
        await eventually(lambda: engine_tree.compiling(running.process.members()))
        await running.said("calm")
        await eventually(lambda: not engine_tree.compiling(running.process.members()))
        await running.process.stop(grace=5)


async def test_a_crash_is_noticed_at_once(tmp_path: Path) -> None:
    async with tree("say('ready'); sleep()", tmp_path, cgroup_parent=None) as running:
        waiter = asyncio.create_task(running.process.wait())
        await asyncio.sleep(0)
        os.kill(running.process.identity.pid, signal.SIGKILL)
        assert await asyncio.wait_for(waiter, 5) == -signal.SIGKILL
        clear_away(running.process, None)


def test_exits_are_seen_under_uvloop_too(tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def scenario() -> int | None:
        async with tree("say('ready'); sys.exit(3)", tmp_path, cgroup_parent=None) as running:
            return await asyncio.wait_for(running.process.wait(), 10)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(scenario()) == 3


async def test_a_simulated_engine_is_started_loses_a_child_and_is_released(
    tmp_path: Path, fence: Cgroup | None
) -> None:
    """All pieces together, on a tree with SGLang's titles, log, HTTP and shared memory."""
    profile = LaunchProfile(
        engine="simulated", model="sim/model", flags={"sim-start-time": 0.5, "tp-size": 2}
    )
    port = preflight.free_port()
    await preflight.check(profile, port=port, log_dir=tmp_path)
    base = launch.command(profile, port=port, caller_environment={})
    environment = {
        **base.environment,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "OPSCTL_SIMULATED_GPU": str(tmp_path / "ledger"),
    }
    engine = await EngineProcess.spawn(
        replace(base, environment=environment),
        nonce=f"simulated-{os.getpid()}",
        log_path=tmp_path / "log",
        cgroup_parent=fence,
    )
    log, client = EngineLog(tmp_path / "log"), EngineClient(f"http://127.0.0.1:{port}")
    memory = SimulatedMemory(tmp_path / "ledger")
    try:
        async with asyncio.timeout(30):
            while await client.readiness() is not Readiness.READY:
                assert not engine.exited
                await asyncio.sleep(0.05)
        stages = [stage for line in log.read_new() if (stage := stage_of(line))]
        assert sorted(set(stages), key=STAGES.index) == [
            stage for stage in STAGES if stage in stages
        ]
        assert {"imports", "weights", "kv_cache", "warmup", "ready"} <= set(stages)
        assert (await client.generate_one(10)).tokens == 4
        loads = await client.loads()
        assert loads is not None
        assert loads.running == 0
        assert await memory.held(engine.identity)
        with pytest.raises(PreconditionError, match="another engine serves 'sim/model'"):
            await preflight.check(profile, port=port, log_dir=tmp_path)
        assert engine.missing_children() == ()
        lost = next(m for m in engine.members() if m.title == "sglang::scheduler_TP1")
        os.kill(lost.pid, signal.SIGKILL)
        await eventually(lambda: engine.missing_children() == ("sglang::scheduler_TP1",))
        report = await engine.stop(grace=20)
        assert report.survivors == ()
        release = await verify(
            engine.identity, ports=(port,), memory=memory, deadline=5, segments=report.segments
        )
        assert release.ok, release.why
        assert release.memory_held == 0
        assert await client.readiness() is Readiness.REFUSED
    finally:
        await client.close()
        clear_away(engine, fence)
