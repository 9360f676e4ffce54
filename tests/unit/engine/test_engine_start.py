"""The start path where it is hard to reach with real processes; the rest is in integration."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from opsctl.config.schema import LaunchProfile
from opsctl.engine import start
from opsctl.engine.release import UnknownMemory
from opsctl.engine.start import Launch, StartPath


def launch(tmp_path: Path) -> Launch:
    profile = LaunchProfile(engine="simulated", model="simulated/demo", served_name="demo")
    return Launch(
        name="eagle3",
        profile=profile,
        nonce="abc",
        port=0,
        log_path=tmp_path / "engine.log",
        caller_environment={},
        memory=UnknownMemory(),
    )


async def test_a_start_cancelled_while_it_spawns_still_knows_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the process would live on, unknown to everybody."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    process: Any = object()

    async def spawn(*_: object, **__: object) -> Any:
        begun.set()
        await go_on.wait()
        return process

    monkeypatch.setattr(start.EngineProcess, "spawn", spawn)
    path = StartPath(launch(tmp_path))
    task = asyncio.create_task(path.run())
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert path.engine is not None
    assert path.engine.process is process
    await path.engine.client.close()
