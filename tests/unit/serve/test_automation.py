from __future__ import annotations

from typing import Any

from opsctl.autospec.guards import Situation
from opsctl.autospec.load import LoadSample
from opsctl.config.auto_spec import AutoSpecConfig, SustainedLoad
from opsctl.serve.automation import Automation

CONFIG = AutoSpecConfig(
    speculative="eagle3",
    baseline="baseline",
    sustained_load=SustainedLoad(high=8, high_for=5.0, low=3, low_for=10.0),
    dwell=60.0,
)
SERVING = Situation(serving=True, ready_at=0.0, switch_times=(), quarantine={}, paused=False)


class Watchdog:
    """An automation fed with constant load, and what it recorded."""

    def __init__(self, *, enabled: bool = True, observe: bool = False) -> None:
        self.told: list[dict[str, Any]] = []
        config = CONFIG.model_copy(update={"observe": observe})
        self.automation = Automation(config, enabled=enabled, record=self.record)

    def record(self, event: str, **facts: Any) -> None:
        self.told.append({"event": event, **facts})

    def run(self, running: int, start: int, stop: int) -> list[bool]:
        acts = []
        for now in range(start, stop):
            self.automation.see(LoadSample(float(now), running, 0), "eagle3")
            judgement = self.automation.judge("eagle3", SERVING, float(now))
            acts.append(judgement is not None and judgement.acts)
        return acts


def test_it_acts_only_when_the_guards_allow_it() -> None:
    watchdog = Watchdog()
    acts = watchdog.run(40, 0, 70)
    assert acts.index(True) == 60, "the load was held long before, the dwell was not over"


def test_it_tells_a_decision_once_and_again_when_it_changes() -> None:
    watchdog = Watchdog()
    watchdog.run(40, 0, 70)
    told = [(e["action"], len(e["vetoes"])) for e in watchdog.told]
    assert told == [("stay", 0), ("switch", 1), ("switch", 0)]
    assert watchdog.told[1]["numbers"]["demand"] == 40


def test_observe_decides_and_records_but_does_not_act() -> None:
    watchdog = Watchdog(observe=True)
    assert not any(watchdog.run(40, 0, 70))
    assert any(e["action"] == "switch" for e in watchdog.told)


def test_it_is_silent_without_auto_spec() -> None:
    watchdog = Watchdog(enabled=False)
    assert not any(watchdog.run(40, 0, 70))
    assert watchdog.told == []
    assert watchdog.automation.last is None
