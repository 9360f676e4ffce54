"""Gated restarts: the next engine comes up beside the one that serves, behind a gate of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil

from opsctl.bench.traffic import keep_busy
from tests.integration.test_serve import assert_stops_clean, events, failures, more, traffic
from tests.support.server import wait_until
from tests.support.serving import Serving
from tests.support.simulated import job, serving

GATED = {"listen": "127.0.0.1:0", "profile": "eagle3", "mechanism": "gated_restart"}


def gated(tmp_path: Path, *arguments: str, **changes: Any) -> Serving:
    changes.setdefault("serve", GATED | {"gateway": {"hold": {"time": "60s"}}})
    return serving(tmp_path, *arguments, **changes)


async def when(instance: Serving, state: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        status = instance.status()
        return status if status is not None and status["state"] == state else None

    return await asyncio.to_thread(
        lambda: wait_until(look, seconds=40, what=f"state {state}", every=0.05)
    )


async def test_switches_lose_nothing_and_clients_wait_for_a_part_of_the_start_only(
    tmp_path: Path,
) -> None:
    slow = {"sim-start-time": 4, "sim-time-scale": 0.5}
    with gated(tmp_path, eagle3=slow, baseline=slow) as instance:
        first = await asyncio.to_thread(instance.wait_serving)
        async with traffic(first, 12, tokens=24) as done:
            for profile in ("baseline", "eagle3"):
                await more(done, 12)
                switched = await asyncio.to_thread(instance.opsctl, "switch", profile)
                assert switched.returncode == 0, switched.stderr
            await more(done, 12)
        assert failures(done) == []
        for switch in events(instance, "switched"):
            whole = switch["prepare_s"] + switch["drain_s"] + switch["stop_s"] + switch["start_s"]
            assert abs(whole - switch["seconds"]) < 0.01
            assert switch["prepare_s"] > 0.5, "imports and set-up went by while it served"
        ready = [event["profile"] for event in events(instance, "standby_ready")]
        assert ready == ["baseline", "eagle3"]
        assert_stops_clean(instance)


async def test_requests_are_served_while_the_next_engine_comes_up(tmp_path: Path) -> None:
    with gated(tmp_path, baseline={"sim-start-time": 60}) as instance:
        first = await asyncio.to_thread(instance.wait_serving)
        assert instance.opsctl("switch", "--no-wait", "baseline").returncode == 0
        status = await when(instance, "preparing")
        assert (status["profile"], status["target"]) == ("eagle3", "baseline")
        enough = asyncio.Event()
        task = asyncio.create_task(keep_busy(job(first, 8), 2, enough))
        await asyncio.sleep(0.5)
        enough.set()
        outcomes = (await task).outcomes
        assert outcomes
        assert failures(outcomes) == []
        assert not events(instance, "standby_ready"), "it was served before, not after"
        called_off = await asyncio.to_thread(instance.opsctl, "switch", "eagle3")
        assert called_off.returncode == 0, called_off.stderr
        await asyncio.to_thread(
            lambda: wait_until(
                lambda: events(instance, "standby_ended"), seconds=20, what="the standby is gone"
            )
        )
        assert_stops_clean(instance)


async def test_a_standby_that_fails_costs_nothing(tmp_path: Path) -> None:
    with gated(tmp_path, baseline={"sim-fault": "start_failure=1"}) as instance:
        before = await asyncio.to_thread(instance.wait_serving)
        async with traffic(before, 4, tokens=24) as done:
            failed = await asyncio.to_thread(instance.opsctl, "switch", "baseline")
            await more(done, 4)
        assert failures(done) == []
        after = await asyncio.to_thread(instance.wait_serving, "eagle3")
        assert failed.returncode == 1, failed.stdout
        assert "baseline" in failed.stderr
        assert after["load"]["held"] == 0
        assert_stops_clean(instance)


async def test_an_engine_without_a_gate_is_switched_by_a_plain_restart(tmp_path: Path) -> None:
    """SGLang before 0.5.19 does not know the flag; a wrapper stands in for it here."""
    instance = gated(tmp_path)
    wrapper = tmp_path / "python"
    path = tmp_path / "opsctl.yaml"
    wrapper.write_text(
        "#!/bin/sh\n"
        'for word in "$@"; do if [ "$word" = --gated-launch-port ]; then\n'
        'echo "server: error: unrecognized arguments: $word 1" >&2; exit 2; fi; done\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    wrapper.chmod(0o755)
    text = path.read_text().replace("  baseline:\n", f"  baseline:\n    python: {wrapper}\n", 1)
    environment = f"    environment: {{PYTHONPATH: '{Path.cwd()}'}}\n"
    path.write_text(text.replace(f"{wrapper}\n", f"{wrapper}\n{environment}", 1))
    with instance:
        first = await asyncio.to_thread(instance.wait_serving)
        async with traffic(first, 4, tokens=24) as done:
            switched = await asyncio.to_thread(instance.opsctl, "switch", "baseline")
            assert switched.returncode == 0, switched.stderr
            await more(done, 4)
        assert failures(done) == []
        (told,) = events(instance, "standby_failed")
        assert told["kind"] == "unsupported"
        assert not events(instance, "standby_ready"), "nothing was prepared beside"
    stopped = events(instance, "engine_stopped")[0]["time"]
    started = [event for event in events(instance, "starting") if event["profile"] == "baseline"]
    assert [event for event in started if event["time"] >= stopped] == started != []


async def test_a_crash_while_the_next_engine_comes_up_is_recovered_without_it(
    tmp_path: Path,
) -> None:
    with gated(tmp_path, baseline={"sim-start-time": 20}) as instance:
        before = await asyncio.to_thread(instance.wait_serving)
        assert instance.opsctl("switch", "--no-wait", "baseline").returncode == 0
        await when(instance, "preparing")
        os.kill(before["engine"]["pid"], signal.SIGKILL)
        after = await asyncio.to_thread(instance.wait_serving, "eagle3")
        assert after["engine"]["pid"] != before["engine"]["pid"]
        assert_stops_clean(instance)


async def test_killed_in_the_middle_opsctl_finds_both_engines_again(tmp_path: Path) -> None:
    with gated(tmp_path, baseline={"sim-start-time": 20}) as first:
        before = await asyncio.to_thread(first.wait_serving)
        assert first.opsctl("switch", "--no-wait", "baseline").returncode == 0
        await when(first, "preparing")
        main = psutil.Process(first.process.pid)
        trees = {child.pid for child in main.children()}
        assert len(trees) >= 2
        first.process.kill()
        first.process.wait(10)
        with Serving(first.arguments, first.state_dir) as second:
            after = await asyncio.to_thread(second.wait_serving, "eagle3")
            assert after["engine"]["pid"] == before["engine"]["pid"]
            (recovered,) = events(second, "recovered")
            assert recovered["adopted"]
            assert set(recovered["killed"]) & (trees - {before["engine"]["pid"]})
            assert_stops_clean(second)
        assert first.leftovers() == []
