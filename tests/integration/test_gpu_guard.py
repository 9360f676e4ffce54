"""Starts and stops of serving beside a fake NVML: whose memory stands in the way, and what is done.

The engine is the simulated one behind an interpreter that answers to `-m sglang.launch_server`,
so that opsctl takes it for SGLang and asks NVML about it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl.config.schema import LaunchProfile
from opsctl.errors import PreconditionError
from opsctl.gpu import survey
from opsctl.gpu.guard import GpuGuard, Reap
from tests.support.fake_nvml import GIB, FakeNvml
from tests.support.gpu_holders import Holders, look_only_at, opsctl_argv
from tests.support.server import wait_until
from tests.support.simulated import configuration

CHILD = "sglang::scheduler_TP0"
NONCE = "0123456789abcdef0123456789abcdef"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="starts processes that look like others'")


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="guard-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def fake(folder: Path) -> FakeNvml:
    return FakeNvml.eight_sm120(folder)


@pytest.fixture
def holders(folder: Path, fake: FakeNvml) -> Iterator[Holders]:
    with Holders(folder, fake) as started:
        yield started


class Guarded:
    """A guard of a profile on GPUs 0 and 1, in this process, with the fake driver."""

    def __init__(self, folder: Path, holders: Holders) -> None:
        self.told: list[dict[str, Any]] = []
        self.guards: list[GpuGuard] = []
        self._folder = folder
        self._holders = holders

    def guard(self, reap: Reap = "own") -> GpuGuard:
        look_only_at([one.pid for one in self._holders.started], self._holders.device_prefix)
        made = GpuGuard(
            LaunchProfile(model="/m", flags={"tp-size": 2}),
            state_dir=self._folder / "state",
            reap_before_start=reap,
            record=lambda event, **facts: self.told.append({"event": event, **facts}),
        )
        self.guards.append(made)
        return made

    async def refusal(self, reap: Reap = "own") -> str:
        with pytest.raises(PreconditionError) as refused:
            await self.guard(reap).before_start()
        return refused.value.message


@pytest.fixture
def guarded(
    folder: Path, fake: FakeNvml, holders: Holders, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Guarded]:
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(survey.processes, "read", survey.processes.read)  # put back afterwards
    made = Guarded(folder, holders)
    yield made
    for guard in made.guards:
        guard.close()


async def test_free_gpus_are_no_obstacle(guarded: Guarded) -> None:
    await guarded.guard().before_start()
    assert guarded.told == []


async def test_own_dead_engines_on_these_gpus_are_ended_and_no_others(
    guarded: Guarded, holders: Holders
) -> None:
    here = holders.start(CHILD, gpus=[0], nonce=NONCE)
    elsewhere = holders.start(CHILD, gpus=[5], nonce=NONCE[::-1])
    await guarded.guard().before_start()
    assert not here.alive
    assert elsewhere.alive, "another instance may yet adopt it"
    (told,) = guarded.told
    assert told["event"] == "reaped_before_start"
    assert [target["pid"] for target in told["targets"]] == [here.pid]


async def test_never_means_never(guarded: Guarded, holders: Holders) -> None:
    orphan = holders.start(CHILD, gpus=[0], nonce=NONCE)
    assert f"pid {orphan.pid}" in await guarded.refusal("never")
    assert orphan.alive


async def test_a_stray_is_named_and_ended_only_when_the_configuration_says_so(
    guarded: Guarded, holders: Holders
) -> None:
    stray = holders.start(CHILD, gpus=[1])
    told = await guarded.refusal()
    assert f"pid {stray.pid} (sglang::scheduler_TP0 600, user root): stray engine" in told
    assert stray.alive
    await guarded.guard("stray").before_start()
    assert not stray.alive


async def test_somebody_elses_process_is_named_and_left_alone(
    guarded: Guarded, holders: Holders
) -> None:
    other = holders.start("python train.py", gpus=[0, 1])
    told = await guarded.refusal("stray")
    assert (
        f"2.0 GiB of GPU 0, 1 by pid {other.pid} (python train.py 600, user root): foreign" in told
    )
    assert other.alive


async def test_a_neighbour_on_other_gpus_is_no_obstacle(guarded: Guarded, holders: Holders) -> None:
    neighbour = holders.start("python train.py", gpus=[2, 3])
    await guarded.guard().before_start()
    assert neighbour.alive


async def test_a_driver_that_does_not_answer_is_a_refusal_within_its_deadline(
    guarded: Guarded, fake: FakeNvml
) -> None:
    fake.block("nvmlDeviceGetMemoryInfo_v2", gpu=0)
    async with asyncio.timeout(60):
        told = await guarded.refusal()
    assert "the GPU driver is unresponsive" in told
    fake.heal()


async def test_a_host_without_a_driver_starts_as_it_is(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH")
    await guarded.guard().before_start()


class Instance:
    """`opsctl serve` with the fake driver."""

    def __init__(self, folder: Path, holders: Holders) -> None:
        self.state = folder / "state"
        self._holders = holders
        interpreter = folder / "python"
        interpreter.write_text(
            f'#!/bin/sh\nshift 2\nexec "{sys.executable}" -m opsctl.engine.simulated "$@"\n'
        )
        interpreter.chmod(0o755)
        self.config = configuration(folder / "opsctl.yaml")
        document = yaml.safe_load(self.config.read_text())
        model = folder / "model"
        model.mkdir()
        (model / "config.json").write_text("{}")
        for profile in document["profiles"].values():
            profile |= {"engine": "sglang", "python": str(interpreter), "model": str(model)}
            profile["environment"] = {"PYTHONPATH": str(Path.cwd())}
        self.config.write_text(yaml.safe_dump(document))
        self._environment = {**os.environ, **holders.fake.environment, "HOME": str(folder)}

    def argv(self, *words: str) -> list[str]:
        return opsctl_argv(self._holders, *words, "--state-dir", str(self.state))

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*words),
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
            env=self._environment,
        )

    def serve(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.argv("serve", "--config", str(self.config)), env=self._environment
        )

    def status(self) -> dict[str, Any] | None:
        done = self.run("status", "-o", "json")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def when(self, condition: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            status = self.status()
            return status if status is not None and condition(status) else None

        return wait_until(look, seconds=60, what=what, every=0.2)

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = (self.state / "events.jsonl").read_text().splitlines()
        return [entry for entry in map(json.loads, lines) if entry["event"] == name]


def test_serve_refuses_a_held_gpu_by_name_and_starts_when_it_is_free(
    folder: Path, holders: Holders, fake: FakeNvml
) -> None:
    instance = Instance(folder, holders)
    other = holders.start("python train.py", gpus=[0])
    refused = instance.run("serve", "--config", str(instance.config))
    assert refused.returncode == 4
    assert f"GPU memory is held: 1.0 GiB of GPU 0 by pid {other.pid}" in refused.stderr
    assert other.alive
    assert instance.events("starting") == []
    fake.remove_process(other.pid)
    process = instance.serve()
    try:
        instance.when(lambda s: s["state"] == "serving", "it serves")
    finally:
        instance.run("stop")
        assert process.wait(30) == 0


def test_the_next_start_waits_until_nvml_says_that_the_memory_is_back(
    folder: Path, holders: Holders, fake: FakeNvml
) -> None:
    instance = Instance(folder, holders)
    process = instance.serve()
    try:
        status = instance.when(lambda s: s["state"] == "serving", "it serves")
        fake.set_process(status["engine"]["pid"], gpus=[0, 1], memory=90 * GIB, linger=2.0)
        switched = instance.run("switch", "baseline")
        assert switched.returncode == 0, switched.stderr
        (switch,) = instance.events("switched")
        assert switch["stop_s"] >= 2.0
        (stopped,) = instance.events("engine_stopped")
        assert (stopped["released"], stopped["memory"]) == (True, "verified")
    finally:
        instance.run("stop")
        assert process.wait(30) == 0


def test_memory_that_never_comes_back_starts_nothing_and_ends_in_4(
    folder: Path, holders: Holders, fake: FakeNvml
) -> None:
    instance = Instance(folder, holders)
    process = instance.serve()
    try:
        status = instance.when(lambda s: s["state"] == "serving", "it serves")
        fake.set_process(status["engine"]["pid"], gpus=[0, 1], memory=90 * GIB, linger=None)
        failed = instance.run("switch", "baseline")
        assert failed.returncode == 4, failed.stderr
        assert process.wait(60) == 4
        assert len(instance.events("starting")) == 1
        assert "180.0 GiB" in instance.events("not_released")[-1]["why"]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
