"""The watchdog with measured surfaces, on real processes: what it is worth beside doing nothing.

Three instances get the same requests at the same moments: one that decides by itself, and one for
each fixed profile. Engines are fast here, and bursts short; the seconds in which the policy makes
up its mind are what they are in production. So a burst of half a minute is over soon after it was
believed, and R1 (a promise about hours) is the simulator's to judge. Here is asserted what holds
in any case: nothing is lost, and it is better than the wrong profile left alone. Figures are in
`benchmarks/auto_spec.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.integration.test_serve import (
    Status,
    assert_stops_clean,
    events,
    failures,
    more,
    serves,
    status_when,
    traffic,
)
from tests.support.auto_spec import (
    BURST,
    SCENES,
    Played,
    Scene,
    measure,
    play,
    rehearse,
    send,
    watchdog,
)
from tests.support.serving import Serving

CLIENTS = 40
MARGIN = 1.1
"""Three instances on the same cores are never quite equally fast."""


def assert_nothing_is_lost(played: Played) -> None:
    assert [why for row in played.rows.values() for why in row.lost] == []
    assert {len(row.answers) for row in played.rows.values()} == {len(played.scene.arrivals)}


def assert_the_journals_tell_it(played: Played) -> None:
    """Each switch follows from a decision with its numbers; the decisions come out again."""
    begun = [event for event in played.events_of("switch_begun") if event["by"] == "policy"]
    assert [event["target"] for event in begun] == played.targets, "none was given up"
    decided = {
        event["reason"]: event
        for event in played.events_of("decision")
        if event["action"] == "switch"
    }
    for event in begun:
        decision = decided[event["why"]]
        assert decision["profile"] == event["target"]
        assert decision["policy"] == "cost_aware"
        assert set(decision["numbers"]) >= {"lost", "enough", "price", "way_back"}
    assert played.replayed == 0, played.replay
    assert "0 differ" in played.replay


@pytest.mark.slow
@pytest.mark.parametrize(
    "mechanism", ["restart", pytest.param("gated_restart", marks=pytest.mark.extended)]
)
async def test_a_burst_is_served_by_the_baseline(tmp_path: Path, mechanism: str) -> None:
    played = await play(tmp_path, SCENES[f"burst, {mechanism}"])
    assert_nothing_is_lost(played)
    assert played.targets[:1] == ["baseline"], played.table
    assert played.harm < 1, played.table
    assert_the_journals_tell_it(played)
    prepared = [event["prepare_s"] > 0 for event in played.events_of("switched")]
    assert set(prepared) == {mechanism == "gated_restart"}


@pytest.mark.slow
async def test_one_engine_serves_quiet_and_burst_as_well_as_the_better_profile(
    tmp_path: Path,
) -> None:
    played = await play(tmp_path, SCENES["burst, in_engine"])
    assert_nothing_is_lost(played)
    assert played.targets == []
    assert played.watchdog.mean <= MARGIN * played.allowed, played.table
    assert_the_journals_tell_it(played)
    assert len(played.events_of("adaptive_follows")) == 1


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mechanism", ["restart", "gated_restart"])
async def test_after_a_burst_it_goes_back_once_or_not_at_all(
    tmp_path: Path, mechanism: Literal["restart", "gated_restart"]
) -> None:
    """Two minutes of quiet are few beside the quarter of an hour that the policy looks back on."""
    scene = replace(SCENES["long quiet after a burst"], mechanism=mechanism)
    played = await play(tmp_path, scene)
    assert_nothing_is_lost(played)
    assert played.targets in (["baseline"], ["baseline", "eagle3"]), played.table
    assert played.harm < 1, played.table
    assert_the_journals_tell_it(played)


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(600)
async def test_prompts_that_draft_badly_are_served_by_the_baseline(tmp_path: Path) -> None:
    """What shows it is the accept length alone: arrivals and surfaces stay what they were."""
    played = await play(tmp_path, SCENES["acceptance collapse"])
    assert_nothing_is_lost(played)
    assert played.targets[:1] == ["baseline"], played.table
    easy = sum(phase.seconds for phase in played.scene.phases if phase.prompts == "easy")
    assert played.left_at[0] > easy, "it was right to stay before"
    assert played.harm < 0.5, played.table
    assert_the_journals_tell_it(played)


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(600)
async def test_a_surface_that_promises_too_much_is_found_out(tmp_path: Path) -> None:
    played = await play(tmp_path, SCENES["wrong surface"])
    assert_nothing_is_lost(played)
    assert played.targets == ["baseline"], played.table
    assert played.harm < 0.5, played.table
    assert_the_journals_tell_it(played)


@asynccontextmanager
async def rehearsed(folder: Path, scene: Scene) -> AsyncIterator[tuple[Serving, Status]]:
    """The instance that decides by itself, measured, and its switches known."""
    instance = watchdog(folder, scene)
    await measure(instance, scene)
    with instance:
        await serves(instance, scene.start)
        await rehearse(instance, scene)
        yield instance, await serves(instance, scene.start)


@pytest.mark.parametrize("quiet", [pytest.param("observe", marks=pytest.mark.extended), "pause"])
async def test_what_it_may_not_do_it_only_says(tmp_path: Path, quiet: str) -> None:
    arguments = ("--auto-spec", "--observe") if quiet == "observe" else ("--auto-spec",)
    scene = Scene((BURST,), start="eagle3", arguments=arguments)
    async with rehearsed(tmp_path, scene) as (instance, first):
        if quiet == "pause":
            assert (await asyncio.to_thread(instance.opsctl, "pause")).returncode == 0
        sent = asyncio.create_task(send("it", f"http://{first['listen']}", scene))
        status = await status_when(
            instance,
            lambda s: (s["last_decision"] or {}).get("action") == "switch",
            "a decision",
            60.0,
        )
        assert (await sent).lost == []
        assert status["profile"] == "eagle3"
        assert status["last_decision"]["profile"] == "baseline"
        [veto] = status["last_decision"]["vetoes"]
        assert quiet in str(veto)
        [decision] = [x for x in events(instance, "decision") if x["action"] == "switch"][:1]
        assert decision["policy"] == "cost_aware"
        assert decision["vetoes"]
        assert not any(x["by"] == "policy" for x in events(instance, "switch_begun"))
        assert_stops_clean(instance)


def counts_clients(status: Mapping[str, Any]) -> bool:
    decision = status["last_decision"]
    return decision is not None and decision["numbers"].get("clients") == CLIENTS


async def test_clients_that_wait_for_their_answers_are_served_by_the_baseline(
    tmp_path: Path,
) -> None:
    """As in every load test with a fixed number of streams: more never comes than is answered."""
    scene = Scene((BURST,), start="eagle3")
    async with rehearsed(tmp_path, scene) as (instance, first):
        async with traffic(first, CLIENTS, tokens=24) as done:
            await status_when(instance, lambda s: s["profile"] == "baseline", "a switch", 120.0)
            status = await status_when(instance, counts_clients, "its clients", 120.0)
            await more(done, CLIENTS)
        assert failures(done) == []
        reason = status["last_decision"]["reason"]
        assert reason.startswith(f"{CLIENTS} clients wait for their answers: eagle3 would lose ")
        [switched] = [x for x in events(instance, "switched") if x["by"] == "policy"]
        assert switched["target"] == "baseline"
        assert_stops_clean(instance)
