"""`opsctl serve` with a real SGLang: switches each way under load, nothing lost, nothing left."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

import psutil
import pytest
import yaml

from opsctl.bench.traffic import Job, Outcome, keep_busy
from opsctl.config.schema import LaunchProfile
from tests.support.server import free_port, shared_memory, wait_until
from tests.support.serving import Serving
from tests.support.sglang_cpu.environment import SglangEnvironment
from tests.support.sglang_cpu.profiles import SERVED_NAME, baseline, eagle3

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1200)]

# Marks that 4 streams do not reach, where switches are made by hand.
NEVER = {"high": 100, "high_for": "10s", "low": 50, "low_for": "3600s"}
STREAMS = 4
TOKENS = 48
TIMEOUTS = {
    "start": "240s",
    "stage": "120s",
    "probe": "60s",
    "drain": "120s",
    "stop": "60s",
    "release": "30s",
}


def as_yaml(profile: LaunchProfile) -> Mapping[str, object]:
    return {
        "engine": profile.engine,
        "python": profile.python,
        "model": profile.model,
        "served_name": profile.served_name,
        "flags": dict(profile.flags),
        "environment": dict(profile.environment),
        "timeouts": TIMEOUTS,
        **({"draft_model": profile.draft_model} if profile.draft_model else {}),
    }


@pytest.fixture
def configuration(sglang_environment: SglangEnvironment, tmp_path: Path) -> Path:
    return write_configuration(sglang_environment, tmp_path / "opsctl.yaml")


def write_configuration(
    sglang_environment: SglangEnvironment,
    path: Path,
    *,
    mechanism: str = "restart",
    marks: Mapping[str, object] = NEVER,
) -> Path:
    """Write a configuration with both profiles; `marks` are those of sustained_load."""
    document = {
        "profiles": {
            "baseline": as_yaml(baseline(sglang_environment)),
            "eagle3": as_yaml(eagle3(sglang_environment)),
        },
        "serve": {
            "listen": f"127.0.0.1:{free_port()}",
            "profile": "eagle3",
            "mechanism": mechanism,
            "gateway": {"hold": {"time": "600s"}},
        },
        "auto_spec": {
            "policy": "sustained_load",
            "mechanism": mechanism,
            "speculative": "eagle3",
            "baseline": "baseline",
            "sustained_load": dict(marks),
            "dwell": "5s",
            "switches_per_hour": 60,
        },
    }
    path.write_text(yaml.safe_dump(document))
    return path


def load_segments(serving: Serving) -> set[Path]:
    """Return the shared memory in which a running SGLang publishes its load.

    It never removes it itself.
    """
    segments = shared_memory(serving.leftovers())
    return {path for path in segments if path.match("/dev/shm/sglang_loads_*")}


@pytest.mark.parametrize(
    "mechanism", [pytest.param("restart", marks=pytest.mark.extended), "gated_restart"]
)
async def test_two_switches_under_load_lose_nothing_and_leave_nothing(
    sglang_environment: SglangEnvironment, tmp_path: Path, mechanism: str
) -> None:
    path = tmp_path / "opsctl.yaml"
    configuration = write_configuration(sglang_environment, path, mechanism=mechanism)
    arguments = ("--auto-spec", "--config", str(configuration))
    with Serving(arguments, tmp_path / "state") as serving:
        first = await asyncio.to_thread(serving.wait_serving, "eagle3")
        outcomes = await switch_there_and_back(serving, f"http://{first['listen']}")

        assert [outcome.why for outcome in outcomes if not outcome.ok] == []
        assert {outcome.tokens for outcome in outcomes} == {TOKENS}
        after = serving.status()
        assert after is not None
        assert after["switches"] == 2
        assert after["load"]["held"] == 0
        assert after["gateway"]["failed"] == after["gateway"]["cut"] == 0
        assert after["gateway"]["completed"] == len(outcomes)
        assert after["engine"]["pid"] != first["engine"]["pid"]

        if mechanism == "restart":
            assert unordered_stages(serving) == []
        else:
            switched = [e for e in serving.events() if e["event"] == "switched"]
            assert all(switch["prepare_s"] > switch["start_s"] for switch in switched)

        segments = load_segments(serving)
        assert segments
        stopped = serving.opsctl("stop")
        assert (stopped.returncode, stopped.stderr.splitlines()[-1]) == (0, "stopped")
        assert serving.process.wait(30) == 0
        assert serving.leftovers() == []
        assert [path for path in segments if path.exists()] == []


async def test_the_watchdog_leaves_speculation_under_load_and_comes_back(
    sglang_environment: SglangEnvironment, tmp_path: Path
) -> None:
    marks = {"high": 5, "high_for": "3s", "low": 2, "low_for": "3s"}
    path = write_configuration(sglang_environment, tmp_path / "opsctl.yaml", marks=marks)
    with Serving(("--auto-spec", "--config", str(path)), tmp_path / "state") as serving:
        first = await asyncio.to_thread(serving.wait_serving, "eagle3")
        job = Job(f"http://{first['listen']}", SERVED_NAME, max_tokens=TOKENS, check=whole)
        done: list[Outcome] = []
        for streams, profile in ((8, "baseline"), (1, "eagle3")):
            enough = asyncio.Event()
            traffic = asyncio.create_task(keep_busy(job, streams, enough, on_outcome=done.append))
            try:
                # Eight streams decode on two cores, and the drain waits for them.
                await asyncio.to_thread(serving.wait_serving, profile, 420)
            finally:
                enough.set()
                await traffic
        assert [outcome.why for outcome in done if not outcome.ok] == []
        there, back = (e for e in serving.events() if e["event"] == "switched")
        assert (there["by"], there["target"], back["target"]) == ("policy", "baseline", "eagle3")
        assert serving.opsctl("stop").returncode == 0
        assert serving.leftovers() == []


@pytest.mark.extended
async def test_adaptive_speculation_follows_the_load_inside_one_engine(
    sglang_environment: SglangEnvironment, tmp_path: Path
) -> None:
    """No restart: SGLang itself goes to zero draft steps under load, and the status tells."""
    steps = tmp_path / "steps.json"
    steps.write_text('{"1": {"candidate_steps": [1, 3]}, "3": {"candidate_steps": [0]}}')
    path = write_configuration(sglang_environment, tmp_path / "opsctl.yaml")
    document = yaml.safe_load(path.read_text())
    flags = document["profiles"]["eagle3"]["flags"]
    flags |= {"speculative-adaptive": True, "speculative-adaptive-config": str(steps)}
    path.write_text(yaml.safe_dump(document))

    with Serving(("--config", str(path)), tmp_path / "state") as serving:
        first = await asyncio.to_thread(serving.wait_serving, "eagle3")
        job = Job(f"http://{first['listen']}", SERVED_NAME, max_tokens=400)
        seen: list[int | None] = []
        for streams, wanted in ((1, 3), (6, 0), (1, 3)):
            enough = asyncio.Event()
            traffic = asyncio.create_task(keep_busy(job, streams, enough))
            try:
                await steps_reach(serving, wanted)
                seen.append(wanted)
            finally:
                enough.set()
                assert (await traffic).failed == []
        assert seen == [3, 0, 3]
        after = serving.status()
        assert after is not None
        assert after["engine"]["pid"] == first["engine"]["pid"]
        assert after["switches"] == 0
        assert serving.opsctl("stop").returncode == 0


async def steps_reach(serving: Serving, wanted: int) -> None:
    """Wait until the status tells of `wanted` draft steps."""

    def reached() -> bool:
        status = serving.status()
        return status is not None and status["load"]["speculative_steps"] == wanted

    await asyncio.to_thread(
        lambda: wait_until(reached, seconds=120, what=f"{wanted} draft steps", every=0.3)
    )


async def test_a_stop_in_the_middle_of_a_start_leaves_nothing(
    configuration: Path, tmp_path: Path
) -> None:
    """SGLang's main process dies at once, and its orphans turn on whoever adopts them.

    A child that fails then sends SIGQUIT to its parent, which is opsctl by that time; one that
    does not would stay for ever, with 700 MB.
    """
    arguments = ("--auto-spec", "--config", str(configuration))
    with Serving(arguments, tmp_path / "state") as serving:
        await asyncio.to_thread(
            lambda: wait_until(
                lambda: "sglang::detokenizer" in engine_titles(serving),
                seconds=150,
                what="the engine has its children",
            )
        )
        stopped = await asyncio.to_thread(serving.opsctl, "stop")
        assert stopped.returncode == 0, stopped.stderr
        assert serving.process.wait(60) == 0, serving.output.read_text()[-3000:]
        assert serving.leftovers() == []


def engine_titles(serving: Serving) -> set[str]:
    """Return the titles of the engine's processes, whose session is noted for the end."""
    titles = set()
    for process in psutil.Process(serving.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            serving.sessions.add(os.getsid(process.pid))
            titles.add(" ".join(process.cmdline()).strip())
    return titles


def unordered_stages(serving: Serving) -> list[list[str]]:
    """Return the stages of those starts that did not pass them one after the other.

    The log of all engines is one file: marks of the last engine must not count for the next.
    """
    starts: list[list[dict[str, str]]] = []
    for event in serving.events():
        if event["event"] == "starting":
            starts.append([])
        elif event["event"] == "engine_stage":
            starts[-1].append(event)
    assert len(starts) == 3
    return [[event["stage"] for event in start] for start in starts if not in_order(start)]


def in_order(start: list[dict[str, str]]) -> bool:
    # The last mark, "ready", may come after the port has answered, and is not waited for then.
    wanted = ["spawned", "imports", "distributed", "weights", "kv_cache", "warmup"]
    stages = [event["stage"] for event in start]
    times = [datetime.fromisoformat(event["time"]) for event in start]
    # Importing SGLang alone takes seconds.
    return stages[:6] == wanted and times[3] - times[0] > timedelta(seconds=2)


async def switch_there_and_back(serving: Serving, url: str) -> list[Outcome]:
    """Switch to the baseline and back while clients stream; return what became of each."""
    enough = asyncio.Event()
    done: list[Outcome] = []
    job = Job(url, SERVED_NAME, max_tokens=TOKENS, check=whole)
    traffic = asyncio.create_task(keep_busy(job, STREAMS, enough, on_outcome=done.append))
    try:
        assert await served_by(serving, done) == "eagle3"
        for profile in ("baseline", "eagle3"):
            switched = await asyncio.to_thread(serving.opsctl, "switch", profile)
            assert switched.returncode == 0, switched.stderr
            assert await served_by(serving, done) == profile
    finally:
        enough.set()
        await traffic
    return done


async def served_by(serving: Serving, done: list[Outcome]) -> str:
    """Return the profile that serves, once each stream has had an answer from it."""
    wanted = len(done) + 2 * STREAMS
    async with asyncio.timeout(120):
        while len(done) < wanted:
            await asyncio.sleep(0.1)
    status = await asyncio.to_thread(serving.status)
    assert status is not None
    assert status["state"] == "serving"
    return str(status["profile"])


def whole(text: str, tokens: int) -> str:
    """Complain about an answer that is not of the length asked for."""
    if tokens != TOKENS:
        return f"{tokens} tokens"
    return "" if len(text) >= tokens else f"{len(text)} characters for {tokens} tokens"
