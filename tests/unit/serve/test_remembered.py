from __future__ import annotations

import json
from pathlib import Path

import pytest

from opsctl.autospec.cost import Costs
from opsctl.serve import remembered
from opsctl.serve.failures import Failures
from opsctl.serve.state import Phase, State

STATE = State(
    phase=Phase.SERVING,
    profile="eagle3",
    last_good="eagle3",
    switches=4,
    switch_times=(10.0, 20.0),
    failures=Failures((15.0,), {"baseline": 2}, {"baseline": 900.0}),
)


COSTS = {"restart": Costs("restart").with_switch("eagle3", prepare=0.0, closed=93.5)}


def written(tmp_path: Path) -> Path:
    path = tmp_path / "state.json"
    snapshot = remembered.Snapshot(STATE, "boot-a", 42, True, costs=COSTS)  # type: ignore[arg-type]
    remembered.save(path, snapshot)
    return path


def test_what_switches_cost_is_remembered_whatever_the_boot(tmp_path: Path) -> None:
    past = remembered.read(written(tmp_path))
    assert past is not None
    assert past.switch_costs() == COSTS


def test_a_file_of_before_costs_were_kept_has_none(tmp_path: Path) -> None:
    path = written(tmp_path)
    document = json.loads(path.read_text())
    del document["costs"]
    path.write_text(json.dumps(document))
    past = remembered.read(path)
    assert past is not None
    assert past.switch_costs() == {}


def test_counters_survive_a_restart_of_opsctl(tmp_path: Path) -> None:
    past = remembered.read(written(tmp_path))
    assert past is not None
    assert past.paused
    state = past.restore("boot-a")
    assert (state.switches, state.switch_times) == (4, (10.0, 20.0))
    assert state.failures == STATE.failures
    assert state.phase is Phase.STOPPED


@pytest.mark.parametrize("boot", ["boot-a", "boot-b"])
@pytest.mark.parametrize(
    ("state", "drained"),
    [
        (State(drain_asked=True), True),
        (State(drain_asked=True, phase=Phase.FAILED, exit_code=69), True),
        (State(drain_asked=True, stopping_for_good=True), False),
        (State(), False),
    ],
)
def test_a_drain_outlasts_everything_but_a_stop(
    tmp_path: Path, boot: str, state: State, drained: bool
) -> None:
    path = tmp_path / "state.json"
    remembered.save(path, remembered.Snapshot(state, "boot-a", 42, False))
    past = remembered.read(path)
    assert past is not None
    assert past.restore(boot).drain_asked is drained


def test_a_slow_disk_does_not_hold_up_the_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seconds(descriptor: int) -> None:
        raise AssertionError("waits for the disk, in the event loop")

    monkeypatch.setattr("os.fsync", seconds)
    assert remembered.read(written(tmp_path)) is not None


def test_times_of_another_boot_mean_nothing(tmp_path: Path) -> None:
    past = remembered.read(written(tmp_path))
    assert past is not None
    state = past.restore("boot-b")
    assert state.switches == 4
    assert state.switch_times == ()
    assert state.failures == Failures()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"boot_id": 1}', '"\\ud800"', "\x00"])
def test_a_damaged_file_is_no_memory(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    assert remembered.read(path) is None


def test_a_file_of_a_newer_version_is_read_as_far_as_it_is_known(tmp_path: Path) -> None:
    path = written(tmp_path)
    document = json.loads(path.read_text()) | {"novelty": {"a": 1}}
    path.write_text(json.dumps(document))
    assert remembered.read(path) is not None
