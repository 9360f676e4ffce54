"""What the service manager hears, over a real notification socket."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from opsctl.serve.announce import EXTEND_BY, EXTEND_EVERY, Announcer
from opsctl.serve.notify import Notifier
from opsctl.serve.state import Phase, State


class Manager:
    """The other end of the socket; `heard` are the datagrams since the last look, in order."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.setblocking(False)
        self.environment = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "60000000"}

    def heard(self) -> list[dict[str, str]]:
        found = []
        while True:
            try:
                text = self.socket.recv(65536).decode()
            except BlockingIOError:
                return found
            found.append(dict(line.split("=", 1) for line in text.splitlines()))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path / "notify")
    yield made
    made.socket.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def announcer(manager: Manager, clock: Clock) -> Announcer:
    return Announcer(Notifier(manager.environment), clock)


STARTING = State(phase=Phase.STARTING, profile="eagle3", reason="the first start")
SERVING = replace(STARTING, phase=Phase.SERVING, reason="engine ready")


def test_ready_is_said_when_an_engine_serves_and_not_before(
    announcer: Announcer, manager: Manager
) -> None:
    for stage in ("", "spawned", "weights", "ready"):
        announcer.tell(STARTING, stage, "")
    assert not any("READY" in message for message in manager.heard())
    announcer.tell(SERVING, "ready", "")
    assert manager.heard() == [{"READY": "1", "STATUS": "serving: eagle3: engine ready"}]


def test_stages_of_a_load_are_told_each_once(announcer: Announcer, manager: Manager) -> None:
    for stage in ("", "spawned", "spawned", "weights", "weights", "kv_cache"):
        announcer.tell(STARTING, stage, "")
    assert [message["STATUS"] for message in manager.heard()] == [
        "starting: eagle3: the first start",
        "starting: eagle3: the first start; stage spawned",
        "starting: eagle3: the first start; stage weights",
        "starting: eagle3: the first start; stage kv_cache",
    ]


def test_a_load_of_fifteen_minutes_asks_for_time_all_along(
    announcer: Announcer, manager: Manager, clock: Clock
) -> None:
    asked = [clock.now]
    for _ in range(15 * 60 * 5):  # turns of the loop
        clock.now += 0.2
        announcer.turned(STARTING)
        for message in manager.heard():
            if "EXTEND_TIMEOUT_USEC" in message:
                assert int(message["EXTEND_TIMEOUT_USEC"]) == EXTEND_BY * 1e6
                asked.append(clock.now)
    gaps = [after - before for before, after in itertools.pairwise(asked)]
    assert asked[-1] > clock.now - 2 * EXTEND_EVERY
    assert max(gaps) < EXTEND_BY / 2
    assert len(asked) < 15 * 60 / EXTEND_EVERY + 3


def test_nothing_is_asked_for_while_serving_but_the_watchdog_is_fed(
    announcer: Announcer, manager: Manager, clock: Clock
) -> None:
    for _ in range(3):
        clock.now += EXTEND_EVERY
        announcer.turned(SERVING)
    assert manager.heard() == [{"WATCHDOG": "1"}] * 3


def test_draining_before_a_stop_says_that_it_stops_and_asks_for_time(
    announcer: Announcer, manager: Manager, clock: Clock
) -> None:
    announcer.tell(SERVING, "ready", "")
    manager.heard()
    draining = replace(SERVING, phase=Phase.DRAINING, stopping_for_good=True, reason="stop")
    announcer.tell(draining, "ready", "")
    announcer.turned(draining)
    heard = manager.heard()
    assert heard[0] == {"STOPPING": "1", "STATUS": "draining: eagle3: stop"}
    assert {"EXTEND_TIMEOUT_USEC": "60000000"} in heard


def test_a_switch_does_not_say_that_it_stops(announcer: Announcer, manager: Manager) -> None:
    announcer.tell(SERVING, "ready", "")
    announcer.tell(replace(SERVING, phase=Phase.STOPPING), "ready", "")
    assert not any("STOPPING" in message for message in manager.heard())


def test_ready_is_said_again_until_there_is_room_for_it(
    announcer: Announcer, manager: Manager
) -> None:
    for number in range(50):  # more than the queue of a socket holds
        announcer.tell(STARTING, f"stage {number}", "")
    announcer.tell(SERVING, "ready", "")
    assert not any("READY" in message for message in manager.heard())
    announcer.tell(SERVING, "ready", "")
    assert manager.heard()[0]["READY"] == "1"


def test_a_reload_names_its_moment_and_ends_ready(announcer: Announcer, manager: Manager) -> None:
    announcer.tell(SERVING, "ready", "")
    manager.heard()
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    with announcer.reloading():
        [begun] = manager.heard()
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    assert begun.keys() == {"RELOADING", "MONOTONIC_USEC"}
    assert before <= int(begun["MONOTONIC_USEC"]) <= after
    assert manager.heard() == [{"READY": "1"}]


def test_a_reload_that_is_refused_ends_too(announcer: Announcer, manager: Manager) -> None:
    announcer.tell(SERVING, "ready", "")
    manager.heard()
    with pytest.raises(ValueError, match="bad"), announcer.reloading():
        raise ValueError("bad")
    assert [set(message) for message in manager.heard()] == [
        {"RELOADING", "MONOTONIC_USEC"},
        {"READY"},
    ]


def test_a_reload_before_the_first_engine_serves_does_not_end_the_start(
    announcer: Announcer, manager: Manager
) -> None:
    announcer.tell(STARTING, "weights", "")
    manager.heard()
    with announcer.reloading():
        pass
    assert manager.heard() == []


async def test_time_is_asked_for_before_the_loop_turns(
    announcer: Announcer, manager: Manager
) -> None:
    import asyncio

    async with announcer.patience("looking for an engine"):
        for _ in range(3):
            await asyncio.sleep(0)
    heard = manager.heard()
    assert heard[0] == {"STATUS": "looking for an engine"}
    assert {"EXTEND_TIMEOUT_USEC": "60000000"} in heard


def test_what_a_switch_waits_for_is_said(announcer: Announcer, manager: Manager) -> None:
    announcer.tell(SERVING, "ready", "the switch to baseline waits")
    [message] = manager.heard()
    assert message["STATUS"].endswith("; the switch to baseline waits")


def test_a_reason_of_several_lines_stays_one_assignment(
    announcer: Announcer, manager: Manager
) -> None:
    announcer.tell(replace(STARTING, reason="died:\nMAINPID=1"), "", "")
    [message] = manager.heard()
    assert set(message) == {"STATUS"}
