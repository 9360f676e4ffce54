"""A start whose port somebody else takes after it was seen free."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from opsctl.config.schema import LaunchProfile
from opsctl.engine.release import UnknownMemory
from opsctl.engine.start import Launch, StartPath
from opsctl.engine.stop import stop
from opsctl.errors import StartError
from tests.support import other_server
from tests.support.server import free_port
from tests.support.simulated import MODEL, profile


@pytest.mark.parametrize(
    ("stage", "server"),
    [
        # Ready at once, long before the engine itself tries to listen.
        ("spawned", lambda port: other_server.engine_of(MODEL, port)),
        # Never ready: that the port is taken is only told by the engine's log.
        ("spawned", other_server.silent),
    ],
)
async def test_the_start_fails_with_the_name_of_who_holds_the_port(
    tmp_path: Path, stage: str, server: Callable[[int], AbstractContextManager[None]]
) -> None:
    port = free_port()
    launch = Launch(
        name="tiny",
        profile=LaunchProfile.model_validate(profile("baseline")),
        nonce=os.urandom(8).hex(),
        port=port,
        log_path=tmp_path / "engine.log",
        caller_environment=os.environ,
        memory=UnknownMemory(),
        extra_environment={"OPSCTL_SIMULATED_GPU": str(tmp_path / "gpu")},
    )
    with other_server.Taker(stage, server(port)) as taker:
        path = StartPath(launch, taker)
        with pytest.raises(StartError) as caught:
            await path.run()
        assert path.engine is not None
        stopped = await stop(path.engine, force=True)
    assert caught.value.kind == "port_in_use"
    assert f"port {port} is held by pid {os.getpid()}" in caught.value.message
    assert stopped.release.ok, stopped.release.why  # what a stranger holds is not to be released
