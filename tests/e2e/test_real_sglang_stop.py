"""Ends of a real SGLang that leave orphans or zombies behind when nobody looks after them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from opsctl.engine.client import EngineClient, Readiness
from opsctl.engine.process import EngineProcess
from opsctl.engine.release import UnknownMemory, verify
from opsctl.engine.tree import living
from opsctl.profiles.launch import command
from tests.support.server import free_port, session_processes
from tests.support.sglang_cpu.environment import SglangEnvironment
from tests.support.sglang_cpu.profiles import baseline

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1200)]

CHILDREN = ("sglang::detokenizer", "sglang::scheduler")


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def sigquit() -> Iterator[None]:
    """A failing child of SGLang sends SIGQUIT to its parent: once adopted, to this process."""
    before = signal.signal(signal.SIGQUIT, lambda number, frame: None)
    yield
    signal.signal(signal.SIGQUIT, before)


@pytest.fixture
async def engine(
    sglang_environment: SglangEnvironment, port: int, tmp_path: Path, sigquit: None
) -> AsyncIterator[EngineProcess]:
    profile = baseline(sglang_environment)
    started = await EngineProcess.spawn(
        command(profile, port=port, caller_environment=os.environ),
        nonce=os.urandom(8).hex(),
        log_path=tmp_path / "engine.log",
        cgroup_parent=None,  # the hardest case: no fence but session, nonce and descent
    )
    yield started
    await started.stop(grace=0, force=True)


async def eventually(condition: Callable[[], bool], what: str, seconds: float = 150) -> None:
    try:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"not within {seconds:.0f} s: {what}")


def titles(engine: EngineProcess) -> set[str]:
    return {member.title.strip() for member in living(engine.members())}


async def test_a_stop_in_the_middle_of_a_start_leaves_no_orphan(
    engine: EngineProcess, port: int
) -> None:
    """SGLang dies at once, and its detokenizer (700 MB) stays below init for ever."""
    await eventually(lambda: "sglang::detokenizer" in titles(engine), "the detokenizer is there")
    report = await engine.stop(grace=30)
    assert report.exit_code == -signal.SIGTERM
    assert not report.escalated
    assert report.survivors == ()
    assert session_processes(engine.identity.session) == []
    release = await verify(
        engine.identity,
        ports=(port,),
        memory=UnknownMemory(),
        deadline=10,
        segments=report.segments,
    )
    assert release.ok, release.why


async def test_the_loss_of_one_child_is_seen_before_sglang_gives_up(
    engine: EngineProcess, port: int
) -> None:
    client = EngineClient(f"http://127.0.0.1:{port}")
    try:
        async with asyncio.timeout(150):
            while await client.readiness() is not Readiness.READY:
                await asyncio.sleep(0.2)
    finally:
        await client.close()
    assert set(CHILDREN) <= titles(engine)
    assert engine.missing_children() == ()

    (scheduler,) = (m for m in engine.members() if m.title.strip() == "sglang::scheduler")
    os.kill(scheduler.pid, signal.SIGKILL)
    await eventually(
        lambda: [title.strip() for title in engine.missing_children()] == ["sglang::scheduler"],
        "the loss is seen",
        seconds=2,
    )
    assert not engine.exited
    report = await engine.stop(grace=0, force=True)
    assert report.survivors == ()
    assert session_processes(engine.identity.session) == []
