"""One engine that moves its own draft steps: quiet, burst, quiet, and no restart."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from opsctl.autospec import surface_files
from opsctl.autospec.surface import Point, Surface
from opsctl.config.load import load
from opsctl.profiles.fingerprint import fingerprint
from tests.integration.test_serve import (
    assert_stops_clean,
    events,
    failures,
    more,
    serves,
    status_when,
    traffic,
)
from tests.support.measured import column
from tests.support.serving import Serving
from tests.support.simulated import serving

BURST = 24
"""Streams: far above 7.5, where drafting stops to pay in the demo's table."""
FAST = {"decode-log-interval": 4, "sim-time-scale": 0.2}


def measured(tmp_path: Path, *arguments: str, **changes: Any) -> Serving:
    """An instance whose two profiles were measured: the tables of their engines, within 1 %."""
    changes["eagle3"] = FAST | dict(changes.get("eagle3", {}))
    changes["baseline"] = FAST
    found = {"policy": "cost_aware", "mechanism": "auto"}
    changes["auto_spec"] = found | dict(changes.get("auto_spec", {}))
    instance = serving(tmp_path, "--auto-spec", *arguments, **changes)
    config = load((tmp_path / "opsctl.yaml",), environment={}).config
    for name, table in (("baseline", "baseline"), ("eagle3", "speculative")):
        points = tuple(
            Point(concurrency=n, context=0, tok_s=x, low=x * 0.99, high=x * 1.01, repeats=3)
            for n, x in column("demo", table)[0].items()
        )
        surface = Surface(
            schema="opsctl/surface/v1",
            profile=name,
            fingerprint=fingerprint(config.profiles[name]),
            speculative=name == "eagle3",
            points=points,
        )
        surface_files.save(instance.state_dir, surface)
    return instance


async def steps_are(instance: Serving, steps: int) -> dict[str, Any]:
    return await status_when(
        instance,
        lambda s: s["load"]["speculative_steps"] == steps,
        f"{steps} draft steps",
        seconds=60,
    )


async def test_the_engine_stops_drafting_under_load_and_begins_again_without_a_restart(
    tmp_path: Path,
) -> None:
    with measured(tmp_path) as instance:
        first = await serves(instance, "eagle3")
        assert first["watchdog"]["mechanism"] == "in_engine"
        async with traffic(first, 2) as quiet:
            await steps_are(instance, 3)
        async with traffic(first, BURST) as burst:
            await steps_are(instance, 0)
            await more(burst, BURST)
        async with traffic(first, 2) as after:
            last = await steps_are(instance, 3)
        assert failures(quiet) + failures(burst) + failures(after) == []
        assert last["engine"]["pid"] == first["engine"]["pid"]
        assert last["switches"] == 0
        assert last["engine"]["adaptive"]["verdict"] == "following"
        [adapts] = events(instance, "engine_adapts")
        assert adapts["profile"] == "eagle3"
        assert Path(adapts["file"]).is_relative_to(instance.state_dir)
        assert len(events(instance, "adaptive_follows")) == 1
        assert events(instance, "adaptive_static") == []
        assert not any(entry["action"] == "switch" for entry in events(instance, "decision"))
        assert_stops_clean(instance)


@pytest.mark.slow
async def test_an_engine_that_fell_back_to_fixed_steps_is_found_out_and_switched_instead(
    tmp_path: Path,
) -> None:
    """SGLang says nothing of it but in its log; here not even there."""
    changes = {
        "eagle3": {"sim-fault": "adaptive_static"},
        "auto_spec": {"policy": "sustained_load"},
    }
    with measured(tmp_path, **changes) as instance:
        first = await serves(instance, "eagle3")
        async with traffic(first, BURST) as burst:
            await serves(instance, "baseline")
            await more(burst, BURST)
        assert failures(burst) == []
        [static] = events(instance, "adaptive_static")
        told = re.match(
            r"3 draft steps with (\d+) running, .* its file allows 0", static["evidence"]
        )
        assert told, static["evidence"]
        assert 2 < int(told[1]) <= BURST
        status = instance.status()
        assert status is not None
        assert status["watchdog"]["mechanism"] != "in_engine"
        assert "keeps to 3 draft steps" in status["watchdog"]["why_mechanism"]
        [switched] = events(instance, "switched")
        assert (switched["by"], switched["target"]) == ("policy", "baseline")
        assert_stops_clean(instance)


async def test_an_engine_that_does_not_fit_into_memory_with_it_is_started_without(
    tmp_path: Path,
) -> None:
    with measured(tmp_path, eagle3={"sim-fault": "adaptive_oom"}) as instance:
        status = await serves(instance, "eagle3")
        assert [entry["kind"] for entry in events(instance, "start_failed")] == ["out_of_memory"]
        assert len(events(instance, "adaptive_given_up")) == 1
        status = await status_when(
            instance, lambda s: s["watchdog"]["mechanism"] != "in_engine", "another mechanism"
        )
        assert "did not start with it (out_of_memory)" in status["watchdog"]["why_mechanism"]
        assert status["engine"]["adaptive"] is None
        assert_stops_clean(instance)


async def test_what_sglang_cannot_do_is_not_tried_even_when_it_is_asked_for(
    tmp_path: Path,
) -> None:
    changes = {"eagle3": {"speculative-eagle-topk": 4}, "auto_spec": {"mechanism": "in_engine"}}
    with measured(tmp_path, **changes) as instance:
        status = await serves(instance, "eagle3")
        assert status["watchdog"]["mechanism"] != "in_engine"
        assert "`speculative-eagle-topk` is 4" in status["watchdog"]["why_mechanism"]
        assert status["engine"]["adaptive"] is None
        assert events(instance, "engine_adapts") == []
        assert_stops_clean(instance)


async def test_an_engine_whose_log_says_that_it_will_not_adapt_is_believed_at_once(
    tmp_path: Path,
) -> None:
    """An operator's own file, with a draft tree that SGLang cannot adapt."""
    path = tmp_path / "steps.json"
    path.write_text('{"1": {"candidate_steps": [3]}, "8": {"candidate_steps": [0]}}')
    flags = {
        "speculative-adaptive": True,
        "speculative-adaptive-config": str(path),
        "speculative-eagle-topk": 4,
    }
    with serving(tmp_path, eagle3=flags) as instance:
        status = await serves(instance, "eagle3")
        assert status["engine"]["adaptive"]["verdict"] == "static"
        [static] = events(instance, "adaptive_static")
        assert "speculative_adaptive disabled: speculative_eagle_topk=4" in static["evidence"]
        assert_stops_clean(instance)


async def test_an_opsctl_that_is_killed_finds_its_engine_still_following(tmp_path: Path) -> None:
    with measured(tmp_path) as instance:
        first = await serves(instance, "eagle3")
        instance.process.kill()
        instance.process.wait(10)
        instance.__enter__()
        again = await status_when(
            instance, lambda s: s["state"] == "serving", "serving again", seconds=60
        )
        assert again["engine"]["pid"] == first["engine"]["pid"]
        assert again["engine"]["adopted"] is True
        assert again["watchdog"]["mechanism"] == "in_engine"
        async with traffic(again, BURST) as burst:
            await steps_are(instance, 0)
            await status_when(
                instance,
                lambda s: s["engine"]["adaptive"]["verdict"] == "following",
                "the verdict",
            )
        assert failures(burst) == []
        assert_stops_clean(instance)
