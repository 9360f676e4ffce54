"""Some minutes in the life of an unlucky host, squeezed into seconds and drawn from a seed.

The seed and the length can be set: OPSCTL_CHAOS_SEED=7 OPSCTL_CHAOS_SECONDS=600.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from opsctl.bench.traffic import stream_once
from opsctl.serve.places import Places
from tests.support.chaos import SLOWEST_STATUS, Chaos, Clients, Control, Deed, Witness
from tests.support.server import free_port, wait_until
from tests.support.simulated import configuration, job, serving

SEED = int(os.environ.get("OPSCTL_CHAOS_SEED", "5"))
SECONDS = float(os.environ.get("OPSCTL_CHAOS_SECONDS", "30"))
STREAMS = 20


@pytest.mark.slow
@pytest.mark.timeout(int(SECONDS) + 300)
@pytest.mark.parametrize(
    "mechanism", [pytest.param("restart", marks=pytest.mark.extended), "gated_restart"]
)
async def test_whatever_happens_no_answer_is_wrong_and_nothing_is_doubled_or_left(
    tmp_path: Path, mechanism: str
) -> None:
    port = free_port()
    serve = {
        "mechanism": mechanism,
        "listen": f"127.0.0.1:{port}",
        "profile": "eagle3",
        "restart": {
            "backoff_first": "100ms", "backoff_max": "500ms",
            "budget": 1000, "quarantine_after": 3, "quarantine_for": "5s",
        },
        "health": {"hang_after": "4s", "probe_every": "3s", "probe_timeout": "3s"},
        "gateway": {"hold": {"time": "60s"}},
    }  # fmt: skip

    def write(variant: int) -> Path:
        eagle3: dict[str, object] = {"sim-seed": 7} if variant == 1 else {}
        marks = {"high": 8, "high_for": "2s", "low": 3 + variant, "low_for": "3s"}
        path = tmp_path / "opsctl.yaml"
        return configuration(path, eagle3=eagle3, serve=serve, auto_spec={"sustained_load": marks})

    instance = serving(tmp_path, "--auto-spec", serve=serve)
    control = Control(Places(instance.state_dir))
    witness = Witness(control, standbys=mechanism == "gated_restart")
    clients = Clients(f"http://127.0.0.1:{port}", STREAMS, SEED)
    with instance, Chaos(instance, control, SEED, write) as chaos:
        await asyncio.to_thread(instance.wait_serving)
        watching = asyncio.create_task(witness.watch())
        async with clients:
            await chaos.run(SECONDS)
            status = await chaos.settle()
        async with aiohttp.ClientSession() as session:
            assert (await stream_once(session, job(status))).ok, "it serves again"
        await asyncio.to_thread(
            wait_until, lambda: nothing_passes(instance.status()), seconds=10, what="counters at 0"
        )
        watching.cancel()
        journal = chaos.instance.opsctl("events", "-n", "100000", "-o", "json").stdout
        stopped = await asyncio.to_thread(chaos.instance.opsctl, "stop")
        assert stopped.returncode == 0, stopped.stderr
        assert chaos.instance.process.wait(20) == 0
        assert chaos.instance.leftovers() == []
    told = [json.loads(line) for line in journal.splitlines()]
    assert clients.wrong == []
    assert clients.outcomes["complete"] > SECONDS
    assert witness.doubles == []
    assert witness.looks > SECONDS / 3
    assert control.slowest < SLOWEST_STATUS
    assert [deed for deed in chaos.deeds if not is_told(deed, told)] == []
    assert [entry for entry in told if entry["event"] == "internal_error"] == []
    assert len([entry for entry in told if entry["event"] == "opsctl_started"]) <= chaos.starts


def nothing_passes(status: dict[str, Any] | None) -> bool:
    load = status["load"] if status is not None else {"in_flight": -1}
    return bool(load["in_flight"] == 0 and load["held"] == 0)


def is_told(deed: Deed, journal: list[dict[str, Any]]) -> bool:
    """Whether one of the events that tell of it was written after it was done."""
    later = {entry["event"] for entry in journal if entry["time"] >= deed.time}
    return not deed.told_by or bool(deed.told_by & later)
