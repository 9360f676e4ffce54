from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from opsctl.config.schema import LaunchProfile
from opsctl.engine import preflight
from opsctl.errors import PreconditionError
from opsctl.system.ports import free_port


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text("{}")
    return path


def profile(model: Path | str, **changes: Any) -> LaunchProfile:
    return LaunchProfile(model=str(model), **({"python": sys.executable} | changes))


async def check(profile: LaunchProfile, tmp_path: Path, port: int | None = None) -> None:
    await preflight.check(profile, port=port or free_port(), log_dir=tmp_path)


async def test_a_host_that_is_ready_passes(tmp_path: Path, model: Path) -> None:
    await check(profile(model, draft_model=str(model)), tmp_path)


async def test_a_name_of_a_model_hub_is_left_to_the_engine(tmp_path: Path) -> None:
    await check(profile("org/model"), tmp_path)


async def test_the_simulated_engine_needs_no_files(tmp_path: Path) -> None:
    await check(LaunchProfile(engine="simulated", model="/simulated/model"), tmp_path)


@pytest.mark.parametrize("key", ["model", "draft_model"])
async def test_missing_model_files_are_named(tmp_path: Path, model: Path, key: str) -> None:
    paths: dict[str, Any] = {"model": str(model), "draft_model": str(model)}
    with pytest.raises(PreconditionError, match=f"{key}: .*nowhere is no directory"):
        await check(profile(**(paths | {key: str(tmp_path / "nowhere")})), tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(PreconditionError, match=f"{key}: .*empty has no config.json") as caught:
        await check(profile(**(paths | {key: str(tmp_path / "empty")})), tmp_path)
    assert caught.value.hint


async def test_a_missing_interpreter_is_named(tmp_path: Path, model: Path) -> None:
    with pytest.raises(PreconditionError, match="interpreter /nowhere/python"):
        await check(profile(model, python="/nowhere/python"), tmp_path)


async def test_a_log_directory_must_be_one(tmp_path: Path, model: Path) -> None:
    with pytest.raises(PreconditionError, match="not a directory"):
        await check(profile(model), model / "config.json")


async def test_a_file_system_that_hangs_is_said_and_holds_nobody_up(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr(preflight, "_LOOK_LIMIT", 0.3)
    monkeypatch.setattr(preflight, "_check_model", lambda *_: release.wait(30))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    counting = asyncio.ensure_future(count())
    try:
        for look in (
            preflight.check_files(profile(model), log_dir=tmp_path),
            preflight.check(profile(model), port=free_port(), log_dir=tmp_path),
        ):
            with pytest.raises(PreconditionError, match="could not be looked at within") as told:
                await look
            assert str(model) in told.value.message
        assert turns > 20, "the event loop went on"
    finally:
        counting.cancel()
        release.set()


async def test_a_full_disk_is_said(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: usage(1, 1, 5 << 20))
    with pytest.raises(PreconditionError, match="only 5 MiB"):
        await preflight.check_files(profile(model), log_dir=tmp_path)
    # After a crash, serving with a full disk is better than not serving.
    await preflight.check(profile(model), port=preflight.free_port(), log_dir=tmp_path)


async def test_whoever_holds_the_port_is_named(tmp_path: Path, model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(PreconditionError, match=f"port {port} .* pid {os.getpid()}"):
            await check(profile(model), tmp_path, port)


async def test_a_foreign_engine_is_named_by_its_model(tmp_path: Path, model: Path) -> None:
    async def info(request: web.Request) -> web.Response:
        return web.json_response({"model_path": "/models/theirs"})

    app = web.Application()
    app.router.add_get("/model_info", info)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        with pytest.raises(PreconditionError, match="another engine serves '/models/theirs'"):
            await check(profile(model), tmp_path, port)
    finally:
        await runner.cleanup()
