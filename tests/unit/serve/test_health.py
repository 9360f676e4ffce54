from __future__ import annotations

from opsctl.engine.loads import Loads
from opsctl.serve.health import ProgressWatch, Sight


def loads(running: int = 0, queued: int = 0, moved: float = 0.0) -> Loads:
    return Loads(
        timestamp=None,
        running=running,
        queued=queued,
        used_tokens=None,
        capacity_tokens=None,
        max_running=None,
        generation_tokens_total=None,
        prefill_tokens_total=None,
        accept_length=None,
        progress=(moved,),
    )


def verdicts(*sights: Sight, hang_after: float = 10.0) -> list[str | None]:
    watch = ProgressWatch(hang_after, now=0.0)
    return [watch.observe(sight) for sight in sights]


def test_requests_in_flight_and_nothing_moving_is_a_hang() -> None:
    told = verdicts(*(Sight(float(t), 3, 1.0, loads(3)) for t in range(15)))
    assert told[:11] == [None] * 11
    assert "3 requests in flight" in str(told[11])


def test_a_hang_is_seen_when_the_engine_does_not_answer_at_all() -> None:
    assert verdicts(*(Sight(float(t), 1, None, None) for t in range(12)))[-1] is not None


def test_a_stall_inside_the_engine_is_a_hang_even_without_clients() -> None:
    assert verdicts(*(Sight(float(t), 0, None, loads(0, 5)) for t in range(12)))[-1] is not None


def test_bytes_to_clients_are_progress() -> None:
    assert verdicts(*(Sight(float(t), 1, float(t), None) for t in range(40))) == [None] * 40


def test_a_long_prefill_is_not_a_hang() -> None:
    """Counters move though no byte does (sglang#22511)."""
    told = verdicts(*(Sight(float(t), 1, None, loads(1, moved=t)) for t in range(40)))
    assert told == [None] * 40


def test_an_idle_engine_does_not_hang_and_work_starts_a_new_clock() -> None:
    idle = [Sight(float(t), 0, None, loads()) for t in range(100)]
    busy = [Sight(100.0 + t, 1, None, loads(1)) for t in range(12)]
    told = verdicts(*idle, *busy)
    assert told[:109] == [None] * 109
    assert told[-1] is not None


def test_a_host_that_was_paused_with_its_engine_is_given_time_again() -> None:
    before = [Sight(float(t), 3, 1.0, loads(3)) for t in range(5)]
    paused = [Sight(600.0 + t, 3, 1.0, loads(3)) for t in range(12)]
    told = verdicts(*before, *paused)
    assert told[: 5 + 10] == [None] * 15
    assert told[-1] is not None, "but not for ever"
