from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opsctl.autospec.adaptive import Slot
from opsctl.serve.steps import LEAST, REPORTS, SILENT, Report, Steps, read, table

SLOTS = (Slot(1, (3,)), Slot(7, (0, 3)), Slot(9, (0,)))


class Engine:
    """An engine's gauges over time, at a reading every two seconds."""

    def __init__(self) -> None:
        self.steps = Steps(SLOTS, configured=3)
        self.now = 0.0
        self.throughput = 100.0

    def reports(self, running: int, steps: int | None, times: int = 1) -> None:
        """Readings after a decode report each."""
        for _ in range(times):
            self.now += 2
            self.throughput += 1
            self.steps.see(self.now, Report(running, steps, self.throughput))

    def stands_still(self, running: int, steps: int | None, times: int = 1) -> None:
        """Readings without a decode report in between."""
        for _ in range(times):
            self.now += 2
            self.steps.see(self.now, Report(running, steps, self.throughput))


def test_before_the_load_has_moved_nothing_is_known() -> None:
    engine = Engine()
    engine.reports(running=2, steps=3, times=50)
    assert engine.steps.verdict == "unknown"
    assert "no load has shown" in engine.steps.sentence()


def test_steps_that_move_with_the_load_follow_it() -> None:
    engine = Engine()
    engine.reports(running=2, steps=3)
    engine.reports(running=40, steps=3)
    engine.reports(running=40, steps=0)
    assert engine.steps.verdict == "following"
    assert "0 with 40 running" in engine.steps.sentence()
    engine.reports(running=2, steps=3, times=20)
    assert engine.steps.verdict == "following"


def test_steps_that_stay_where_the_file_says_zero_are_fixed() -> None:
    engine = Engine()
    engine.reports(running=40, steps=3, times=30)
    assert engine.steps.verdict == "static"
    assert "keeps to 3 draft steps" in engine.steps.sentence()
    assert "3 draft steps with 40 running" in engine.steps.evidence
    assert "where its file allows 0 only" in engine.steps.evidence


def test_a_few_reports_are_no_proof() -> None:
    engine = Engine()
    engine.reports(running=40, steps=3, times=REPORTS)  # the first spans the load from 0 to 40
    assert engine.steps.verdict == "unknown"
    engine.reports(running=40, steps=3)
    assert engine.steps.verdict == "static"


def test_many_reports_within_a_moment_are_no_proof() -> None:
    engine = Engine()
    for _ in range(50):
        engine.now -= 2 - LEAST / 60
        engine.reports(running=40, steps=3)
    assert engine.steps.verdict == "unknown"


def test_a_gauge_that_stands_still_proves_nothing() -> None:
    """A long prefill: the count of running requests moves, the last decode report is old."""
    engine = Engine()
    engine.reports(running=2, steps=3)
    engine.stands_still(running=40, steps=3, times=100)
    assert engine.steps.verdict == "unknown"


def test_the_zero_before_the_first_decode_report_is_not_taken_for_steps() -> None:
    engine = Engine()
    engine.throughput = 0.0
    engine.stands_still(running=40, steps=0, times=10)
    assert engine.steps.verdict == "unknown"


def test_an_engine_that_has_not_counted_its_requests_yet_is_not_accused() -> None:
    steps = Steps((Slot(1, (3,)), Slot(30, (0,))), configured=3)
    for report in range(1, 20):
        steps.see(2.0 * report, Report(1, 0, 100.0 + report), at_engine=40)
    assert (steps.verdict, steps.evidence) == ("following", "0 with 1 running")


def test_a_throughput_that_decays_in_a_long_prefill_is_no_report() -> None:
    engine = Engine()
    engine.reports(running=2, steps=3)
    engine.stands_still(running=40, steps=3)
    engine.steps.see(engine.now + 1, Report(40, 3, 0.0))
    engine.reports(running=40, steps=3, times=REPORTS - 1)
    assert engine.steps.verdict == "unknown"


def test_contradictions_with_an_obeyed_report_between_them_are_no_proof() -> None:
    engine = Engine()
    for _ in range(10):
        engine.reports(running=40, steps=3, times=REPORTS - 1)
        engine.reports(running=40, steps=0)
    assert engine.steps.verdict == "following"


def test_a_batch_that_is_padded_into_the_next_slot_contradicts_nothing() -> None:
    engine = Engine()
    engine.reports(running=6, steps=0, times=50)
    assert engine.steps.verdict == "following"


def test_a_short_burst_between_two_readings_contradicts_nothing() -> None:
    engine = Engine()
    for _ in range(20):
        engine.reports(running=40, steps=3)
        engine.reports(running=2, steps=3)
    assert engine.steps.verdict == "unknown"


def test_an_engine_that_follows_after_all_is_believed() -> None:
    engine = Engine()
    engine.reports(running=40, steps=3, times=30)
    engine.reports(running=40, steps=0, times=2)
    assert engine.steps.verdict == "following"


def test_an_engine_without_the_gauge_is_not_taken_to_adapt() -> None:
    engine = Engine()
    engine.reports(running=2, steps=None, times=100)
    assert engine.steps.verdict == "unknown", "nothing has to move at that load"
    engine.reports(running=40, steps=None, times=int(SILENT / 2) + 2)
    assert engine.steps.verdict == "static"
    assert "has not reported its draft steps" in engine.steps.evidence


def test_a_gauge_that_was_there_once_is_only_missed() -> None:
    engine = Engine()
    engine.reports(running=2, steps=3)
    engine.reports(running=40, steps=None, times=100)
    assert engine.steps.verdict == "unknown"


def test_the_engine_s_own_word_is_enough() -> None:
    engine = Engine()
    engine.steps.told("speculative_adaptive disabled: topk is 4")
    assert engine.steps.verdict == "static"
    assert "its log says: speculative_adaptive disabled" in engine.steps.sentence()


loads = st.lists(
    st.tuples(st.integers(0, 100), st.sampled_from((0, 3)), st.integers(0, 4)), max_size=60
)


@given(loads)
def test_an_engine_that_obeys_its_file_is_never_called_fixed(
    seen: list[tuple[int, int, int]],
) -> None:
    """Whatever the load, the choice within a slot, and the time since the last decode report."""
    engine = Engine()
    last = 0
    for running, wish, still in seen:
        if running:
            candidates = next(s.steps for s in reversed(SLOTS) if s.batch <= running)
            last = wish if wish in candidates else candidates[0]
            engine.reports(running, last)
        engine.stands_still(running, last, times=still)
        assert engine.steps.verdict != "static"


@given(st.integers(9, 500), st.integers(REPORTS + 1, 40))
def test_an_engine_that_never_moves_is_found_out_under_load(running: int, times: int) -> None:
    engine = Engine()
    engine.reports(running, 3, times)
    assert engine.steps.verdict == "static"


def test_the_gauges_are_read_from_an_exposition() -> None:
    text = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",priority=""} 12.0
sglang:num_running_reqs{model_name="m",priority="1"} 5.0
sglang:spec_num_steps{model_name="m"} 3.0
sglang:gen_throughput{model_name="m"} 512.25
sglang:spec_num_steps_of_another{model_name="m"} 9.0
"""
    assert read(text) == Report(running=12, steps=3, throughput=512.25)
    assert read("sglang:num_running_reqs NaN\nsglang:spec_num_steps x\n") == Report()


def test_the_slots_are_told_in_one_line() -> None:
    assert (
        table(SLOTS) == "1-6 running: 3 steps, 7-8 running: 0 or 3 steps, from 9 running: 0 steps"
    )
