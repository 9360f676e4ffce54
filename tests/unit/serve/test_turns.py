"""One switch at a time on a host: who goes, who waits, and what becomes of those who wait."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opsctl.serve.inputs import DrainAsked, Event, StopAsked, SwitchAsked, Tick
from opsctl.serve.state import Phase, State, Switching
from opsctl.serve.turns import VARIABLE, Turns
from opsctl.system.host_lock import HostLock

SERVING = State(phase=Phase.SERVING, profile="a")
SWITCHING = replace(SERVING, phase=Phase.DRAINING, switching=Switching("a", "b", "operator", 0.0))
ASKED = SwitchAsked("b", "operator", "why")


class Host:
    """Two instances that share a folder, each with its journal."""

    def __init__(self, folder: Path) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        environment = {VARIABLE: str(folder)}
        self.one = Turns(environment, self.record)
        self.other = Turns(environment, self.record)

    def record(self, event: str, **facts: Any) -> None:
        self.events.append((event, facts))

    def names(self) -> list[str]:
        return [name for name, _ in self.events]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_the_first_goes_and_the_second_waits_until_the_first_is_done(host: Host) -> None:
    assert host.one.admit(ASKED, SERVING) is ASKED
    assert host.other.admit(ASKED, SERVING) is None
    assert "waits for the switch of another instance" in host.other.reason
    host.one.settle(SWITCHING)
    assert host.other.admit(Tick(), SERVING) == Tick()
    host.one.settle(SERVING)
    assert host.other.admit(Tick(), SERVING) == ASKED
    assert host.other.reason == ""
    assert host.names() == ["switch_waits"]


def test_waiting_stops_nothing_else(host: Host) -> None:
    host.one.admit(ASKED, SERVING)
    host.other.admit(ASKED, SERVING)
    lost: Event = StopAsked("SIGTERM")
    assert host.other.admit(lost, SERVING) is lost


@pytest.mark.parametrize("ending", [StopAsked("SIGTERM"), DrainAsked()])
def test_who_stops_or_drains_does_not_switch_later(host: Host, ending: Event) -> None:
    host.one.admit(ASKED, SERVING)
    host.other.admit(ASKED, SERVING)
    host.other.admit(ending, SERVING)
    host.one.settle(SERVING)
    assert host.other.admit(Tick(), SERVING) == Tick()
    assert host.names() == ["switch_waits", "switch_called_off"]


def test_a_turn_is_kept_until_an_engine_serves_again(host: Host) -> None:
    host.one.admit(ASKED, SERVING)
    # The switch has failed, and the engine that served before is started again.
    host.one.settle(replace(SERVING, phase=Phase.STARTING))
    assert host.other.admit(ASKED, SERVING) is None
    host.one.settle(SERVING)
    assert host.other.admit(Tick(), SERVING) == ASKED


@pytest.mark.parametrize("phase", [Phase.BACKOFF, Phase.FAILED, Phase.STOPPED, Phase.DRAINED])
def test_a_turn_is_given_back_when_there_is_nothing_more_to_do(host: Host, phase: Phase) -> None:
    host.one.admit(ASKED, SERVING)
    host.one.settle(replace(SERVING, phase=phase))
    assert host.other.admit(ASKED, SERVING) is ASKED


def test_an_instance_without_an_engine_does_not_wait(host: Host) -> None:
    host.one.admit(ASKED, SERVING)
    backoff = replace(SERVING, phase=Phase.BACKOFF)
    assert host.other.admit(ASKED, backoff) is ASKED


def test_another_target_of_a_switch_under_way_needs_no_second_turn(host: Host) -> None:
    host.one.admit(ASKED, SERVING)
    host.one.settle(SWITCHING)
    more = SwitchAsked("c", "operator", "why")
    assert host.one.admit(more, SWITCHING) is more


def test_what_is_refused_anyway_is_refused_at_once(host: Host) -> None:
    host.one.admit(ASKED, SERVING)
    same = SwitchAsked("a", "operator", "why")
    assert host.other.admit(same, SERVING) is same


def test_a_fallback_to_the_wanted_profile_ends_the_waiting(host: Host) -> None:
    host.one.admit(ASKED, SERVING)
    host.other.admit(ASKED, SERVING)
    assert host.other.admit(Tick(), replace(SERVING, profile="b")) == Tick()
    assert host.other.waiting is None
    assert host.events[-1] == ("switch_called_off", {"target": "b", "by": "fallback"})


def test_one_that_stops_its_engine_meanwhile_still_gets_its_turn(host: Host) -> None:
    host.one.admit(ASKED, SERVING)
    host.other.admit(ASKED, SERVING)
    host.one.settle(SERVING)
    assert host.other.admit(Tick(), replace(SERVING, phase=Phase.STOPPING)) == Tick()
    assert host.other.admit(Tick(), SERVING) == ASKED


def test_without_a_folder_nobody_waits() -> None:
    alone = Turns({}, lambda event, **facts: pytest.fail(event))
    assert alone.admit(ASKED, SERVING) is ASKED


def test_a_lock_that_cannot_be_opened_keeps_nobody_from_switching_and_is_told_once(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path / "nowhere")
    assert host.one.admit(ASKED, SERVING) is ASKED
    assert host.one.admit(ASKED, SERVING) is ASKED
    assert host.names() == ["host_lock_unavailable"]


def test_who_holds_the_lock_is_told(tmp_path: Path) -> None:
    import os

    one, other = HostLock(tmp_path / "lock"), HostLock(tmp_path / "lock")
    assert one.take()
    assert not other.take()
    assert other.holder() == os.getpid()
    one.give_back()
    assert other.holder() is None
    assert other.take()


def test_a_lock_behind_a_link_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="lock"):
        HostLock(tmp_path / "lock").take()
    assert not (tmp_path / "target").exists()
