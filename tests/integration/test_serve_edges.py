"""Edges of a serving instance: who may control it, what it never shows, what systemd hears."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import yaml

from opsctl.bench.traffic import stream_once
from opsctl.serve.places import Places
from tests.support.server import wait_until
from tests.support.service_manager import Manager
from tests.support.serving import Serving
from tests.support.simulated import configuration, job, serving

KEY = "sk-a-key-that-must-not-be-seen"
NOBODY = 65534


def control_as(uid: int, path: Path) -> bytes:
    """Ask for the status over the socket as another user; the first line of the answer."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        answer = b"nothing"
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            with socket.socket(socket.AF_UNIX) as channel:
                channel.connect(str(path))
                channel.sendall(b"GET /v1/status HTTP/1.1\r\nHost: opsctl\r\n\r\n")
                answer = channel.recv(4096).split(b"\r\n")[0]
        except OSError as error:
            answer = type(error).__name__.encode()
        finally:
            os.write(writing, answer)
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


async def test_only_the_owner_may_control_it_even_when_the_modes_are_wrong(tmp_path: Path) -> None:
    with serving(tmp_path) as instance:
        await asyncio.to_thread(instance.wait_serving)
        path = Places(instance.state_dir).socket
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert control_as(os.geteuid(), path) == b"HTTP/1.1 200 OK"
        if os.geteuid() != 0:
            return  # only root can pretend to be somebody else
        assert control_as(NOBODY, path) == b"PermissionError"
        opened = [path, *(p for p in path.parents if p != Path("/") and p.owner() == "root")]
        modes = {p: p.stat().st_mode for p in opened}
        try:
            for place in opened:
                place.chmod(0o777)
            assert control_as(NOBODY, path) == b"HTTP/1.1 403 Forbidden"
        finally:
            for place, mode in modes.items():
                place.chmod(mode)


async def test_a_client_key_is_asked_for_and_never_shown(tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text(KEY + "\n")
    gateway = {"api_key": {"file": str(secret)}, "hold": {"time": "60s"}}
    serve = {"listen": "127.0.0.1:0", "profile": "eagle3", "gateway": gateway}
    with serving(tmp_path, serve=serve) as instance:
        status = await asyncio.to_thread(instance.wait_serving)
        wanted = job(status)
        async with aiohttp.ClientSession() as session:
            assert (await stream_once(session, wanted)).status == 401
            with_key = type(wanted)(**{**vars(wanted), "api_key": KEY})
            assert (await stream_once(session, with_key)).ok
            async with session.get(f"{wanted.url}/metrics") as answer:
                metrics = await answer.text()
        config = tmp_path / "opsctl.yaml"
        shown = [
            json.dumps(status),
            metrics,
            instance.opsctl("events", "-n", "1000", "-o", "json").stdout,
            instance.opsctl("logs", "-n", "1000").stdout,
            instance.opsctl("config", "show", "--config", str(config)).stdout,
            instance.output.read_text(),
            (instance.state_dir / "state.json").read_text(),
            *commands_and_environments(instance),
        ]
        assert all(shown)
        assert not any(KEY in text for text in shown)


def commands_and_environments(instance: Serving) -> list[str]:
    """Arguments and environment of opsctl and of everything it started."""
    main = psutil.Process(instance.process.pid)
    found = []
    for process in (main, *main.children(recursive=True)):
        found.append(" ".join(process.cmdline()) + json.dumps(process.environ()) + "-")
    return found


async def test_a_start_without_an_expected_log_line_is_told_as_degraded(tmp_path: Path) -> None:
    instance = serving(tmp_path)
    path = tmp_path / "opsctl.yaml"
    path.write_text(
        path.read_text().replace(
            "    served_name: demo\n",
            "    served_name: demo\n"
            "    expect_log: ['fired up and ready to roll', 'Using the fast kernel']\n",
        )
    )
    with instance:
        status = await asyncio.to_thread(instance.wait_serving)
        assert status["engine"]["degraded"] == ["Using the fast kernel"]
        assert "degraded: log lacks Using the fast kernel" in instance.opsctl("status").stdout
        assert any(event["event"] == "degraded" for event in instance.events())


async def test_systemd_hears_of_the_start_of_life_and_of_the_end(tmp_path: Path) -> None:
    instance = serving(tmp_path)
    path = tmp_path / "notify"
    instance.environment = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "5000000"}
    with Manager(path) as systemd, instance:
        await asyncio.to_thread(instance.wait_serving)
        heard = systemd.heard()
        starting = [m["STATUS"] for m in heard if m.get("STATUS", "").startswith("starting")]
        assert starting
        ready = next(i for i, message in enumerate(heard) if message.get("READY") == "1")
        assert not any("READY" in message for message in heard[:ready])
        assert any(int(m.get("EXTEND_TIMEOUT_USEC", 0)) > 0 for m in heard[:ready])
        assert any(message.get("WATCHDOG") == "1" for message in heard)
        assert instance.opsctl("stop").returncode == 0
        assert any(message.get("STOPPING") == "1" for message in systemd.heard())


def read_to_its_end(pid: int, path: Path) -> bool:
    """Whether a process has opened this file and stands at its end."""
    return any(
        Path(file.path) == path and file.position == path.stat().st_size
        for file in psutil.Process(pid).open_files()
    )


async def test_following_events_shows_what_comes(tmp_path: Path) -> None:
    with serving(tmp_path) as instance:
        await asyncio.to_thread(instance.wait_serving)
        follower = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("opsctl")),
            *("events", "-f", "-n", "0", "-o", "json", "--state-dir", str(instance.state_dir)),
            stdout=asyncio.subprocess.PIPE,
        )
        assert follower.stdout is not None
        try:
            seen: list[Any] = []
            async with asyncio.timeout(120):
                while not read_to_its_end(follower.pid, Places(instance.state_dir).events):
                    await asyncio.sleep(0.05)  # what came before is not followed
                await asyncio.to_thread(instance.opsctl, "drain")
                while "drained" not in seen:
                    seen.append(json.loads(await follower.stdout.readline())["event"])
        finally:
            follower.terminate()
            await follower.wait()
        assert "drain_asked" in seen


async def test_a_watched_status_goes_on_when_opsctl_is_started_again(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        await asyncio.to_thread(first.wait_serving)
        watcher = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("opsctl")),
            *("status", "--watch", "-o", "json", "--state-dir", str(first.state_dir)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert watcher.stdout is not None
        assert watcher.stderr is not None
        try:
            async with asyncio.timeout(60):
                await pid_shown(watcher.stdout, first.process.pid)
                first.process.kill()
                first.process.wait(10)
                assert b"no opsctl serves from" in await watcher.stderr.readline()
                with Serving(first.arguments, first.state_dir) as second:
                    await pid_shown(watcher.stdout, second.process.pid)
                    assert second.opsctl("stop").returncode == 0
        finally:
            watcher.terminate()
            await watcher.wait()


async def pid_shown(stream: asyncio.StreamReader, pid: int) -> None:
    """Read until a status of this opsctl comes."""
    while f'"pid": {pid},' not in (await stream.readline()).decode():
        pass


async def test_a_stop_in_the_middle_of_a_start_leaves_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, eagle3={"sim-start-time": 20}) as instance:
        await asyncio.to_thread(wait_until, instance.status, seconds=20, what="the socket answers")
        assert instance.opsctl("stop").returncode == 0
        assert instance.process.wait(20) == 0
        assert instance.leftovers() == []


async def test_a_profile_that_a_reload_took_away_is_not_started_again(tmp_path: Path) -> None:
    with serving(tmp_path) as instance:
        before = await asyncio.to_thread(instance.wait_serving, "eagle3")
        path = tmp_path / "opsctl.yaml"
        document = yaml.safe_load(path.read_text())
        del document["profiles"]["eagle3"], document["auto_spec"]
        document["serve"]["profile"] = "baseline"
        path.write_text(yaml.safe_dump(document))
        reloaded = instance.opsctl("reload")
        assert reloaded.returncode == 0, reloaded.stderr
        assert "is gone from the configuration" in reloaded.stderr
        os.kill(before["engine"]["pid"], signal.SIGKILL)
        after = await asyncio.to_thread(instance.wait_serving, "baseline")
        assert after["engine"]["pid"] != before["engine"]["pid"]


async def test_serving_goes_on_when_nobody_reads_what_it_tells(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    instance = serving(tmp_path)
    instance.state_dir.mkdir()
    os.close(reading)
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("opsctl")),
        *("serve", *instance.arguments, "--state-dir", str(instance.state_dir)),
        stderr=writing,
    )
    os.close(writing)
    try:
        status = await asyncio.to_thread(
            wait_until, lambda: serves(instance), seconds=30, what="it serves"
        )
        async with aiohttp.ClientSession() as session:
            assert (await stream_once(session, job(status))).ok
    finally:
        process.terminate()
        assert await process.wait() == 0


def serves(instance: Serving) -> dict[str, Any] | None:
    """The status once it serves."""
    status = instance.status()
    return status if status is not None and status["state"] == "serving" else None


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 80 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    path = tmp_path / "small"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


async def test_a_full_disk_stops_neither_serving_nor_a_restart(
    tmp_path: Path, small_disk: Path
) -> None:
    config = configuration(tmp_path / "opsctl.yaml")
    with Serving(("--config", str(config)), small_disk / "state") as instance:
        before = await asyncio.to_thread(instance.wait_serving, "eagle3")
        ballast = small_disk / "ballast"
        with pytest.raises(OSError, match="No space left"):
            ballast.write_bytes(bytes(100 * 2**20))
        async with aiohttp.ClientSession() as session:
            assert (await stream_once(session, job(before))).ok
            refused = await asyncio.to_thread(instance.opsctl, "switch", "baseline")
            assert refused.returncode == 4
            assert "MiB are free" in refused.stderr
            os.kill(before["engine"]["pid"], signal.SIGKILL)
            again = await asyncio.to_thread(
                wait_until, lambda: replaced(instance, before), seconds=30, what="restarted"
            )
            assert again["profile"] == "eagle3", "the running engine was not given up"
            assert (await stream_once(session, job(again))).ok
            ballast.unlink()
            switched = await asyncio.to_thread(instance.opsctl, "switch", "baseline")
            assert switched.returncode == 0, switched.stderr


def replaced(instance: Serving, before: dict[str, Any]) -> dict[str, Any] | None:
    """The status once another engine serves."""
    status = serves(instance)
    if status is None or status["engine"]["pid"] == before["engine"]["pid"]:
        return None
    return status


@pytest.mark.parametrize("damage", ["", "{", '{"engine": {"identity": "{}"}}'])
async def test_a_damaged_state_file_does_not_double_the_engine(tmp_path: Path, damage: str) -> None:
    with serving(tmp_path) as first:
        before = await asyncio.to_thread(first.wait_serving)
        first.process.kill()
        first.process.wait(10)
        state = first.state_dir / "state.json"
        if damage.startswith('{"'):
            document = json.loads(state.read_text())
            document["engine"]["identity"] = "{}"
            damage = json.dumps(document)
        state.write_text(damage)
        with Serving(first.arguments, first.state_dir) as second:
            after = await asyncio.to_thread(second.wait_serving)
            assert after["engine"]["pid"] != before["engine"]["pid"]
            gone = before["engine"]["pid"]
            await asyncio.to_thread(
                wait_until, lambda: not psutil.pid_exists(gone), seconds=10, what="reaped by init"
            )
            recovered = [e for e in second.events() if e["event"] == "recovered"]
            assert "no state file tells of" in recovered[0]["why"]
            assert before["engine"]["pid"] in recovered[0]["killed"]
            assert second.opsctl("stop").returncode == 0
        assert first.leftovers() == []


async def test_somebody_who_only_writes_to_the_log_is_not_an_engine(tmp_path: Path) -> None:
    instance = serving(tmp_path)
    log = Places(instance.state_dir).engine_log
    log.parent.mkdir(parents=True)
    with log.open("ab") as output:
        innocent = subprocess.Popen(["sleep", "60"], stdout=output)
    try:
        with instance:
            await asyncio.to_thread(instance.wait_serving)
            assert innocent.poll() is None
            assert instance.opsctl("stop").returncode == 0
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


async def test_stop_tells_when_serving_did_not_end_well(tmp_path: Path) -> None:
    with serving(tmp_path, eagle3={"sim-linger": "never"}) as instance:
        await asyncio.to_thread(instance.wait_serving)
        stopped = await asyncio.to_thread(instance.opsctl, "stop")
        assert stopped.returncode == instance.process.wait(10) == 4
        assert "GiB of accelerator memory" in stopped.stderr


async def test_a_switch_to_what_serves_already_is_no_error(tmp_path: Path) -> None:
    with serving(tmp_path) as instance:
        before = await asyncio.to_thread(instance.wait_serving)
        done = instance.opsctl("switch", "eagle3", "-o", "json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["engine"]["pid"] == before["engine"]["pid"]


async def test_a_switch_that_is_asked_for_twice_is_one_switch(tmp_path: Path) -> None:
    with serving(tmp_path) as instance:
        await asyncio.to_thread(instance.wait_serving)
        ask = asyncio.to_thread(instance.opsctl, "switch", "--no-wait", "baseline")
        assert (await ask).returncode == 0
        both = [asyncio.to_thread(instance.opsctl, "switch", "baseline") for _ in "ab"]
        assert [done.returncode for done in await asyncio.gather(*both)] == [0, 0]
        status = instance.status()
        assert status is not None
        assert (status["profile"], status["switches"]) == ("baseline", 1)
        begun = [event for event in instance.events() if event["event"] == "switch_begun"]
        assert len(begun) == 1


async def test_a_failed_switch_says_what_failed(tmp_path: Path) -> None:
    with serving(tmp_path, baseline={"sim-fault": "start_failure=1:oom"}) as instance:
        await asyncio.to_thread(instance.wait_serving)
        failed = await asyncio.to_thread(instance.opsctl, "switch", "baseline")
        assert failed.returncode == 1
        assert "still serving eagle3" in failed.stderr
        assert "out of memory" in failed.stderr
