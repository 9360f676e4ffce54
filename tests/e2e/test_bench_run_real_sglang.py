"""`opsctl bench run` with a real SGLang on CPU: its counters, load and usage are understood.

Speeds of a tiny model on a busy CPU mean nothing; what is tested is that every check had something
to stand on, and that tokens by usage are those that SGLang counted.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from opsctl.bench import workload
from opsctl.bench.grid import Grid, Spot
from opsctl.bench.loops import Extent
from opsctl.bench.measure import Way, measure
from opsctl.bench.results import Cell, load
from opsctl.bench.run import Order, prompts_for
from opsctl.bench.target import attach, open_session
from opsctl.bench.workload import Message, Prompts
from opsctl.engine.client import EngineClient
from tests.support.server import Server
from tests.support.sglang_cpu.environment import SglangEnvironment
from tests.support.sglang_cpu.profiles import baseline, eagle3, write_configuration

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.extended,
    pytest.mark.timeout(1200),
]

MACHINE = ("the client was", "N/A")
"""Reasons that a test machine with two cores may give; all others are ours."""


def told(cell: Cell) -> list[str]:
    """Reasons that are not the machine's."""
    reasons = cell.reason.split("; ") if cell.reason else []
    return [reason for reason in reasons if not reason.startswith(MACHINE)]


def test_both_profiles_are_measured_and_every_check_has_its_source(
    sglang_environment: SglangEnvironment, tmp_path: Path
) -> None:
    profiles = {"baseline": baseline(sglang_environment), "eagle3": eagle3(sglang_environment)}
    config = write_configuration(tmp_path / "opsctl.yaml", profiles)
    out = tmp_path / "results"
    done = subprocess.run(
        [
            sys.executable, "-m", "opsctl", "bench", "run", "--profile", "baseline",
            "--profile", "eagle3", "--concurrency", "1,2", "--requests", "16", "--repeats", "1",
            "--output-tokens", "24", "--workload", "chat", "--out", str(out),
        ],
        env={**os.environ, "OPSCTL_CONFIG": str(config)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    result = load(out)
    assert result.complete, done.stderr
    assert [profile.speculative for profile in result.profiles] == [False, True]
    assert all(profile.versions["sglang"] for profile in result.profiles)
    assert len(result.cells) == 4
    for cell in result.cells:
        assert told(cell) == [], cell
        assert cell.extra["tokens_counted"] == cell.extra["tokens_sent"] > 0
        assert cell.output_tokens_mean == 24
        assert cell.prefix_cache_hit_rate is not None
        assert cell.extra["effective_concurrency_by"] == "engine"
        speculates = cell.profile == "eagle3"
        assert cell.extra["accept_length_by"] == ("counters" if speculates else None)


class SaltedOnce(Prompts):
    """What a broken salt would make: every request of a cell is the very same."""

    def messages(self, cell: tuple[int, int, int], number: int) -> Sequence[Message]:
        return super().messages(cell, 0)


async def test_a_prompt_that_comes_again_is_found_out_and_the_template_is_not(
    sglang_environment: SglangEnvironment, tmp_path: Path
) -> None:
    """The shortest prompt that is shipped: what it shares with others weighs most there."""
    way = Way(Extent(duration=None, requests=6), output_tokens=16)
    spot = Spot("baseline", 1, 0, 0)
    order = Order(Grid(("baseline",), (1,)), way, workload.load("fixed"))
    with Server(baseline(sglang_environment), tmp_path / "engine.log") as server:
        server.wait_ready()
        client = EngineClient(server.url)
        try:
            async with open_session() as session:
                target = await attach(server.url, session, client)
                prompts = await prompts_for(target, order, "run")
                salted = await measure(target, prompts, way, spot)
                same = SaltedOnce(order.workload, "run", common_tokens=prompts.common_tokens)
                repeated = await measure(target, same, way, spot)
        finally:
            await client.close()
    assert told(salted) == []
    assert salted.extra["prefix_cache_hit_rate_by"] == "counters"
    assert salted.prefix_cache_hit_rate is not None
    assert salted.prefix_cache_hit_rate > 0
    assert salted.extra["prefix_cache_own_hit_rate"] == 0.0
    [reason] = told(repeated)
    assert reason.startswith("the prefix cache answered")
