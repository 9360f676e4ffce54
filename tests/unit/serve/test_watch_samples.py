"""The samples that the policy is told: what is known, and what is left unknown."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from opsctl.config.schema import HealthConfig
from opsctl.engine.loads import Loads
from opsctl.engine.start import RunningEngine
from opsctl.serve.traffic import GatewayCounters
from opsctl.serve.watch import EngineWatch, gateway_sample

COUNTERS = GatewayCounters(
    in_flight=4,
    waiting_for_client=1,
    held=2,
    held_bytes=0,
    admitted_total=30,
    completed_total=20,
    failed_total=3,
    abandoned_total=1,
    retried_total=0,
    cut_total=0,
    rejected_total=9,
    last_progress=None,
    oldest_in_flight=0.0,
)
LOADS = Loads(None, 3, 1, 4000, None, None, None, None, 2.5, (1.0,))
METRICS = "sglang:generation_tokens_total 500.0\nsglang:spec_num_steps 3.0\n"


class Client:
    """An engine that answers, and counts how often its metrics are asked for."""

    def __init__(self, loads: Loads | None, metrics: str | None) -> None:
        self._loads, self._metrics = loads, metrics
        self.asked = 0

    async def loads(self) -> Loads | None:
        return self._loads

    async def metrics_text(self) -> str | None:
        self.asked += 1
        return self._metrics


def watch(client: Client, clock: list[float]) -> EngineWatch:
    process = SimpleNamespace(look=lambda: asyncio.sleep(0), missing_children=lambda: ())
    log = SimpleNamespace(read_new=lambda: None)
    engine = SimpleNamespace(client=client, process=process, log=log)
    return EngineWatch(
        cast(RunningEngine, cast(Any, engine)), HealthConfig(), lambda: COUNTERS, lambda: clock[0]
    )


async def test_a_sample_has_what_the_gateway_counts_and_what_the_engine_says() -> None:
    client = Client(LOADS, METRICS)
    sample = (await watch(client, [10.12345]).look()).sample
    assert sample.time == 10.123, "as the load journal keeps it"
    assert (sample.held, sample.in_flight, sample.stalled, sample.arrived) == (2, 4, 1, 30)
    assert sample.completed == 24, "completed, failed and abandoned: all that have ended"
    assert (sample.running, sample.queued, sample.used_tokens) == (3, 1, 4000)
    assert sample.accept_length == 2.5
    assert sample.generated == 500


async def test_between_two_looks_at_the_metrics_tokens_are_unknown() -> None:
    client, clock = Client(LOADS, METRICS), [0.0]
    looking = watch(client, clock)
    generated = []
    for second in range(6):
        clock[0] = float(second)
        generated.append((await looking.look()).sample.generated)
    assert generated == [500, None, 500, None, 500, None]
    assert client.asked == 3, "the text that the draft steps are read from, and no other"


async def test_an_engine_without_loads_tells_tokens_with_each_sample() -> None:
    client, clock = Client(replace(LOADS, generation_tokens_total=70), METRICS), [0.0]
    looking = watch(client, clock)
    await looking.look()
    clock[0] = 1.0
    assert (await looking.look()).sample.generated == 70


async def test_without_metrics_tokens_are_unknown() -> None:
    assert (await watch(Client(LOADS, None), [0.0]).look()).sample.generated is None


async def test_a_stale_load_is_unknown_and_not_idle() -> None:
    sample = (await watch(Client(replace(LOADS, stale=True), METRICS), [0.0]).look()).sample
    assert (sample.running, sample.queued, sample.demand) == (None, None, None)
    assert sample.in_flight == 4


def test_while_no_engine_serves_the_gateway_still_counts() -> None:
    sample = gateway_sample(7.0, COUNTERS)
    assert (sample.held, sample.arrived, sample.demand) == (2, 30, None)
