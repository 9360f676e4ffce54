"""`opsctl serve` as a process, with simulated engines as processes, under real requests."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from opsctl.bench.traffic import Outcome, keep_busy, stream_once
from tests.support.server import wait_until
from tests.support.serving import Serving
from tests.support.simulated import configuration, job, serving

Status = dict[str, Any]


@asynccontextmanager
async def traffic(status: Status, streams: int, tokens: int = 48) -> AsyncIterator[list[Outcome]]:
    """Keep streams in flight while the body runs; on leaving, all of them have ended."""
    done: list[Outcome] = []
    enough = asyncio.Event()
    task = asyncio.create_task(
        keep_busy(job(status, tokens), streams, enough, on_outcome=done.append)
    )
    try:
        yield done
    finally:
        enough.set()
        async with asyncio.timeout(90):
            await task


def failures(outcomes: list[Outcome]) -> list[str]:
    return [outcome.why for outcome in outcomes if not outcome.ok]


async def more(done: list[Outcome], count: int, seconds: float = 60.0) -> None:
    """Wait for `count` more answers."""
    wanted = len(done) + count
    async with asyncio.timeout(seconds):
        while len(done) < wanted:
            await asyncio.sleep(0.05)


async def serves(instance: Serving, profile: str | None = None) -> Status:
    return await asyncio.to_thread(instance.wait_serving, profile)


async def status_when(
    instance: Serving, condition: Callable[[Status], bool], what: str, seconds: float = 30.0
) -> Status:
    def look() -> Status | None:
        document = instance.status()
        return document if document is not None and condition(document) else None

    return await asyncio.to_thread(lambda: wait_until(look, seconds=seconds, what=what, every=0.2))


async def until_replaced(instance: Serving, old: Status) -> Status:
    """The status once an engine other than the old one serves."""
    pid = old["engine"]["pid"]
    return await status_when(
        instance,
        lambda s: s["state"] == "serving" and s["engine"]["pid"] != pid,
        "another engine serves",
        60.0,
    )


def engine_children(status: Status) -> dict[str, psutil.Process]:
    """The engine's child processes by title."""
    main = psutil.Process(status["engine"]["pid"])
    return {"".join(child.cmdline()[:1]): child for child in main.children(recursive=True)}


def events(instance: Serving, name: str) -> list[dict[str, Any]]:
    return [entry for entry in instance.events() if entry["event"] == name]


def assert_stops_clean(instance: Serving) -> None:
    stopped = instance.opsctl("stop")
    assert stopped.returncode == 0, stopped.stderr
    assert instance.process.wait(20) == 0
    assert instance.leftovers() == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("switches", [6, pytest.param(20, marks=pytest.mark.extended)])
async def test_switches_at_fifty_streams_lose_nothing(tmp_path: Path, switches: int) -> None:
    with serving(tmp_path) as instance:
        first = await serves(instance)
        async with traffic(first, 50, tokens=24) as done:
            await more(done, 10)
            for number in range(switches):
                profile = ("baseline", "eagle3")[number % 2]
                switched = await asyncio.to_thread(instance.opsctl, "switch", profile)
                assert switched.returncode == 0, switched.stderr
                await more(done, 10)
        assert failures(done) == []
        assert len(done) >= switches * 10
        status = instance.status()
        assert status is not None
        assert status["switches"] == switches
        assert status["gateway"]["completed"] == len(done)
        assert status["gateway"]["failed"] == status["gateway"]["cut"] == 0
        assert_stops_clean(instance)


async def test_the_watchdog_switches_there_and_back_and_says_why(tmp_path: Path) -> None:
    with serving(tmp_path, "--auto-spec") as instance:
        first = await serves(instance, "eagle3")
        async with traffic(first, 30, tokens=24) as busy:
            await serves(instance, "baseline")
        async with traffic(first, 1) as quiet:
            await serves(instance, "eagle3")
        assert failures(busy) + failures(quiet) == []
        there, back = events(instance, "switched")
        assert (there["source"], there["target"], there["by"]) == ("eagle3", "baseline", "policy")
        assert (back["source"], back["target"]) == ("baseline", "eagle3")
        begun = events(instance, "switch_begun")[0]
        assert "requests running or queued, at or above 8" in begun["why"]
        decisions = events(instance, "decision")
        assert any(entry["action"] == "switch" and not entry["vetoes"] for entry in decisions)
        assert_stops_clean(instance)


async def test_observe_decides_but_does_not_switch(tmp_path: Path) -> None:
    with serving(tmp_path, "--observe") as instance:
        first = await serves(instance)
        async with traffic(first, 20, tokens=24):
            status = await status_when(
                instance,
                lambda s: bool(s["last_decision"]) and s["last_decision"]["action"] == "switch",
                "it would switch",
            )
        assert status["automation"] == "observe"
        assert any("observe" in why for why in status["last_decision"]["vetoes"])
        assert status["switches"] == 0


async def test_pause_survives_a_restart_of_opsctl(tmp_path: Path) -> None:
    with serving(tmp_path, "--auto-spec") as instance:
        await serves(instance)
        assert instance.opsctl("pause").returncode == 0
        assert_stops_clean(instance)
    with serving(tmp_path, "--auto-spec") as instance:
        assert (await serves(instance))["automation"] == "paused"
        assert instance.opsctl("resume").returncode == 0
        status = instance.status()
        assert status is not None
        assert status["automation"] == "on"


@pytest.mark.parametrize("victim", ["main", "sglang::scheduler_TP0", "sglang::detokenizer"])
async def test_a_killed_process_is_replaced_and_requests_without_a_byte_are_not_lost(
    tmp_path: Path, victim: str
) -> None:
    with serving(tmp_path) as instance:
        before = await serves(instance)
        async with traffic(before, 12, tokens=200) as done:
            await status_when(instance, lambda s: s["load"]["in_flight"] == 12, "all in flight")
            if victim == "main":
                os.kill(before["engine"]["pid"], signal.SIGKILL)
            else:
                engine_children(before)[victim].kill()
            after = await until_replaced(instance, before)
            await more(done, 1)
        cut = [outcome for outcome in done if not outcome.ok]
        assert all(outcome.status == 200 and "error event" in outcome.why for outcome in cut)
        assert len(cut) <= 12, "only streams that had begun were cut"
        assert any(outcome.ok for outcome in done)
        assert after["profile"] == "eagle3"
        (lost,) = events(instance, "engine_lost")
        assert lost["kind"] == ("exited" if victim == "main" else lost["kind"])
        assert_stops_clean(instance)


async def test_a_hang_is_seen_though_health_says_200(tmp_path: Path) -> None:
    with serving(tmp_path) as instance:
        before = await serves(instance)
        url = f"http://{before['listen']}"
        async with traffic(before, 4, tokens=400) as done:
            await status_when(instance, lambda s: s["load"]["in_flight"] == 4, "all in flight")
            engine_children(before)["sglang::scheduler_TP0"].suspend()
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{url}/model_info") as answer,
            ):
                assert answer.status == 200
            await until_replaced(instance, before)
            await more(done, 1)
        (lost,) = events(instance, "engine_lost")
        assert lost["kind"] == "hang"
        assert "in flight, but no byte, no token and no prefill moved" in lost["why"]
        assert_stops_clean(instance)


async def test_a_hang_of_an_idle_engine_is_found_by_the_probe(tmp_path: Path) -> None:
    with serving(tmp_path) as instance:
        before = await serves(instance)
        engine_children(before)["sglang::scheduler_TP0"].suspend()
        await until_replaced(instance, before)
        (lost,) = events(instance, "engine_lost")
        assert lost["kind"] == "hang"
        assert "idle probe failed" in lost["why"]


async def test_a_failed_start_falls_back_and_the_failing_profile_is_quarantined(
    tmp_path: Path,
) -> None:
    broken = {"sim-fault": "start_failure=1:oom"}
    with serving(tmp_path, "--auto-spec", baseline=broken) as instance:
        first = await serves(instance, "eagle3")
        async with traffic(first, 12, tokens=24) as done:
            await status_when(
                instance,
                lambda s: s["state"] == "serving" and "baseline" in s["quarantine"],
                "baseline in quarantine",
                60.0,
            )
            await more(done, 12)
        assert failures(done) == []
        failed = events(instance, "start_failed")
        assert {entry["kind"] for entry in failed} == {"out_of_memory"}
        assert "out of memory" in failed[0]["why"]
        status = instance.status()
        assert status is not None
        assert (status["profile"], status["switches"]) == ("eagle3", 0)
        refused = await asyncio.to_thread(instance.opsctl, "switch", "baseline")
        assert refused.returncode == 1
        assert "still serving eagle3" in refused.stderr
        assert_stops_clean(instance)


async def test_when_both_profiles_fail_it_gives_up_with_exit_code_69(tmp_path: Path) -> None:
    broken = {"sim-fault": "start_failure=1"}
    budget = {"restart": {"backoff_first": "100ms", "backoff_max": "200ms", "budget": 4}}
    changes: dict[str, Any] = {"eagle3": broken, "baseline": broken, "serve": budget}
    with serving(tmp_path, **changes) as instance:
        assert await asyncio.to_thread(instance.process.wait, 60) == 69
        assert "gave up" in instance.output.read_text()
        assert instance.leftovers() == []
        assert len(events(instance, "start_failed")) == 4


async def test_an_engine_that_ignores_sigterm_is_killed_and_the_switch_goes_on(
    tmp_path: Path,
) -> None:
    stubborn = {"sim-fault": "ignore_sigterm"}
    with serving(tmp_path, eagle3=stubborn) as instance:
        first = await serves(instance)
        async with traffic(first, 4) as done:
            switched = await asyncio.to_thread(instance.opsctl, "switch", "baseline")
            assert switched.returncode == 0, switched.stderr
            await more(done, 4)
        assert failures(done) == []
        stopped = events(instance, "engine_stopped")[0]
        assert stopped["escalated"]
        assert stopped["released"]
        assert_stops_clean(instance)


@pytest.mark.parametrize("fault", ["escaped_child", "port_squatter"])
async def test_what_the_engine_leaves_behind_is_ended_before_the_next_start(
    tmp_path: Path, fault: str
) -> None:
    with serving(tmp_path, eagle3={"sim-fault": fault}) as instance:
        await serves(instance)
        switched = await asyncio.to_thread(instance.opsctl, "switch", "baseline")
        assert switched.returncode == 0, switched.stderr
        stopped = events(instance, "engine_stopped")[0]
        assert stopped["killed"], "the leftover was found and ended"
        assert stopped["released"]
        assert_stops_clean(instance)


async def test_the_next_start_waits_until_memory_is_back(tmp_path: Path) -> None:
    with serving(tmp_path, eagle3={"sim-linger": 2}) as instance:
        await serves(instance)
        switched = await asyncio.to_thread(instance.opsctl, "switch", "baseline")
        assert switched.returncode == 0, switched.stderr
        (switch,) = events(instance, "switched")
        assert switch["stop_s"] >= 2.0
        assert events(instance, "engine_stopped")[0]["memory"] == "verified"


async def test_memory_that_never_comes_back_ends_in_exit_code_4(tmp_path: Path) -> None:
    with serving(tmp_path, eagle3={"sim-linger": "never"}) as instance:
        await serves(instance)
        await asyncio.to_thread(instance.opsctl, "switch", "--no-wait", "baseline")
        assert await asyncio.to_thread(instance.process.wait, 60) == 4
        text = instance.output.read_text()
        assert "not released" in text
        assert len(events(instance, "starting")) == 1, "nothing was started on top of it"


async def test_after_its_own_death_opsctl_adopts_the_engine_that_serves(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        before = await serves(first)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(10)
        second = Serving(first.arguments, first.state_dir)
        with second:
            after = await serves(second)
            assert after["engine"]["pid"] == before["engine"]["pid"]
            assert after["engine"]["adopted"]
            async with traffic(after, 2) as done:
                await more(done, 4)
            assert failures(done) == []
            os.kill(after["engine"]["pid"], signal.SIGKILL)
            await until_replaced(second, after)
            assert_stops_clean(second)
        assert first.leftovers() == []


async def test_after_its_own_death_opsctl_ends_an_engine_that_no_longer_matches(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as first:
        before = await serves(first)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(10)
        configuration(tmp_path / "opsctl.yaml", eagle3={"sim-seed": 7})
        with Serving(first.arguments, first.state_dir) as second:
            after = await serves(second)
            assert after["engine"]["pid"] != before["engine"]["pid"]
            (recovered,) = events(second, "recovered")
            assert not recovered["adopted"]
            assert "has changed" in recovered["why"]
            assert before["engine"]["pid"] in recovered["killed"]
            assert_stops_clean(second)
        assert first.leftovers() == []


async def test_drain_keeps_the_engine_and_ends_when_told(tmp_path: Path) -> None:
    with serving(tmp_path) as instance:
        status = await serves(instance)
        url = f"http://{status['listen']}"
        drained = await asyncio.to_thread(instance.opsctl, "drain")
        assert drained.returncode == 0
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{url}/readyz") as answer:
                assert answer.status == 503
            async with session.get(f"{url}/healthz") as answer:
                assert answer.status == 200
            outcome = await stream_once(session, job(status))
            assert outcome.status == 503
            refused = await asyncio.to_thread(instance.opsctl, "switch", "baseline")
            assert refused.returncode == 75
            assert "drain --off" in refused.stderr
            assert instance.opsctl("drain", "--off").returncode == 0
            assert (await stream_once(session, job(status))).ok
        after = await serves(instance)
        assert after["engine"]["pid"] == status["engine"]["pid"]


async def test_a_drain_outlasts_the_death_of_opsctl_and_of_its_engine(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        before = await serves(first)
        assert (await asyncio.to_thread(first.opsctl, "drain")).returncode == 0
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(10)
        with Serving(first.arguments, first.state_dir) as second:
            adopted = await drained(second)
            assert adopted["engine"]["pid"] == before["engine"]["pid"]
            async with aiohttp.ClientSession() as session:
                assert (await stream_once(session, job(adopted))).status == 503
            second.process.send_signal(signal.SIGKILL)
            second.process.wait(10)
            os.kill(before["engine"]["pid"], signal.SIGKILL)
        with Serving(first.arguments, first.state_dir) as third:
            again = await drained(third)
            assert again["engine"]["pid"] != before["engine"]["pid"]
            assert third.opsctl("drain", "--off").returncode == 0
            async with aiohttp.ClientSession() as session:
                assert (await stream_once(session, job(again))).ok
            assert (await asyncio.to_thread(third.opsctl, "drain")).returncode == 0
            assert_stops_clean(third)
        with Serving(first.arguments, first.state_dir) as fourth:
            await serves(fourth)
            assert_stops_clean(fourth)
        assert first.leftovers() == []


async def drained(instance: Serving) -> Status:
    return await status_when(instance, lambda now: now["state"] == "drained", "drained", 60)


async def test_reload_takes_the_new_configuration_and_refuses_a_bad_one(tmp_path: Path) -> None:
    with serving(tmp_path, "--auto-spec") as instance:
        await serves(instance)
        path = tmp_path / "opsctl.yaml"
        good = path.read_text()
        path.write_text(good.replace("dwell: 2s", "dwell: 2 parsecs"))
        refused = instance.opsctl("reload")
        assert refused.returncode == 78
        assert "auto_spec.dwell" in refused.stderr
        configuration(path, eagle3={"sim-seed": 7}, auto_spec={"dwell": "600s"})
        done = instance.opsctl("reload")
        assert done.returncode == 0, done.stderr
        assert "'eagle3' has changed" in done.stderr
        status = instance.status()
        assert status is not None
        assert any("of 600 s" in why for why in status["next_switch"]["why"])


async def test_two_instances_do_not_share_a_state_directory(tmp_path: Path) -> None:
    with serving(tmp_path) as instance:
        await serves(instance)
        other = instance.opsctl("serve", "--demo", "--listen", "127.0.0.1:0")
        assert other.returncode == 75
        assert "in use by another opsctl" in other.stderr


async def test_sigterm_finishes_what_is_in_flight(tmp_path: Path) -> None:
    slow = {"sim-time-scale": 4}  # in flight for longer than it takes to ask for the status
    with serving(tmp_path, eagle3=slow) as instance:
        status = await serves(instance)
        async with aiohttp.ClientSession() as session:
            answers = [asyncio.create_task(stream_once(session, job(status, 200))) for _ in "abc"]
            await status_when(instance, lambda s: s["load"]["in_flight"] == 3, "all in flight")
            instance.process.send_signal(signal.SIGTERM)
            assert failures(list(await asyncio.gather(*answers))) == []
        assert await asyncio.to_thread(instance.process.wait, 20) == 0
        assert instance.leftovers() == []


async def test_a_drain_that_takes_too_long_leaves_everything_as_it_was(tmp_path: Path) -> None:
    with serving(tmp_path, eagle3={"sim-time-scale": 3}) as instance:
        path = tmp_path / "opsctl.yaml"
        path.write_text(path.read_text().replace("drain: 20s", "drain: 1s"))
        assert instance.opsctl("reload").returncode in {0, 75}
        status = await serves(instance)
        instance.opsctl("reload")
        async with traffic(status, 2, tokens=400) as done:
            await status_when(instance, lambda s: s["load"]["in_flight"] == 2, "all in flight")
            refused = await asyncio.to_thread(instance.opsctl, "switch", "baseline")
            assert refused.returncode == 1
            assert "switch cancelled" in refused.stderr
            await more(done, 2)
        assert failures(done) == []


async def test_status_without_an_instance_says_how_to_start_one(tmp_path: Path) -> None:
    instance = serving(tmp_path)
    done = instance.opsctl("status")
    assert done.returncode == 75
    assert "no opsctl serves from" in done.stderr
    assert "opsctl serve" in done.stderr


async def test_a_host_that_is_not_ready_is_told_before_anything_starts(tmp_path: Path) -> None:
    path = configuration(tmp_path / "opsctl.yaml")
    text = path.read_text().replace("engine: simulated", "engine: sglang", 1)
    path.write_text(text.replace("model: simulated/demo", "model: /nonexistent/model"))
    with Serving(("--config", str(path), "--profile", "baseline"), tmp_path / "state") as instance:
        assert await asyncio.to_thread(instance.process.wait, 30) in {4, 78}
        assert "error:" in instance.output.read_text()


async def test_logs_and_events_are_read_from_disk_after_the_end(tmp_path: Path) -> None:
    with serving(tmp_path) as instance:
        await serves(instance)
        assert_stops_clean(instance)
        shown = instance.opsctl("logs", "-n", "500").stdout
        assert "opsctl-simulated" in shown
        assert [e["event"] for e in instance.events()][-1] == "stopped"
        lines = instance.opsctl("events", "-o", "json").stdout.splitlines()
        assert all("time" in json.loads(line) for line in lines)
