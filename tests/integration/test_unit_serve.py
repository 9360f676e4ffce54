"""Real instances of `opsctl serve` beside each other, and what a service manager hears of one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from opsctl.bench.traffic import stream_once
from tests.support.server import wait_until
from tests.support.service_manager import Manager
from tests.support.serving import Serving
from tests.support.simulated import job, serving

SLOW = {"sim-start-time": 10}
NEVER = {"sim_start_time": 25}


@contextmanager
def two(tmp_path: Path, **first: Any) -> Iterator[tuple[Serving, Serving]]:
    """Two instances that share a lock, as units of one host do."""
    lock = {"OPSCTL_LOCK_DIR": str(tmp_path)}
    one, other = serving(tmp_path / "one", **first), serving(tmp_path / "other")
    one.environment = other.environment = lock
    with one, other:
        one.wait_serving("eagle3")
        other.wait_serving("eagle3")
        yield one, other


def begun(instance: Serving) -> Callable[[], object]:
    return lambda: when(instance, "switch_begun")


def when(instance: Serving, event: str) -> str | None:
    """The moment of the last such event."""
    return next((e["time"] for e in reversed(instance.events()) if e["event"] == event), None)


def ask(instance: Serving, profile: str) -> None:
    done = instance.opsctl("switch", profile, "--no-wait")
    assert done.returncode == 0, done.stderr


def test_the_second_switch_waits_for_the_first_and_serves_meanwhile(tmp_path: Path) -> None:
    with two(tmp_path, baseline=SLOW) as (one, other):
        ask(one, "baseline")
        wait_until(begun(one), seconds=10, what="the first switch has begun")
        ask(other, "baseline")
        status = other.status()
        assert status is not None
        assert (status["state"], status["target"]) == ("serving", "baseline")
        assert "waits for the switch of another instance" in status["reason"]
        [waits] = [e for e in other.events() if e["event"] == "switch_waits"]
        assert waits["holder"] == one.process.pid
        assert answered(status)
        one.wait_serving("baseline")
        other.wait_serving("baseline")
        first, second = when(one, "switched"), when(other, "switch_begun")
        assert first is not None
        assert second is not None
        assert first <= second


def answered(status: dict[str, Any]) -> bool:
    """Whether one checked request gets its whole answer."""

    async def one_request() -> bool:
        async with aiohttp.ClientSession() as session:
            return (await stream_once(session, job(status, tokens=8))).ok

    return asyncio.run(one_request())


def test_a_switch_goes_on_when_the_one_before_it_dies(tmp_path: Path) -> None:
    with two(tmp_path, baseline=NEVER) as (one, other):
        ask(one, "baseline")
        wait_until(begun(one), seconds=10, what="the first switch has begun")
        ask(other, "baseline")
        assert when(other, "switch_begun") is None
        one.process.send_signal(signal.SIGKILL)
        other.wait_serving("baseline", seconds=20)


def test_a_switch_that_waits_can_be_called_off(tmp_path: Path) -> None:
    with two(tmp_path, baseline=NEVER) as (one, other):
        ask(one, "baseline")
        wait_until(begun(one), seconds=10, what="the first switch has begun")
        ask(other, "baseline")
        ask(other, "eagle3")
        status = other.status()
        assert status is not None
        assert (status["profile"], status["target"]) == ("eagle3", None)
        assert when(other, "switch_called_off") is not None


def test_an_engine_that_is_lost_comes_back_without_a_turn(tmp_path: Path) -> None:
    with two(tmp_path, baseline=NEVER) as (one, other):
        ask(one, "baseline")
        wait_until(begun(one), seconds=10, what="the first switch has begun")
        status = other.status()
        assert status is not None
        os.kill(status["engine"]["pid"], signal.SIGKILL)
        wait_until(lambda: when(other, "engine_lost"), seconds=10, what="the engine is missed")
        other.wait_serving("eagle3", seconds=15)
        assert when(one, "switched") is None, "the first switch was to go on for longer"


# --- the service manager -------------------------------------------------------------------------


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    with Manager(tmp_path / "notify") as made:
        yield made


@pytest.fixture
def instance(tmp_path: Path, manager: Manager) -> Serving:
    made = serving(tmp_path, eagle3={"sim_start_time": 4})
    made.environment = {
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
        "WATCHDOG_USEC": "60000000",
    }
    return made


def test_the_manager_hears_the_stages_of_the_load_then_ready(
    instance: Serving, manager: Manager
) -> None:
    with instance:
        instance.wait_serving()
        heard = manager.heard()
        ready = manager.index("READY")
        told = [message["STATUS"] for message in heard[:ready] if "STATUS" in message]
        assert any("stage weights" in line for line in told), told
        assert told[0] == "looking for an engine of an earlier opsctl"
        assert any("EXTEND_TIMEOUT_USEC" in message for message in heard[:ready])
        assert heard[ready]["STATUS"].startswith("serving: eagle3")


RELOAD = [{"RELOADING", "MONOTONIC_USEC"}, {"READY"}, {"READY", "STATUS"}]


def what_a_reload_tells(manager: Manager) -> list[set[str]]:
    def told() -> list[set[str]] | None:
        found = [set(m) for m in manager.heard() if m.keys() & {"RELOADING", "READY"}]
        return found if len(found) >= len(RELOAD) else None

    return wait_until(told, seconds=10, what="a reload is told") or []


def test_a_reload_is_told_begun_and_over_and_one_that_is_refused_too(
    instance: Serving, manager: Manager
) -> None:
    with instance:
        instance.wait_serving()
        manager.forget()
        assert instance.opsctl("reload").returncode == 0
        assert what_a_reload_tells(manager) == RELOAD
        manager.forget()
        config = Path(instance.arguments[1])
        config.write_text(config.read_text().replace("listen:", "lissen:"))
        assert instance.opsctl("reload", "--state-dir", str(instance.state_dir)).returncode == 78
        assert what_a_reload_tells(manager) == RELOAD


def test_a_reload_while_the_first_engine_loads_does_not_say_ready(
    instance: Serving, manager: Manager
) -> None:
    with instance:
        wait_until(instance.status, seconds=20, what="the control socket answers")
        assert instance.opsctl("reload").returncode == 0
        assert manager.index("READY") == manager.index("RELOADING") == -1
        assert "reloaded" in [event["event"] for event in instance.events()]
        instance.wait_serving()
        assert manager.index("READY") >= 0


def test_an_opsctl_that_is_stopped_dead_feeds_no_watchdog(
    instance: Serving, manager: Manager
) -> None:
    with instance:
        instance.wait_serving()
        wait_until(lambda: manager.index("WATCHDOG") >= 0, seconds=5, what="the watchdog is fed")
        instance.process.send_signal(signal.SIGSTOP)
        manager.forget()
        assert manager.quiet_for(1.0)
        instance.process.send_signal(signal.SIGCONT)
        wait_until(lambda: manager.index("WATCHDOG") >= 0, seconds=5, what="it is fed again")


def test_a_stop_says_so_at_once(instance: Serving, manager: Manager) -> None:
    with instance:
        instance.wait_serving()
        manager.forget()
        assert instance.opsctl("stop").returncode == 0
        heard = manager.heard()
        stopping = manager.index("STOPPING")
        assert stopping >= 0
        assert not any("READY" in message for message in heard[stopping:])
        assert instance.process.wait(20) == 0
