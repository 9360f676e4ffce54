from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from opsctl.autospec.cost import Costs
from opsctl.autospec.guards import Situation
from opsctl.autospec.history import Decided, Record, Seen, SetUp, Switched
from opsctl.autospec.load import LoadSample
from opsctl.autospec.mechanism import Choice
from opsctl.autospec.plan import Marks, Plan
from opsctl.autospec.policy import Decision
from opsctl.config.auto_spec import AutoSpecConfig, Maintenance, SustainedLoad
from opsctl.serve import automation as module
from opsctl.serve.automation import Automation, Clocks, Judgement, Prepared
from opsctl.serve.load_journal import NoJournal

CONFIG = AutoSpecConfig(
    policy="sustained_load",
    speculative="eagle3",
    baseline="baseline",
    sustained_load=SustainedLoad(high=8, high_for=5.0, low=3, low_for=10.0),
    dwell=60.0,
)
PLAN = Plan(
    policy="sustained_load",
    speculative="eagle3",
    baseline="baseline",
    marks=Marks(high=8, high_for=5.0, low=3, low_for=10.0),
)
SERVING = Situation(serving=True, ready_at=0.0, switch_times=(), quarantine={}, paused=False)
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()  # a Monday


class Kept(NoJournal):
    """A load journal in memory."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.begins: list[SetUp] = []

    def note(self, record: Record) -> None:
        self.records.append(record)

    def begin_with(self, setup: SetUp) -> None:
        self.begins.append(setup)

    def of(self, kind: type[Any]) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]


class Watchdog:
    """An automation fed with constant load, and what it recorded."""

    def __init__(self, *, enabled: bool = True, plan: Plan = PLAN, **changes: Any) -> None:
        self.told: list[dict[str, Any]] = []
        self.journal = Kept()
        self.now = 0.0
        clocks = Clocks(
            lambda: self.now,
            lambda: NOON + self.now,
            lambda wall: datetime.fromtimestamp(wall, UTC).replace(tzinfo=None),
        )
        self.automation = Automation(
            CONFIG.model_copy(update=changes),
            enabled=enabled,
            record=self.record,
            journal=self.journal,
            clocks=clocks,
        )
        self.adopt(plan)

    def adopt(self, plan: Plan) -> None:
        self.automation.adopt(Prepared(plan, Choice("restart")))

    def record(self, event: str, **facts: Any) -> None:
        self.told.append({"event": event, **facts})

    def look(
        self, running: int | None, serving: str | None = "eagle3", **how: Any
    ) -> Judgement | None:
        queued = None if running is None else 0
        sample = LoadSample(self.now, running, queued)
        return self.automation.take(sample, serving, SERVING, **how)

    def run(self, running: int | None, seconds: int, serving: str = "eagle3") -> list[bool]:
        acts = []
        for _ in range(seconds):
            judgement = self.look(running, serving)
            acts.append(judgement is not None and judgement.acts)
            self.now += 1.0
        return acts


def test_it_acts_only_when_the_guards_allow_it() -> None:
    acts = Watchdog().run(40, 70)
    assert acts.index(True) == 60, "the load was held long before, the dwell was not over"


def test_it_tells_a_decision_once_and_again_when_it_changes() -> None:
    watchdog = Watchdog()
    watchdog.run(40, 70)
    told = [(e["action"], len(e["vetoes"])) for e in watchdog.told]
    assert told == [("stay", 0), ("switch", 1), ("switch", 0)]
    assert watchdog.told[1]["numbers"]["demand"] == 40
    assert watchdog.told[0]["change"] == "at or above 8 for 5 s: baseline"


def test_observe_decides_and_records_but_does_not_act() -> None:
    watchdog = Watchdog(observe=True)
    assert not any(watchdog.run(40, 70))
    assert any(e["action"] == "switch" for e in watchdog.told)


def test_it_is_silent_without_auto_spec() -> None:
    watchdog = Watchdog(enabled=False)
    watchdog.journal.records.clear()
    assert not any(watchdog.run(40, 70))
    assert watchdog.told == []
    assert watchdog.automation.last is None
    assert watchdog.journal.records == []


def test_an_unknown_load_never_switches() -> None:
    assert not any(Watchdog().run(None, 100))


def test_every_sample_is_kept_and_says_whether_a_decision_was_asked_for() -> None:
    watchdog = Watchdog()
    watchdog.look(3)
    watchdog.look(3, ask=False)
    watchdog.look(3, serving=None)
    seen = watchdog.journal.of(Seen)
    assert [(s.serving, s.asked) for s in seen] == [
        ("eagle3", True),
        ("eagle3", False),
        (None, False),
    ]
    assert seen[0].wall == NOON


def test_a_decision_that_is_news_is_kept_with_its_numbers() -> None:
    watchdog = Watchdog()
    watchdog.run(40, 70)
    kept = watchdog.journal.of(Decided)
    assert [(k.decision.action, len(k.vetoes)) for k in kept] == [
        ("stay", 0),
        ("switch", 1),
        ("switch", 0),
    ]
    assert kept[1].decision.numbers["demand"] == 40


def test_what_was_learnt_outlives_a_reload_that_changes_only_guards() -> None:
    watchdog = Watchdog()
    watchdog.run(40, 3)
    watchdog.automation.configure(CONFIG.model_copy(update={"dwell": 0.0}))
    watchdog.adopt(PLAN)
    acts = watchdog.run(40, 5)
    assert acts.index(True) == 2, "three of five seconds had passed before the reload"
    [start, again] = watchdog.journal.of(SetUp)
    assert (start.why, again.why) == ("start", "again")
    assert again.plan.guards.dwell == 0.0


def test_a_reload_with_other_marks_begins_anew() -> None:
    watchdog = Watchdog(dwell=0.0)
    watchdog.run(40, 3)
    marks = Marks(high=9, high_for=5.0, low=3, low_for=10.0)
    watchdog.adopt(PLAN.model_copy(update={"marks": marks}))
    assert watchdog.run(40, 7).index(True) == 5
    assert [setup.why for setup in watchdog.journal.of(SetUp)] == ["start", "changed"]


def test_a_switch_teaches_what_the_next_one_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    learnt: list[Costs] = []
    monkeypatch.setattr(module, "learn", lambda policy, costs: learnt.append(costs))
    watchdog = Watchdog()
    note = watchdog.automation.note
    names = {"source": "eagle3", "target": "baseline", "by": "policy"}
    note("switch_begun", {**names, "why": "busy"})
    note("switched", {**names, "drain_s": 3.0, "stop_s": 10.0, "start_s": 90.0, "prepare_s": 0.0})
    assert watchdog.automation.book.costs["restart"].to("baseline").closed == 100.0
    assert learnt == [watchdog.automation.book.costs["restart"]], "and the policy is told"
    plan = watchdog.automation.plan
    assert plan is not None
    assert plan.costs.costs().to("baseline").closed == 100.0
    assert [s.stage for s in watchdog.journal.of(Switched)] == ["begun", "done"]
    assert watchdog.journal.begins[-1].plan.costs == plan.costs


@pytest.mark.parametrize("event", ["switch_cancelled", "switch_called_off", "fell_back"])
def test_a_switch_in_vain_costs_nothing_and_is_kept(event: str) -> None:
    watchdog = Watchdog()
    names = {"source": "eagle3", "target": "baseline", "by": "policy"}
    watchdog.automation.note("switch_begun", names)
    watchdog.automation.note(event, {"target": "baseline"})
    watchdog.automation.note(event, {"target": "baseline"})
    assert [s.stage for s in watchdog.journal.of(Switched)] == ["begun", "ended"]
    assert watchdog.automation.book.costs.get("restart") is None


def test_what_an_operator_chose_outside_the_pair_is_left_alone() -> None:
    watchdog = Watchdog(dwell=0.0)
    assert not any(watchdog.run(40, 30, serving="third"))
    last = watchdog.automation.last
    assert last is not None
    assert "left alone" in last.decision.reason


def without_surface(**changes: Any) -> Watchdog:
    plan = PLAN.model_copy(
        update={"policy": "cost_aware", "blind": "profile eagle3 was never measured on this host"}
    )
    return Watchdog(plan=plan, policy="cost_aware", **changes)


def test_without_a_surface_it_stays_and_says_how_to_measure_one() -> None:
    watchdog = without_surface(dwell=0.0)
    assert not any(watchdog.run(40, 100))
    assert "never measured" in watchdog.automation.blind
    (told,) = watchdog.told
    assert told["action"] == "stay"
    assert "opsctl bench run --profile eagle3 --profile baseline" in told["change"]
    assert len(watchdog.journal.of(Seen)) == 100, "samples are recorded all the same"


class Broken:
    """A policy with a fault."""

    name = "broken"

    def see(self, sample: LoadSample, serving: str | None) -> None:
        raise ZeroDivisionError

    def decide(self, serving: str, now: float) -> Decision:
        raise AssertionError


def test_a_policy_with_a_fault_stays_and_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "build", lambda plan: Broken())
    watchdog = Watchdog(dwell=0.0)
    assert not any(watchdog.run(40, 10))
    faults = [entry for entry in watchdog.told if entry["event"] == "internal_error"]
    assert len(faults) == 1
    assert "ZeroDivisionError" in faults[0]["traceback"]
    assert "the policy has failed" in watchdog.automation.blind


def window(begin: str, end: str, switches: str, profile: str = "") -> dict[str, Any]:
    return {
        "maintenance": (
            Maintenance.model_validate(
                {"from": begin, "to": end, "switches": switches, "profile": profile}
            ),
        )
    }


def test_in_a_window_of_no_switches_it_waits_and_says_until_when() -> None:
    watchdog = Watchdog(dwell=0.0, **window("11:00", "12:01", "never"))
    acts = watchdog.run(40, 70)
    assert acts.index(True) == 60, "the window ends at 12:01"
    assert watchdog.told[1]["vetoes"] == ["maintenance daily 11:00-12:01: no automatic switches"]


def test_outside_the_only_windows_it_does_not_switch() -> None:
    watchdog = Watchdog(dwell=0.0, **window("12:01", "12:30", "only"))
    assert watchdog.run(40, 70).index(True) == 60


def test_the_veto_of_a_window_says_when_it_passes() -> None:
    watchdog = Watchdog(dwell=0.0, **window("11:00", "12:01", "never"))
    (veto,) = watchdog.automation.against("baseline", SERVING, 0.0)
    assert veto.until == 60.0


def test_a_forced_window_makes_its_profile_serve_whatever_the_load() -> None:
    watchdog = Watchdog(**window("12:00", "12:02", "forced", "baseline"))
    assert watchdog.run(0, 70).index(True) == 60, "the dwell holds all the same"
    assert watchdog.told[0]["reason"] == "maintenance daily 12:00-12:02: baseline is to serve"
    assert not any(watchdog.run(0, 30, serving="baseline"))
    against = watchdog.automation.against("eagle3", SERVING, watchdog.now)
    assert [veto.why for veto in against] == ["maintenance daily 12:00-12:02: baseline is to serve"]


def test_a_forced_window_hides_nothing_from_a_replay() -> None:
    watchdog = Watchdog(dwell=0.0, **window("12:00", "12:02", "forced", "baseline"))
    watchdog.look(1)
    (kept,) = watchdog.journal.of(Decided)
    assert (kept.decision.action, kept.decision.profile) == ("stay", "eagle3")


def test_a_forced_window_does_not_overrule_quarantine_pause_and_budget() -> None:
    watchdog = Watchdog(dwell=0.0, **window("12:00", "12:02", "forced", "baseline"))
    for situation in (
        Situation(True, 0.0, (), {"baseline": 9e9}, paused=False),
        Situation(True, 0.0, (), {}, paused=True),
        Situation(True, 0.0, (-1.0,) * 6, {}, paused=False),
    ):
        judgement = watchdog.automation.take(LoadSample(1.0, 0, 0), "eagle3", situation)
        assert judgement is not None
        assert judgement.decision.action == "switch"
        assert not judgement.acts
