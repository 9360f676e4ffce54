from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opsctl.autospec.load import LoadSample
from opsctl.autospec.policy import Decision
from opsctl.autospec.sustained_load import MAX_GAP, SustainedLoad


def history(*stretches: tuple[int | None, int], step: float = 1.0) -> list[LoadSample]:
    """Samples a second apart; each stretch is (running, seconds)."""
    samples = []
    time = 0.0
    for running, seconds in stretches:
        for _ in range(seconds):
            time += step
            queued = None if running is None else 0
            samples.append(LoadSample(time, running, queued))
    return samples


def decision(samples: list[LoadSample], serving: str, now: float) -> Decision:
    policy = SustainedLoad("eagle3", "baseline", high=8, high_for=30.0, low=3, low_for=60.0)
    for sample in samples:
        policy.see(sample, serving)
    return policy.decide(serving, now)


def decide(samples: list[LoadSample], serving: str) -> str:
    return decision(samples, serving, samples[-1].time).action


def test_a_spike_of_20_s_switches_nothing() -> None:
    assert decide(history((1, 100), (40, 20)), "eagle3") == "stay"
    assert decide(history((1, 100), (40, 20), (1, 40)), "eagle3") == "stay"


def test_a_plateau_switches_to_the_baseline() -> None:
    made = decision(history((1, 100), (40, 31)), "eagle3", 131.0)
    assert (made.action, made.profile) == ("switch", "baseline")
    assert made.numbers == {"demand": 40, "mark": 8, "held_s": 30.0, "needed_s": 30.0}
    assert "40 requests running or queued, at or above 8 for 30 s" in made.reason


def test_quiet_for_long_enough_switches_back() -> None:
    assert decide(history((40, 10), (2, 60)), "baseline") == "stay"
    assert decide(history((40, 10), (2, 61)), "baseline") == "switch"


def test_between_the_marks_nothing_moves() -> None:
    assert decide(history((5, 300)), "eagle3") == "stay"
    assert decide(history((5, 300)), "baseline") == "stay"


def test_unknown_load_is_not_idle() -> None:
    assert decide(history((2, 100), (None, 1)), "baseline") == "stay"
    assert decide(history((2, 50), (None, 1), (2, 30)), "baseline") == "stay"


def test_a_hole_in_the_samples_breaks_the_holding_time() -> None:
    samples = [LoadSample(0.0, 2, 0), LoadSample(100.0, 2, 0)]
    assert decide(samples, "baseline") == "stay"


def test_a_stall_counts_as_load() -> None:
    """Nothing running but a long queue is a stall, not quiet (sglang#4244, #24140)."""
    samples = [LoadSample(float(t), 0, 200) for t in range(100)]
    assert decide(samples, "baseline") == "stay"
    assert decide(samples, "eagle3") == "switch"


def test_requests_held_at_the_gateway_count() -> None:
    samples = [LoadSample(float(t), 0, 0, held=20) for t in range(100)]
    assert decide(samples, "eagle3") == "switch"


def test_no_history_is_unknown() -> None:
    assert decision([], "baseline", 0.0).action == "stay"


def test_an_old_sample_is_unknown() -> None:
    assert decision(history((1, 100)), "baseline", 100.0).action == "switch"
    assert decision(history((1, 100)), "baseline", 101.0 + MAX_GAP).action == "stay"


@given(
    st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 50)), st.integers(1, 40)), min_size=1),
    st.sampled_from(["eagle3", "baseline"]),
)
def test_a_switch_always_rests_on_unbroken_known_load(
    stretches: list[tuple[int | None, int]], serving: str
) -> None:
    samples = history(*stretches)
    now = samples[-1].time
    made = decision(samples, serving, now)
    if made.action == "stay":
        return
    needed = 30.0 if serving == "eagle3" else 60.0
    recent = [sample for sample in samples if sample.time >= now - needed]
    assert all(sample.demand is not None for sample in recent)
    if serving == "eagle3":
        assert all(sample.demand >= 8 for sample in recent)  # type: ignore[operator]
        assert made.profile == "baseline"
    else:
        assert all(sample.demand <= 3 for sample in recent)  # type: ignore[operator]
        assert made.profile == "eagle3"
    assert needed > MAX_GAP
