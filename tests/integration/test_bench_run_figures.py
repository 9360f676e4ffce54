"""What is measured of a simulated engine is what it was set to, and what spoils it is told.

The engine is made slow, so that a busy test machine is not what is measured. Where the machine
was too busy all the same the cell says so and is measured again; a valid cell must be right.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from opsctl.bench.grid import Grid, Spot
from opsctl.bench.loops import Extent
from opsctl.bench.measure import Way, measure
from opsctl.bench.results import Cell
from opsctl.bench.run import Order, prompts_for
from opsctl.bench.target import Target, attach, open_session
from opsctl.bench.workload import Item, Prompts, Workload
from opsctl.engine.client import EngineClient
from opsctl.engine.simulated.surface import surfaces
from tests.support.bench_proxy import Lies, lying
from tests.support.simulated_engine import Simulated, simulated

SCALE = 2.0
EAGLE = (
    "--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3",
    "--speculative-num-draft-tokens", "4", "--max-running-requests", "64",
)  # fmt: skip
CHAT = Workload(
    "reference",
    tuple(
        Item(({"role": "user", "content": f"[class:chat] Question {n}: what is new?"},))
        for n in range(10)
    ),
    "0" * 16,
)
"""Prompts whose accept length is the one the engine's table was taken with."""


@asynccontextmanager
async def target(engine: Simulated, lies: Lies | None = None) -> AsyncIterator[Target]:
    """The engine as a benchmark sees it, behind a proxy that may lie."""
    async with lying(engine.url, lies or Lies()) as url, open_session() as session:
        client = EngineClient(url)
        try:
            yield await attach(url, session, client)
        finally:
            await client.close()


@asynccontextmanager
async def lied_to(tmp_path: Path, lies: Lies, *flags: str) -> AsyncIterator[Target]:
    """An engine of no particular speed whose answers are tampered with."""
    quick = ("--sim-prefill-rate", "1e6", "--sim-surface", "reference_host:baseline")
    async with simulated(tmp_path, *quick, *flags) as engine, target(engine, lies) as found:
        yield found


def way(seconds: float = 2.0, tokens: int = 32) -> Way:
    return Way(Extent(duration=seconds, settle=0.2, ramp_limit=60.0, drain_limit=60.0), tokens)


def spot(concurrency: int, context: int = 0) -> Spot:
    return Spot("engine", concurrency, context, 0)


async def measured(target: Target, how: Way, where: Spot, *, salted: bool = True) -> Cell:
    """A cell; measured again where only the machine was too busy."""
    for attempt in range(4):
        prompts = Prompts(CHAT, f"try {attempt}" if salted else None)
        cell = await measure(target, prompts, how, where)
        if not cell.reason.startswith("the client was"):
            return cell
    pytest.skip(f"this machine is too busy to measure anything: {cell.reason}")


@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.parametrize(
    ("surface", "flags", "concurrencies"),
    [
        pytest.param(
            "reference_host:baseline",
            ("--max-running-requests", "64"),
            (1, 4, 16),
            marks=pytest.mark.extended,
        ),
        ("reference_host:eagle3", EAGLE, (1, 4, 16)),
    ],
)
async def test_the_known_surface_is_measured_within_three_per_cent(
    tmp_path: Path, surface: str, flags: tuple[str, ...], concurrencies: tuple[int, ...]
) -> None:
    """Closed loop, several tokens an event, every event up to 50 ms late, a cache that is on."""
    table = surfaces().find(surface)
    slow = ("--sim-surface", surface, "--sim-time-scale", str(SCALE), "--sim-prefill-rate", "1e6")
    lies = Lies(jitter=0.05, prefix_cache=True)
    wrong = []
    async with simulated(tmp_path, *slow, *flags) as engine, target(engine, lies) as found:
        for concurrency in concurrencies:
            cell = await measured(found, way(12.0, 128), spot(concurrency))
            assert cell.valid, (concurrency, cell.reason)
            wanted = table.tokens_per_second(concurrency, 0) / SCALE
            ratio = cell.throughput_tok_s / wanted
            if abs(ratio - 1) > 0.03:
                wrong.append((concurrency, cell.throughput_tok_s, wanted))
            if "--speculative-algorithm" in flags:
                assert cell.accept_length == pytest.approx(2.4, rel=0.03)
    assert wrong == []


async def test_a_prompt_with_context_is_as_long_as_was_asked(tmp_path: Path) -> None:
    async with lied_to(tmp_path, Lies(), "--sim-time-scale", "0.3") as found:
        sample = Prompts(CHAT, "sample").messages((0, 2048, 0), 0)
        ratio = await found.characters_per_token(sample)
        assert ratio is not None
        prompts = Prompts(CHAT, "run", ratio)
        cell = await measure(found, prompts, way(), spot(2, 4096))
    assert cell.extra["prompt_tokens_mean"] == pytest.approx(4096, rel=0.02)


async def test_more_streams_than_the_engine_admits_are_refused_at_once(tmp_path: Path) -> None:
    async with lied_to(tmp_path, Lies(), "--max-running-requests", "4") as found:
        cell = await measured(found, way(), spot(8))
    assert (cell.valid, cell.reason, cell.tokens) == (False, "N/A (4/8)", 0)


async def test_an_engine_that_runs_fewer_than_it_says_is_found_out(tmp_path: Path) -> None:
    async with lied_to(tmp_path, Lies(max_running=64), "--max-running-requests", "4") as found:
        cell = await measured(found, way(), spot(8))
    # On a busy machine the client may be found starved too: that is said beside it.
    assert (cell.valid, (cell.reason or "").split("; ")[0]) == (False, "N/A (4/8)")
    assert cell.effective_concurrency == pytest.approx(4, abs=0.1)
    assert cell.tokens > 0


async def test_a_server_that_does_not_tell_its_load_is_judged_by_its_streams(
    tmp_path: Path,
) -> None:
    lies = Lies(no_loads=True)
    async with lied_to(tmp_path, lies, "--max-running-requests", "4") as found:
        cell = await measured(found, way(), spot(8))
    assert cell.extra["effective_concurrency_by"] == "client"
    assert (cell.reason or "").split("; ")[0] == "N/A (4/8)"


async def test_a_client_that_gets_no_time_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its event loop is held up for a fifth of each 50 ms, as a starved machine does."""

    async def hold_up() -> None:
        while True:
            time.sleep(0.03)
            await asyncio.sleep(0.02)

    async with lied_to(tmp_path, Lies()) as found:
        task = asyncio.create_task(hold_up())
        cell = await measure(found, Prompts(CHAT, "run"), way(), spot(2))
        task.cancel()
    assert not cell.valid
    assert "the client was starved" in cell.reason


async def test_a_client_that_uses_a_whole_core_is_told(tmp_path: Path) -> None:
    """Short turns, so that the loop is never late, and yet no time is left."""
    over = threading.Event()

    def burn() -> None:
        while not over.is_set():
            sum(range(2000))

    async with lied_to(tmp_path, Lies()) as found:
        burners = [threading.Thread(target=burn) for _ in range(2)]
        for burner in burners:
            burner.start()
        try:
            cell = await measure(found, Prompts(CHAT, "run"), way(), spot(2))
        finally:
            over.set()
            await asyncio.to_thread(lambda: [burner.join() for burner in burners])
    assert not cell.valid
    assert "the client was" in cell.reason


async def test_an_aborted_request_fails_the_cell_and_ends_it(tmp_path: Path) -> None:
    async with simulated(tmp_path, "--sim-time-scale", "3") as engine, target(engine) as found:

        async def abort() -> None:
            await engine.until_running(2)
            await engine.fault("abort_done")

        aborting = asyncio.create_task(abort())
        cell = await measure(found, Prompts(CHAT, "run"), way(20.0, 256), spot(2))
        await aborting
    assert not cell.valid
    assert "failed: finish_reason 'abort'" in cell.reason


async def test_an_engine_that_dies_fails_the_cell_and_is_not_usable(tmp_path: Path) -> None:
    async with simulated(tmp_path, "--sim-time-scale", "3") as engine, target(engine) as found:

        async def crash() -> None:
            await engine.until_running(2)
            engine.process.kill()

        crashing = asyncio.create_task(crash())
        cell = await measure(found, Prompts(CHAT, "run"), way(20.0, 256), spot(2))
        await crashing
        await engine.exit_code()
        assert not await found.usable()
    assert not cell.valid
    assert "failed: " in cell.reason


async def test_a_request_that_is_refused_is_not_tried_again(tmp_path: Path) -> None:
    lies = Lies(fail_after=5)
    async with lied_to(tmp_path, lies) as found:
        cell = await measured(found, way(), spot(2))
    assert "failed: status 500: out of luck" in cell.reason
    # Two streams: when one is refused, the other may be under way, and is cut.
    assert cell.extra["requests_sent"] <= lies.requests <= 7


@pytest.mark.parametrize("factor", [0.9, 1.1])
async def test_counters_that_disagree_fail_the_cell(tmp_path: Path, factor: float) -> None:
    async with lied_to(tmp_path, Lies(counted=factor)) as found:
        cell = await measured(found, way(), spot(2))
    assert not cell.valid
    assert cell.reason.startswith("counters disagree: usage says ")


async def test_requests_of_somebody_else_fail_the_cell(tmp_path: Path) -> None:
    async with simulated(tmp_path, "--sim-prefill-rate", "1e6") as engine, target(engine) as found:

        async def disturb() -> None:
            async with asyncio.timeout(30):
                while not (await engine.load())["num_used_tokens"]:
                    await asyncio.sleep(0.02)
            stream, task = engine.stream(4)
            await task
            stream.assert_complete(4)

        disturbing = asyncio.create_task(disturb())
        cell = await measured(found, way(), spot(2))
        await disturbing
    assert not cell.valid
    assert "somebody else used the engine" in cell.reason


async def test_answers_that_end_early_fail_a_throughput_cell(tmp_path: Path) -> None:
    async with lied_to(tmp_path, Lies(shorten=20)) as found:
        cell = await measured(found, way(), spot(2))
    assert not cell.valid
    assert "answers ended early, in spite of ignore_eos (20 of 32 tokens)" in cell.reason


async def test_natural_ends_are_fine_for_a_latency_cell(tmp_path: Path) -> None:
    natural = Way(way().extent, 32, "latency")
    async with lied_to(tmp_path, Lies(shorten=20)) as found:
        cell = await measured(found, natural, spot(2))
    assert (cell.valid, cell.reason) == (True, "")
    assert cell.mode == "latency"
    assert cell.ttft_s is not None


async def test_a_warm_prefix_cache_fails_the_cell_when_prompts_are_not_unique(
    tmp_path: Path,
) -> None:
    """The very same prompts: salted they miss a cache that is on, unsalted they hit it."""
    lies = Lies(prefix_cache=True)
    async with lied_to(tmp_path, lies) as found:
        salted = await measured(found, way(), spot(2))
        assert salted.prefix_cache_hit_rate == 0.0
        assert (salted.valid, salted.reason) == (True, "")
        same = Prompts(CHAT, "the nonce of a run that was already measured")
        first = await measure(found, same, way(), spot(2))
        second = await measure(found, same, way(), spot(2))
        unsalted = await measured(found, way(), spot(2), salted=False)
    assert first.prefix_cache_hit_rate == 0.0
    assert not second.valid
    assert "the prefix cache answered" in second.reason
    assert unsalted.prefix_cache_hit_rate is not None
    assert unsalted.prefix_cache_hit_rate > 0.5
    assert unsalted.reason == ""  # asked for, and told


async def test_a_chat_template_is_not_held_against_short_prompts(tmp_path: Path) -> None:
    """40 tokens that all prompts begin with are two thirds of each: no fault, unlike a real hit."""
    lies = Lies(prefix_cache=True, template=40)
    async with lied_to(tmp_path, lies) as found:
        order = Order(Grid(("engine",), (2,)), way(), CHAT)
        prompts = await prompts_for(found, order, "a new nonce")
        first = await measure(found, prompts, way(), spot(2))
        again = await measure(found, prompts, way(), spot(2))
    assert first.prefix_cache_hit_rate is not None
    assert first.prefix_cache_hit_rate > 0.5
    assert first.extra["prefix_cache_own_hit_rate"] == 0.0
    assert "the prefix cache" not in first.reason
    assert not again.valid
    assert "the prefix cache answered" in again.reason


async def test_an_answer_without_usage_is_not_counted_by_its_events(tmp_path: Path) -> None:
    async with lied_to(tmp_path, Lies(no_usage=True)) as found:
        cell = await measured(found, way(), spot(2))
    assert not cell.valid
    assert "failed: no usage" in cell.reason


async def test_more_than_a_hundred_streams_are_really_sent_at_once(tmp_path: Path) -> None:
    """The default pool of HTTP clients ends at 100."""
    lies = Lies()
    flags = ("--max-running-requests", "256", "--sim-time-scale", "4")
    async with lied_to(tmp_path, lies, *flags) as found:
        await measure(found, Prompts(CHAT, "run"), way(1.0, 8), spot(150))
    assert lies.most_at_once == 150
