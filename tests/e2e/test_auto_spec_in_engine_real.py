"""A real SGLang on CPU that opsctl started with the steps it had measured, and one that refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl.autospec import surface_files
from opsctl.autospec.surface import Point, Surface
from opsctl.bench.traffic import Job, keep_busy
from opsctl.config.load import load
from opsctl.profiles.fingerprint import fingerprint
from tests.support.server import wait_until
from tests.support.serving import Serving
from tests.support.sglang_cpu.environment import SglangEnvironment
from tests.support.sglang_cpu.profiles import SERVED_NAME, baseline, eagle3, write_configuration

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1200)]

TABLES = {"baseline": {1: 100, 2: 150, 3: 200, 8: 400}, "eagle3": {1: 140, 2: 170, 3: 150, 8: 150}}
"""Made up: drafting pays up to two streams."""


def measured(environment: SglangEnvironment, tmp_path: Path, **flags: Any) -> Serving:
    """An instance whose pair has surfaces; `flags` are added to the speculative profile."""
    draft = eagle3(environment)
    changes: dict[str, Any] = {"flags": {**draft.flags, **flags}}
    if "speculative-eagle-topk" in flags:  # the simulated accept length is for a topk of 1
        changes["environment"] = environment.environment
    profiles = {
        "eagle3": draft.model_copy(update=changes),
        "baseline": baseline(environment),
    }
    path = write_configuration(tmp_path / "opsctl.yaml", profiles)
    document = yaml.safe_load(path.read_text())
    # The tiny draft gets its accept length from a variable, in which the profiles then differ.
    pair = {"speculative": "eagle3", "baseline": "baseline", "mechanism": "in_engine"}
    path.write_text(yaml.safe_dump(document | {"auto_spec": pair}))
    config = load((path,), environment={}).config
    for name, table in TABLES.items():
        points = tuple(
            Point(concurrency=n, context=0, tok_s=x, low=x * 0.99, high=x * 1.01, repeats=3)
            for n, x in table.items()
        )
        surface = Surface(
            schema="opsctl/surface/v1",
            profile=name,
            fingerprint=fingerprint(config.profiles[name]),
            speculative=name == "eagle3",
            points=points,
        )
        surface_files.save(tmp_path / "state", surface)
    return Serving(("--auto-spec", "--config", str(path)), tmp_path / "state")


async def reaches(serving: Serving, steps: int) -> dict[str, Any]:
    """Wait until the status tells of `steps` draft steps."""

    def look() -> dict[str, Any] | None:
        status = serving.status()
        return status if status and status["load"]["speculative_steps"] == steps else None

    return await asyncio.to_thread(
        lambda: wait_until(look, seconds=150, what=f"{steps} draft steps", every=0.5)
    )


async def test_sglang_takes_the_file_that_opsctl_wrote_and_follows_it(
    sglang_environment: SglangEnvironment, tmp_path: Path
) -> None:
    with measured(sglang_environment, tmp_path) as serving:
        first = await asyncio.to_thread(serving.wait_serving, "eagle3", 300)
        assert first["watchdog"]["mechanism"] == "in_engine"
        job = Job(f"http://{first['listen']}", SERVED_NAME, max_tokens=400)
        status = first
        for streams, steps in ((1, 3), (6, 0), (1, 3)):
            enough = asyncio.Event()
            traffic = asyncio.create_task(keep_busy(job, streams, enough))
            try:
                status = await reaches(serving, steps)
            finally:
                enough.set()
                assert (await traffic).failed == []
        assert status["engine"]["pid"] == first["engine"]["pid"]
        assert status["switches"] == 0
        assert status["engine"]["adaptive"]["verdict"] == "following"
        assert serving.opsctl("stop").returncode == 0


async def test_sglang_s_own_word_that_it_keeps_its_steps_is_found_in_its_log(
    sglang_environment: SglangEnvironment, tmp_path: Path
) -> None:
    steps = tmp_path / "steps.json"
    steps.write_text('{"1": {"candidate_steps": [3]}, "3": {"candidate_steps": [0]}}')
    tree = {
        "speculative-eagle-topk": 2,
        "speculative-num-draft-tokens": 4,
        "speculative-adaptive": True,
        "speculative-adaptive-config": str(steps),
    }
    with measured(sglang_environment, tmp_path, **tree) as serving:
        status = await asyncio.to_thread(serving.wait_serving, "eagle3", 300)
        assert status["watchdog"]["mechanism"] != "in_engine"
        assert status["engine"]["adaptive"]["verdict"] == "static"
        assert "speculative_eagle_topk=2" in status["engine"]["adaptive"]["why"]
        assert serving.opsctl("stop").returncode == 0
