from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.engine.simulated.core import CATCH_UP, Core, Emission, Job, Limits, Pace
from opsctl.engine.simulated.surface import surfaces

PACE = Pace(surfaces().find("demo:baseline"), prefill_rate=5000)
DRAFTING = Pace(surfaces().find("demo:speculative"), 5000, reference_accept_length=2.4)
LIMITS = Limits(max_running=4, max_total_tokens=100_000)
FOUR_DRAFTS = replace(LIMITS, draft_tokens=4)


def job(rid: str, tokens: int = 10, **changes: object) -> Job:
    return replace(Job(rid, prompt_tokens=20, max_new_tokens=tokens), **changes)  # type: ignore[arg-type]


def finish(core: Core, limit: int = 100_000) -> list[tuple[float, Emission]]:
    """Run a core to its end on a clock that stands exactly where the next step ends."""
    out = []
    for _ in range(limit):
        if (due := core.due) is None:
            return out
        out.extend((due, one) for one in core.advance(due))
    raise AssertionError("never became idle")


def test_one_stream_runs_at_the_rate_of_the_surface() -> None:
    core = Core(PACE, LIMITS)
    core.submit(job("a", 201), now=0.0)
    done = finish(core)
    assert (done[-1][0] - done[0][0]) == pytest.approx(200 / 92.6, rel=0.01)


def test_four_streams_share_the_rate_of_four() -> None:
    core = Core(PACE, LIMITS)
    for name in "abcd":
        core.submit(job(name, 101), now=0.0)
    done = finish(core)
    seconds = done[-1][0] - done[3][0]
    assert 400 / seconds == pytest.approx(
        surfaces().find("demo:baseline").tokens_per_second(4, 0), rel=0.02
    )


def test_every_token_comes_once_and_in_order() -> None:
    core = Core(DRAFTING, FOUR_DRAFTS)
    for name in "abcdef":
        core.submit(job(name, 50, accept_length=2.4, seed=ord(name)), now=0.0)
    seen = dict.fromkeys("abcdef", 0)
    for _, one in finish(core):
        assert one.first == seen[one.rid]
        seen[one.rid] += one.count
        assert (one.finish is not None) == (seen[one.rid] == 50)
    assert set(seen.values()) == {50}


def test_no_more_than_the_cap_run_and_the_rest_wait_their_turn() -> None:
    core = Core(PACE, LIMITS)
    names = [f"r{number}" for number in range(12)]
    for name in names:
        core.submit(job(name), now=0.0)
    assert len(core.waiting) >= 12 - 4
    order: list[str] = []
    while core.due is not None:
        for one in core.advance(core.due):
            if one.rid not in order:
                order.append(one.rid)
        assert len(core.running) + len(core.prefilling) <= 4
    assert order == names


def test_a_full_cache_holds_requests_back_until_there_is_room() -> None:
    core = Core(PACE, replace(LIMITS, max_total_tokens=65))
    core.submit(job("a"), now=0.0)
    core.submit(job("b"), now=0.0)
    core.submit(job("c"), now=0.0)
    peak = 0
    while core.due is not None:
        core.advance(core.due)
        peak = max(peak, core.used_tokens)
        assert len(core.running) + len(core.prefilling) <= 2
    assert 30 < peak <= 60


def test_prefill_goes_first_in_chunks_and_costs_its_tokens() -> None:
    core = Core(PACE, replace(LIMITS, prefill_chunk=1000))
    core.submit(job("long", prompt_tokens=2500), now=0.0)
    ends = []
    while not core.totals.decode_tokens:
        assert core.due is not None
        ends.append(core.due)
        core.advance(core.due)
    assert ends == pytest.approx([0.2, 0.4, 0.5])
    assert core.totals.prefill_tokens == 2500


def test_decoding_waits_while_another_request_is_prefilled() -> None:
    core = Core(PACE, LIMITS)
    core.submit(job("running", 100), now=0.0)
    core.advance(0.005)
    core.submit(job("long", prompt_tokens=5000), now=0.006)
    step = core.due
    assert step is not None
    core.advance(step)
    assert core.due == pytest.approx(step + 1.0)


@pytest.mark.parametrize("length", [1.5, 2.2, 3.6])
def test_accept_length_is_met_on_average_and_speeds_a_stream_up(length: float) -> None:
    core = Core(DRAFTING, FOUR_DRAFTS)
    core.submit(job("a", 6000, accept_length=length, seed=3), now=0.0)
    done = finish(core)
    totals = core.totals
    assert totals.verify_tokens / totals.verify_steps == pytest.approx(length, rel=0.03)
    rate = 6000 / done[-1][0]
    assert rate == pytest.approx(129.6 * length / 2.4, rel=0.05)


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    def run(seed: int) -> list[tuple[float, Emission]]:
        core = Core(DRAFTING, FOUR_DRAFTS)
        core.submit(job("a", 100, accept_length=2.5, seed=seed), now=0.0)
        return finish(core)

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_the_time_scale_multiplies_every_duration() -> None:
    slow, fast = Core(PACE, LIMITS), Core(replace(PACE, scale=0.1), LIMITS)
    for core in (slow, fast):
        core.submit(job("a", 50), now=0.0)
    assert finish(fast)[-1][0] == pytest.approx(finish(slow)[-1][0] / 10)


def test_a_late_clock_is_made_up_for_only_a_little() -> None:
    core = Core(PACE, LIMITS)
    core.submit(job("a", 1000), now=0.0)
    core.advance(1.0)
    before = core.totals.decode_tokens
    core.advance(1.0 + CATCH_UP / 2)
    assert core.totals.decode_tokens - before > 5
    before = core.totals.decode_tokens
    core.advance(60.0)
    assert core.totals.decode_tokens - before <= 2


def test_aborting_frees_the_slot_for_the_next_in_line() -> None:
    core = Core(PACE, replace(LIMITS, max_running=1))
    core.submit(job("a", 1000), now=0.0)
    core.submit(job("b", 5), now=0.0)
    core.advance(0.1)
    assert core.abort("a")
    assert not core.abort("a")
    assert {one.rid for _, one in finish(core)} == {"b"}
    assert core.idle
    assert core.used_tokens == 0


def test_pausing_stops_after_the_step_and_going_on_loses_nothing() -> None:
    core = Core(PACE, LIMITS)
    core.submit(job("a", 20), now=0.0)
    first = core.advance(0.1)
    core.pause(True, 0.1)
    first += core.advance(0.2)
    assert core.advance(5.0) == []
    assert core.due is None
    core.pause(False, 5.0)
    rest = [one for _, one in finish(core)]
    assert sum(one.count for one in (*first, *rest)) == 20


def test_retracted_requests_go_on_where_they_were() -> None:
    core = Core(PACE, LIMITS)
    core.submit(job("a", 20), now=0.0)
    first = core.advance(0.1)
    core.retract()
    core.pause(True, 0.1)
    assert core.used_tokens == 0
    core.advance(1.0)
    core.pause(False, 1.0)
    rest = [one for _, one in finish(core)]
    tokens = [one.first for one in (*first, *rest) if one.count]
    assert tokens == list(range(20))


@given(
    st.lists(
        st.tuples(st.integers(1, 400), st.integers(1, 60), st.floats(1, 4)),
        min_size=1,
        max_size=15,
    ),
    st.integers(1, 5),
    st.integers(1, 4),
)
def test_whatever_comes_in_comes_out_complete(
    jobs: list[tuple[int, int, float]], cap: int, drafts: int
) -> None:
    core = Core(DRAFTING, Limits(cap, 2000, prefill_chunk=100, draft_tokens=drafts))
    for number, (prompt, tokens, accept) in enumerate(jobs):
        core.submit(Job(str(number), prompt, tokens, accept, seed=number), now=0.0)
    counts = dict.fromkeys(map(str, range(len(jobs))), 0)
    ended = set()
    for _, one in finish(core):
        assert one.rid not in ended
        assert one.first == counts[one.rid]
        counts[one.rid] += one.count
        if one.finish:
            ended.add(one.rid)
    assert [counts[str(number)] for number in range(len(jobs))] == [tokens for _, tokens, _ in jobs]
    assert core.idle
    assert core.totals.decode_tokens == sum(tokens for _, tokens, _ in jobs)
    assert core.totals.prefill_tokens == sum(prompt for prompt, _, _ in jobs)
