from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from opsctl.engine.release import SimulatedMemory, UnknownMemory, verify
from opsctl.engine.segments import remaining, remove_unused, used_by
from opsctl.engine.tree import Identity, Member
from opsctl.system import procfs
from tests.support.engine_trees import eventually, tree

GONE = Identity("gone", 2**22 + 1, 1, 2**22 + 1, None, procfs.boot_id())
"""An engine that has ended: no process can have this number."""


class Held:
    """A memory reader that answers from a list, the last answer for ever."""

    def __init__(self, *answers: int | None) -> None:
        self.answers = list(answers)

    async def held(self, identity: Identity) -> int | None:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


async def test_nothing_left_is_a_release_at_once() -> None:
    begun = time.monotonic()
    release = await verify(GONE, ports=(1,), memory=Held(0), deadline=30)
    assert release.ok
    assert (release.memory_held, release.why) == (0, "released")
    assert time.monotonic() - begun < 10


async def test_unknown_memory_does_not_block_but_is_said() -> None:
    release = await verify(GONE, ports=(), memory=UnknownMemory(), deadline=1)
    assert release.ok
    assert release.memory_held is None
    assert "unknown" in release.why


async def test_memory_is_waited_for() -> None:
    release = await verify(GONE, ports=(), memory=Held(7, 7, 0), deadline=5)
    assert release.ok


async def test_memory_that_stays_is_named_at_the_deadline() -> None:
    release = await verify(GONE, ports=(), memory=Held(4096), deadline=0.15)
    assert not release.ok
    assert release.memory_held == 4096
    assert "4.0 KiB of accelerator memory" in release.why


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
async def test_a_port_squatter_is_named(address: str) -> None:
    with socket.create_server((address, 0)) as server:
        port = server.getsockname()[1]
        release = await verify(GONE, ports=(port,), memory=Held(0), deadline=0.1)
        assert not release.ok
        assert release.ports_busy == (port,)
        assert f"port {port} is held by pid {os.getpid()}" in release.why
    assert (await verify(GONE, ports=(port,), memory=Held(0), deadline=1)).ok


async def test_connections_that_linger_do_not_make_a_port_busy() -> None:
    """After a server closed first, its port stays in TIME_WAIT for a minute."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()
        assert client.recv(1) == b""
        client.close()
    release = await verify(GONE, ports=(port,), memory=Held(0), deadline=0)
    assert release.ok, release.why


async def test_living_members_are_named(tmp_path: Path) -> None:
    async with tree("say('ready'); sleep()", tmp_path, cgroup_parent=None) as running:
        identity = running.process.identity
        release = await verify(identity, ports=(), memory=Held(0), deadline=0.1)
        assert not release.ok
        assert [member.pid for member in release.members] == [identity.pid]
        assert f"process {identity.pid} " in release.why
        await running.process.stop(grace=5)
        assert (await verify(identity, ports=(), memory=Held(0), deadline=1)).ok


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[bytes]]:
    """A process that sleeps until it is told to go."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def entry(process: subprocess.Popen[bytes], **changes: object) -> str:
    found = procfs.stat(process.pid)
    assert found is not None
    fields = {"nonce": "n", "pid": process.pid, "start_time": found.start_time, "bytes": 100}
    return json.dumps(fields | changes) + "\n"


N = Identity("n", 2**22 + 1, 1, 2**22 + 1, None, procfs.boot_id())


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_simulated_memory_is_held_while_its_process_lives(
    tmp_path: Path, owner: subprocess.Popen[bytes]
) -> None:
    ledger = tmp_path / "ledger"
    memory = SimulatedMemory(ledger)
    assert await memory.held(N) == 0
    ledger.write_text(entry(owner) + entry(owner, bytes=20) + entry(owner, nonce="other") + '{"no')
    assert await memory.held(N) == 120
    owner.kill()
    owner.wait()
    assert await memory.held(N) == 0


async def test_a_zombie_or_a_reused_number_holds_no_memory(
    tmp_path: Path, owner: subprocess.Popen[bytes]
) -> None:
    ledger = tmp_path / "ledger"
    memory = SimulatedMemory(ledger)
    ledger.write_text(entry(owner, start_time=1))
    assert await memory.held(N) == 0
    ledger.write_text(entry(owner))
    owner.kill()
    os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)  # dead, not reaped
    assert procfs.stat(owner.pid) is not None
    assert await memory.held(N) == 0


async def test_memory_lingers_from_the_moment_its_process_was_seen_dead(
    tmp_path: Path, owner: subprocess.Popen[bytes]
) -> None:
    clock = Clock()
    ledger = tmp_path / "ledger"
    memory = SimulatedMemory(ledger, clock=clock)
    ledger.write_text(entry(owner, linger_s=5))
    owner.kill()
    owner.wait()
    assert await memory.held(N) == 100
    clock.now += 4.9
    assert await memory.held(N) == 100
    clock.now += 0.2
    assert await memory.held(N) == 0


async def test_memory_that_is_never_freed_stays(
    tmp_path: Path, owner: subprocess.Popen[bytes]
) -> None:
    ledger = tmp_path / "ledger"
    ledger.write_text(entry(owner, linger_s=None))
    owner.kill()
    owner.wait()
    assert await SimulatedMemory(ledger).held(N) == 100


async def test_a_ledger_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    assert await SimulatedMemory(tmp_path).held(N) is None


@pytest.mark.parametrize("line", ["[]", "1", "null", '{"nonce": "n"}', '{"nonce":"n","pid":[]}'])
async def test_broken_ledger_lines_are_skipped(tmp_path: Path, line: str) -> None:
    ledger = tmp_path / "ledger"
    ledger.write_text(line + "\n")
    assert await SimulatedMemory(ledger).held(N) == 0


SEGMENT = """
import mmap, os
path = "/dev/shm/sglang_loads_{name}.shm"
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(fd, 4096)
memory = mmap.mmap(fd, 4096)
os.close(fd)
other = os.open("/dev/shm/weights_{name}.safetensors", os.O_RDWR | os.O_CREAT, 0o600)
say("ready")
sleep()
"""


@pytest.fixture
def names() -> Iterator[tuple[Path, Path]]:
    name = f"test-{os.getpid()}"
    paths = (
        Path(f"/dev/shm/sglang_loads_{name}.shm"),
        Path(f"/dev/shm/weights_{name}.safetensors"),
    )
    yield paths
    for path in paths:
        path.unlink(missing_ok=True)


async def test_segments_of_a_killed_engine_are_removed_and_other_files_kept(
    tmp_path: Path, names: tuple[Path, Path]
) -> None:
    segment, weights = names
    code = SEGMENT.format(name=f"test-{os.getpid()}")
    async with tree(code, tmp_path, cgroup_parent=None) as running:
        engine = running.process
        report = await engine.stop(grace=0, force=True)
        assert {path for path, _ in report.segments} == {str(segment)}
        assert segment.exists()
        release = await verify(
            engine.identity, ports=(), memory=Held(0), deadline=2, segments=report.segments
        )
        assert release.ok
        assert not segment.exists()
        assert weights.exists()


async def test_segments_are_remembered_when_an_engine_crashes(
    tmp_path: Path, names: tuple[Path, Path]
) -> None:
    code = SEGMENT.format(name=f"test-{os.getpid()}")
    async with tree(code, tmp_path, cgroup_parent=None) as running:
        running.process.members()  # what the supervisor does every second
        os.kill(running.process.identity.pid, signal.SIGKILL)
        await running.process.wait()
        report = await running.process.stop(grace=1)
        assert {path for path, _ in report.segments} == {str(names[0])}


async def test_a_segment_in_use_elsewhere_is_reported_not_removed(
    tmp_path: Path, names: tuple[Path, Path]
) -> None:
    segment, _ = names
    code = SEGMENT.format(name=f"test-{os.getpid()}")
    async with tree(code, tmp_path, cgroup_parent=None) as running:
        with segment.open("rb"):
            report = await running.process.stop(grace=0, force=True)
            release = await verify(
                running.process.identity,
                ports=(),
                memory=Held(0),
                deadline=0.1,
                segments=report.segments,
            )
            assert not release.ok
            assert release.shm_left == (str(segment),)
            assert str(segment) in release.why


async def test_segments_stay_while_a_member_lives(tmp_path: Path, names: tuple[Path, Path]) -> None:
    """Even one that has let go of them for the moment."""
    segment, _ = names
    code = SEGMENT.format(name=f"test-{os.getpid()}").replace(
        "sleep()", "signal.sigwait({signal.SIGUSR1}); memory.close(); say('closed'); sleep()"
    )
    code = "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})\n" + code
    async with tree(code, tmp_path, cgroup_parent=None) as running:
        identity = running.process.identity
        segments = used_by(running.process.members())
        os.kill(identity.pid, signal.SIGUSR1)
        await running.said("closed")
        await verify(identity, ports=(), memory=Held(0), deadline=0.1, segments=segments)
        assert segment.exists()


def test_a_new_file_under_an_old_name_is_not_touched(names: tuple[Path, Path]) -> None:
    segment, _ = names
    segment.write_bytes(b"x")
    old = (str(segment), segment.stat().st_ino + 1)
    assert remaining([old]) == frozenset()
    remove_unused([old])
    assert segment.exists()


def test_python_shared_memory_is_recognised() -> None:
    block = shared_memory.SharedMemory(create=True, size=4096)
    try:
        found = procfs.stat(os.getpid())
        assert found is not None
        me = Member(os.getpid(), found.start_time, "R", "me", "session")
        assert f"/dev/shm/{block.name}" in {path for path, _ in used_by([me])}
    finally:
        block.close()
        block.unlink()
    assert f"/dev/shm/{block.name}" not in {path for path, _ in used_by([me])}


async def test_the_guard_of_these_tests_sees_survivors(tmp_path: Path) -> None:
    async with tree("say('ready'); sleep()", tmp_path, cgroup_parent=None) as running:
        assert not running.process.exited
    await eventually(lambda: running.process.exited)
