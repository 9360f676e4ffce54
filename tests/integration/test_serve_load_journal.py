"""What `opsctl serve --auto-spec` records can be played again, and survives opsctl itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opsctl.autospec import surface_files
from opsctl.autospec.history import Decided, Record, Seen, SetUp, Switched, parse
from opsctl.autospec.retrace import retrace
from opsctl.autospec.surface import Point, Surface
from opsctl.bench.traffic import keep_busy
from opsctl.config.load import load
from opsctl.profiles.fingerprint import fingerprint
from tests.support.server import wait_until
from tests.support.serving import Serving
from tests.support.simulated import job, serving

COST_AWARE = {"policy": "cost_aware", "sustained_load": {"high": 8, "low": 3}}


def journal(instance: Serving) -> list[Record]:
    path = instance.state_dir / "load.jsonl"
    return list(parse(path.read_text().splitlines())) if path.exists() else []


def of(records: list[Record], kind: type[Any]) -> list[Any]:
    return [record for record in records if isinstance(record, kind)]


def samples(instance: Serving, least: int) -> list[Record]:
    """The journal, once it holds so many samples."""

    def enough() -> list[Record] | None:
        records = journal(instance)
        return records if len(of(records, Seen)) >= least else None

    return wait_until(enough, seconds=60, what=f"{least} samples", every=0.3)


def differences(records: list[Record]) -> Iterator[str]:
    return (step.difference for step in retrace(records) if step.difference)


def measured(tmp_path: Path, *, top: float = 2.0) -> None:
    """Surfaces of both profiles, as `opsctl tune` would write them.

    The draft wins alone; with 64 streams it has `1 + top` times the speed of one, the other 11.
    """
    config = load([tmp_path / "opsctl.yaml"], environment={}).config
    for name, base, rise in (("eagle3", 100.0, top), ("baseline", 60.0, 10.0)):
        surface = Surface(
            schema="opsctl/surface/v1",
            profile=name,
            fingerprint=fingerprint(config.profiles[name]),
            speculative=name == "eagle3",
            points=tuple(
                Point(concurrency=n, context=0, tok_s=base * (1 + (n - 1) / 63 * rise))
                for n in (1, 8, 64)
            ),
        )
        surface_files.save(tmp_path / "state", surface)


async def busy(instance: Serving, streams: int, seconds: float) -> None:
    """Keep streams in flight for a while."""
    status = await asyncio.to_thread(instance.wait_serving)
    enough = asyncio.Event()
    task = asyncio.create_task(keep_busy(job(status, 24), streams, enough))
    await asyncio.sleep(seconds)  # traffic over time is what is recorded
    enough.set()
    async with asyncio.timeout(90):
        await task


async def test_a_recorded_history_leads_to_the_same_decisions(tmp_path: Path) -> None:
    slow = {"sim_start_time": 2.5}  # so that samples are taken meanwhile
    with serving(tmp_path, "--auto-spec", baseline=slow) as instance:
        await asyncio.to_thread(instance.wait_serving, "eagle3")
        await busy(instance, 20, 12.0)
        wait_until(lambda: len(of(journal(instance), Switched)) >= 2, seconds=60, what="a switch")
        assert instance.opsctl("stop").returncode == 0
        instance.process.wait(20)
        records = journal(instance)
    assert list(differences(records)) == []
    steps = list(retrace(records))
    assert sum(step.recorded is not None for step in steps) >= 2, "decisions were compared"
    seen = of(records, Seen)
    assert seen[-1].sample.completed > 0
    assert any(s.sample.generated for s in seen), "tokens come from the engine's metrics"
    assert any(s.sample.generated is None for s in seen), "and only when they are read"
    assert any(s.serving is None for s in seen), "the switch is in it, with what waited"
    done = [s for s in of(records, Switched) if s.stage == "done"]
    assert done[0].target == "baseline"
    assert done[0].closed_s > 0


def with_high_mark(setup: SetUp, high: float) -> SetUp:
    assert setup.plan.marks is not None
    marks = setup.plan.marks.model_copy(update={"high": high})
    return replace(setup, plan=setup.plan.model_copy(update={"marks": marks}))


async def test_another_policy_would_not_have_come_to_these_decisions(tmp_path: Path) -> None:
    with serving(tmp_path, "--observe") as instance:
        await asyncio.to_thread(instance.wait_serving, "eagle3")
        await busy(instance, 20, 6.0)
        records = journal(instance)
    assert list(differences(records)) == []
    changed = [with_high_mark(x, 99) if isinstance(x, SetUp) else x for x in records]
    assert list(differences(changed)), "or the comparison would prove nothing"


async def test_cost_aware_remembers_across_a_restart_and_replays_the_same(tmp_path: Path) -> None:
    changes = {"auto_spec": COST_AWARE}
    with serving(tmp_path, **changes):
        pass  # writes the configuration
    measured(tmp_path)
    with serving(tmp_path, "--auto-spec", **changes) as instance:
        await busy(instance, 6, 5.0)
        first = len(of(samples(instance, 8), Seen))
        assert instance.opsctl("stop").returncode == 0
        instance.process.wait(20)
    with serving(tmp_path, "--auto-spec", **changes) as instance:
        await busy(instance, 2, 4.0)
        status = instance.status()
        records = samples(instance, first + 4)
    assert status is not None
    assert status["watchdog"]["no_surface"] is None
    assert [s["profile"] for s in status["watchdog"]["surfaces"]] == ["eagle3", "baseline"]
    starts = [s for s in of(records, SetUp) if s.why == "start"]
    assert len(starts) == 2
    assert starts[0].restored == 0
    assert starts[1].restored >= first
    assert of(records, Decided)
    assert list(differences(records)) == []


def test_without_a_surface_it_says_so_and_takes_one_up_at_a_reload(tmp_path: Path) -> None:
    with serving(tmp_path, "--auto-spec", auto_spec=COST_AWARE) as instance:
        status = instance.wait_serving("eagle3")
        assert status["automation"] == "observe"
        assert "never measured" in status["watchdog"]["no_surface"]
        assert "opsctl bench run --profile eagle3" in status["watchdog"]["to_measure"]
        assert "no_surface" in instance.output.read_text()
        samples(instance, 2)
        table = instance.opsctl("status").stdout
        assert "then `opsctl tune`" in " ".join(table.split())

        measured(tmp_path)
        pid = status["engine"]["pid"]
        assert instance.opsctl("reload").returncode == 0

        def sees() -> dict[str, Any] | None:
            now = instance.status()
            return now if now and now["watchdog"]["no_surface"] is None else None

        now = wait_until(sees, seconds=30, what="the surfaces are taken up", every=0.2)
        assert now["automation"] == "on"
        assert now["engine"]["pid"] == pid, "the engine serves on"


def test_a_surface_of_another_profile_is_refused_with_the_reason(tmp_path: Path) -> None:
    with serving(tmp_path, auto_spec=COST_AWARE):
        pass
    measured(tmp_path)
    path = surface_files.path_of(tmp_path / "state", "baseline")
    content = json.loads(path.read_text()) | {"fingerprint": "sha256:0"}
    path.write_text(json.dumps(content))
    with serving(tmp_path, "--auto-spec", auto_spec=COST_AWARE) as instance:
        status = instance.wait_serving("eagle3")
        assert "baseline has changed since it was measured" in status["watchdog"]["no_surface"]


@pytest.mark.parametrize(("top", "started"), [(10.0, "eagle3"), (2.0, "baseline")])
def test_the_policy_says_which_profile_to_start_when_nobody_else_does(
    tmp_path: Path, top: float, started: str
) -> None:
    changes: dict[str, Any] = {"auto_spec": COST_AWARE, "serve": {"profile": ""}}
    with serving(tmp_path, **changes):
        pass
    measured(tmp_path, top=top)
    with serving(tmp_path, "--auto-spec", **changes) as instance:
        assert instance.wait_serving()["profile"] == started


def test_what_a_switch_took_is_remembered_by_the_next_opsctl(tmp_path: Path) -> None:
    with serving(tmp_path, "--auto-spec") as instance:
        instance.wait_serving("eagle3")
        assert instance.opsctl("switch", "baseline").returncode == 0
        status = instance.wait_serving("baseline")
        cost = status["watchdog"]["costs"]["baseline"]
        assert cost["seen"] == 1
        assert 0 < cost["closed_s"] < 30
        assert status["watchdog"]["costs"]["eagle3"]["seen"] == 0
        assert instance.opsctl("stop").returncode == 0
        instance.process.wait(20)
    with serving(tmp_path, "--auto-spec") as instance:
        assert instance.wait_serving()["watchdog"]["costs"]["baseline"] == cost
