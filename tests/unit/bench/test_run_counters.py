"""Whose word a number is: counters, usage, the load; and what a person is told meanwhile."""

from __future__ import annotations

import asyncio
import io

import pytest
from rich.console import Console

from opsctl.bench.cells import accept_length
from opsctl.bench.counters import Counters, read
from opsctl.bench.progress import Shown
from opsctl.bench.watch import Seen, Watch
from opsctl.engine.loads import Loads
from tests.support.bench import cell

TEXT = """\
# HELP sglang:generation_tokens_total Generation tokens processed.
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{is_streaming="true",model_name="m"} 1200.0
sglang:generation_tokens_total{is_streaming="false",model_name="m"} 34.0
sglang:num_requests_total{model_name="m"} 10.0
sglang:num_aborted_requests_total{model_name="m"} NaN
sglang:spec_verify_calls_total{model_name="m"} 500.0
sglang:gen_throughput{model_name="m"} 99.0
"""
QUIET = Seen((), None, 0.1, 0.0)


def test_counters_are_sums_over_their_labels() -> None:
    found = read(TEXT)
    assert (found.generation_tokens, found.num_requests) == (1234.0, 10.0)
    assert (found.num_aborted_requests, found.cached_tokens) == (None, None)


def test_the_underscore_prefix_is_read_too() -> None:
    assert read(TEXT.replace("sglang:", "sglang_")) == read(TEXT)


def test_a_counter_that_was_reset_is_unknown_and_one_that_is_new_began_at_zero() -> None:
    grown = read(TEXT).since(Counters(generation_tokens=2000.0))
    assert (grown.generation_tokens, grown.num_requests) == (None, 10.0)


def test_accept_length_is_tokens_per_verify_step_without_the_first_of_each_answer() -> None:
    counted = Counters(generation_tokens=1210.0, num_requests=10.0, spec_verify_calls=500.0)
    assert accept_length(counted, QUIET) == (2.4, "counters")


def test_accept_length_is_the_loads_word_where_there_are_no_counters() -> None:
    seen = Seen((), 2.2, 0.1, 0.0)
    assert accept_length(Counters(), seen) == (2.2, "loads")
    assert accept_length(Counters(), QUIET) == (None, None)


def load(running: int, queued: int = 0, *, stale: bool = False) -> Loads:
    return Loads(None, running, queued, 1, 1, 64, None, 0, None, (), stale)


async def watched(samples: list[Loads | None]) -> Seen:
    """What is seen when the engine says these one after the other."""
    given = iter(samples)
    done = asyncio.Event()

    async def loads() -> Loads | None:
        try:
            return next(given)
        except StopIteration:
            done.set()
            await asyncio.Event().wait()
            return None

    async with Watch(loads, every=0.0) as watch:
        await done.wait()
    return watch.seen


async def test_the_mean_of_running_knows_its_error() -> None:
    steady = await watched([load(58, 6)] * 6)
    assert steady.ran(64) == (58.0, 0.0)
    varying = await watched([load(4, 4)] * 7 + [load(5, 3)])
    assert varying.ran(8) == (pytest.approx(4.125), pytest.approx(0.125))


async def test_requests_that_were_just_prefilled_ran_though_the_engine_leaves_them_out() -> None:
    """Four of eight at a time, in step: all it says at first is that nothing runs."""
    seen = await watched([load(0), load(0), load(4, 4)] * 4)
    assert seen.ran(8) == (4.0, 0.0)
    many = await watched([load(running) for running in (247, 244, 249, 247)])
    assert many.ran(250) == (250.0, 0.0)


async def test_answers_of_a_few_steps_are_never_counted_and_ran() -> None:
    seen = await watched([load(0)] * 5)
    assert seen.ran(1) == (1.0, 0.0)


async def test_where_others_wait_half_of_those_left_out_ran() -> None:
    """Four of eight at a time: one was just let in, and one came to the queue since."""
    seen = await watched([load(3, 3)] * 5)
    assert seen.ran(8) == (4.0, 0.0)


async def test_more_than_we_have_under_way_is_told_too() -> None:
    assert (await watched([load(6)] * 4)).ran(4) == (6.0, 0.0)


async def test_a_load_that_is_unknown_or_old_is_no_sample() -> None:
    seen = await watched([load(4), None, load(0, stale=True), load(4), load(4), None])
    assert seen.ran(4) == (4.0, 0.0)
    assert len(seen.loads) == 3


async def test_too_few_samples_are_no_mean() -> None:
    seen = await watched([load(4), load(4)])
    assert (seen.ran(4), seen.queued) == (None, None)


def test_the_time_left_is_told_from_the_cells_of_this_run_alone() -> None:
    now = 100.0
    lines: list[str] = []
    console = Console(file=io.StringIO(), force_terminal=False)
    with Shown(lines.append, clock=lambda: now, console=console) as show:
        show.begin(12, 2)
        now = 140.0
        show.measured(cell())
        now = 180.0
        show.measured(cell(valid=False, reason="N/A (58/64)"))
    assert lines[0] == "2 of 12 cells were measured before"
    assert lines[1].endswith("repeat 1: 100.0 tok/s, 12.5 per stream  [3/12, 6 min left]")
    assert lines[2].endswith("repeat 1: N/A (58/64)  [4/12, 5 min left]")


def test_the_last_cell_leaves_no_time() -> None:
    lines: list[str] = []
    console = Console(file=io.StringIO(), force_terminal=False)
    with Shown(lines.append, clock=lambda: 0.0, console=console) as show:
        show.begin(1, 0)
        show.measured(cell())
    assert lines == [
        "baseline x8 context 0 repeat 1: 100.0 tok/s, 12.5 per stream  [1/1, all done]"
    ]


def test_on_a_terminal_a_reason_that_looks_like_markup_is_shown_as_it_is() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=200, color_system=None)
    with Shown(lambda line: None, clock=lambda: 0.0, console=console) as show:
        show.begin(1, 0)
        show.measured(cell(valid=False, reason="status 500: [/red] out of luck"))
    assert "status 500: [/red] out of luck" in output.getvalue()
