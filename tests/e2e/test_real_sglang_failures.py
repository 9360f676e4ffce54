"""A real SGLang 0.5.23 that does not start, or dies: opsctl says why, and nothing stays behind."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from opsctl.config.schema import LaunchProfile, Timeouts
from opsctl.engine.release import UnknownMemory
from opsctl.engine.start import Launch, StartPath
from opsctl.engine.stop import stop
from opsctl.errors import PreconditionError, StartError
from tests.support import other_server
from tests.support.server import free_port, session_processes
from tests.support.serving import Serving
from tests.support.sglang_cpu.environment import SglangEnvironment
from tests.support.sglang_cpu.profiles import SERVED_NAME, baseline, write_configuration
from tests.support.sglang_cpu.requests import complete, engine_process, wait_running

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1200)]

# Tokens; seconds of work, so that the engine dies in the middle of it.
LONG = 300
LIMITS = Timeouts(start=120, stage=60, probe=30, stop=30, release=10)


@pytest.fixture
def profile(sglang_environment: SglangEnvironment) -> LaunchProfile:
    return baseline(sglang_environment).model_copy(update={"timeouts": LIMITS})


@pytest.fixture(autouse=True)
def sigquit() -> Iterator[None]:
    """A failing child of SGLang sends SIGQUIT to its parent: once adopted, to this process."""
    before = signal.signal(signal.SIGQUIT, lambda number, frame: None)
    yield
    signal.signal(signal.SIGQUIT, before)


def with_flags(profile: LaunchProfile, **flags: object) -> LaunchProfile:
    named = {name.replace("_", "-"): value for name, value in flags.items()}
    return profile.model_copy(update={"flags": {**profile.flags, **named}})


def with_model(profile: LaunchProfile, model: Path) -> LaunchProfile:
    return profile.model_copy(update={"model": str(model)})


async def failed_start(
    profile: LaunchProfile,
    folder: Path,
    *,
    port: int = 0,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> StartError:
    """Start, which must fail; end what is left as `opsctl serve` does; nothing may stay."""
    launch = Launch(
        name="tiny",
        profile=profile,
        nonce=os.urandom(8).hex(),
        port=port,
        log_path=folder / "engine.log",
        caller_environment=os.environ,
        memory=UnknownMemory(),
    )
    path = StartPath(launch, on_stage)
    try:
        with pytest.raises(StartError) as caught:
            await path.run()
    finally:
        assert path.engine is not None
        stopped = await stop(path.engine, force=True)
    assert stopped.report.survivors == ()
    assert stopped.release.ok, stopped.release.why
    assert session_processes(path.engine.process.identity.session) == []
    return caught.value


@pytest.mark.parametrize(
    ("flags", "telling"),
    [
        ({"no_such_flag": 1}, "error: unrecognized arguments: --no-such-flag 1"),
        ({"attention_backend": "nope"}, "error: argument --attention-backend: invalid choice"),
    ],
)
async def test_a_flag_sglang_refuses_is_told_in_its_own_words(
    profile: LaunchProfile, tmp_path: Path, flags: Mapping[str, object], telling: str
) -> None:
    error = await failed_start(with_flags(profile, **flags), tmp_path)
    assert (error.kind, error.stage) == ("bad_flags", "spawned")
    assert telling in error.message
    assert "exit code 2" in error.message
    assert "flags" in (error.hint or "")


async def test_a_model_directory_that_is_not_there_is_found_before_anything_is_started(
    profile: LaunchProfile, tmp_path: Path
) -> None:
    missing = with_model(profile, tmp_path / "nowhere")
    launch = Launch("tiny", missing, "n", 0, tmp_path / "engine.log", os.environ, UnknownMemory())
    path = StartPath(launch)
    with pytest.raises(PreconditionError, match="nowhere is no directory"):
        await path.run()
    assert path.engine is None


async def test_a_model_of_no_known_type_is_a_bad_model(
    profile: LaunchProfile, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    error = await failed_start(with_model(profile, model), tmp_path)
    assert error.kind == "bad_model"
    assert str(model) in error.message


async def test_a_model_without_weights_is_a_bad_model_although_only_the_scheduler_knows(
    profile: LaunchProfile, tmp_path: Path
) -> None:
    """The main process kills itself (-9); the cause is above what it says about that."""
    model = tmp_path / "model"
    shutil.copytree(profile.model, model, ignore=shutil.ignore_patterns("*.safetensors"))
    error = await failed_start(with_model(profile, model), tmp_path)
    log = (tmp_path / "engine.log").read_text()
    assert error.kind == "bad_model"
    assert "Cannot find any model weights" in error.message
    assert log.rindex("Cannot find any model weights") < log.index("Received sigquit from a child")


async def test_too_little_memory_for_the_cache_is_told_as_such(
    profile: LaunchProfile, tmp_path: Path
) -> None:
    flags = {**profile.flags, "mem-fraction-static": 0.00001}
    del flags["max-total-tokens"]
    error = await failed_start(profile.model_copy(update={"flags": flags}), tmp_path)
    assert error.kind == "out_of_memory"
    assert "--mem-fraction-static" in f"{error.message} {error.hint}"


@pytest.mark.extended
async def test_more_ranks_than_the_host_has_room_for_are_told_in_sglangs_own_words(
    profile: LaunchProfile, tmp_path: Path
) -> None:
    """No class of its own: the line that explains it is found above those of the aftermath."""
    flags = {**profile.flags, "tp-size": 8}
    error = await failed_start(profile.model_copy(update={"flags": flags}), tmp_path)
    assert error.kind == "exited"
    assert "the total number of ranks (dp_size * tp_size * pp_size = 8)" in error.message


async def test_a_port_that_another_engine_holds_is_found_before_anything_is_started(
    profile: LaunchProfile, tmp_path: Path
) -> None:
    port = free_port()
    launch = Launch(
        "tiny", profile, "n", port, tmp_path / "engine.log", os.environ, UnknownMemory()
    )
    path = StartPath(launch)
    with (
        other_server.engine_of("somebody/else", port),
        pytest.raises(PreconditionError, match="another engine serves 'somebody/else' there") as e,
    ):
        await path.run()
    assert f"pid {os.getpid()}" in e.value.message
    assert path.engine is None


async def test_a_server_that_took_the_port_meanwhile_is_not_taken_for_the_engine(
    profile: LaunchProfile, tmp_path: Path
) -> None:
    """It says that it is ready, lists the model and generates: all that a start asks for."""
    port = free_port()
    with other_server.Taker("kv_cache", other_server.engine_of(SERVED_NAME, port)) as taker:
        error = await failed_start(profile, tmp_path, port=port, on_stage=taker)
    assert error.kind == "port_in_use"
    assert f"pid {os.getpid()}" in error.message


async def test_a_port_that_never_answers_ends_the_start_although_sglang_hangs(
    profile: LaunchProfile, tmp_path: Path
) -> None:
    """SGLang asks it for minutes whether it is up, and does not hear SIGTERM meanwhile."""
    port = free_port()
    begun = time.monotonic()
    with other_server.Taker("spawned", other_server.silent(port)) as taker:
        error = await failed_start(profile, tmp_path, port=port, on_stage=taker)
    assert error.kind == "port_in_use"
    assert f"pid {os.getpid()}" in error.message
    assert time.monotonic() - begun < LIMITS.stage
    log = (tmp_path / "engine.log").read_text()
    assert "error while attempting to bind on address" in log


def test_serving_comes_back_when_the_scheduler_dies_and_when_the_main_process_does(
    profile: LaunchProfile, tmp_path: Path
) -> None:
    """A request that was in the engine, and had no answer yet, gets it from the next one."""
    path = write_configuration(tmp_path / "opsctl.yaml", {"tiny": profile})
    with (
        Serving(("--config", str(path)), tmp_path / "state") as serving,
        ThreadPoolExecutor() as pool,
    ):
        url = f"http://{serving.wait_serving()['listen']}"
        for title in ("sglang::scheduler", ""):
            before = serving.wait_serving()["engine"]
            pid = before["pid"]
            victim = engine_process(pid, title) if title else psutil.Process(pid)
            answer = pool.submit(complete, url, LONG)
            wait_running(before["port"])
            victim.kill()
            assert answer.result(120) == (200, LONG)
            after = serving.wait_serving()
            assert after["engine"]["pid"] != pid
            assert not psutil.pid_exists(pid)
            assert session_processes(pid) == []
        events = serving.events()
        lost = [event["kind"] for event in events if event["event"] == "engine_lost"]
        assert lost[0] == "child_lost"  # told 5 s before SGLang's own watchdog ends it
        assert lost[1] in ("child_lost", "exited")
        assert len(lost) == 2
        assert len([event for event in events if event["event"] == "request_retried"]) == 2
        assert serving.opsctl("stop").returncode == 0
        assert serving.process.wait(30) == 0
        assert serving.leftovers() == []
