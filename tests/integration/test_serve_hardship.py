"""What hosts, shells and clients do to a serving instance without meaning any harm."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import aiohttp
import psutil
import pytest
import yaml

from opsctl.bench.traffic import stream_once
from opsctl.serve.places import Places
from tests.support.chaos import Control, Document
from tests.support.server import wait_until
from tests.support.serving import Serving
from tests.support.simulated import configuration, job, serving

HANG_AFTER = 4.0  # as in tests.support.simulated


def assert_stops_clean(instance: Serving) -> None:
    stopped = instance.opsctl("stop")
    assert stopped.returncode == 0, stopped.stderr
    assert instance.process.wait(20) == 0
    assert instance.leftovers() == []


def shell(script: str) -> tuple[str, ...]:
    """Run what follows through a shell: `exec "$0" "$@"` within `script`."""
    return ("/bin/sh", "-c", script)


async def test_a_state_directory_may_lie_deeper_than_a_socket_address_is_long(
    tmp_path: Path,
) -> None:
    config = configuration(tmp_path / "opsctl.yaml")
    deep = tmp_path / ("verzeichnis " * 8) / "ä" / ("x" * 90)
    with Serving(("--config", str(config)), deep) as instance:
        status = await asyncio.to_thread(instance.wait_serving)
        async with aiohttp.ClientSession() as session:
            assert (await stream_once(session, job(status))).ok
        assert_stops_clean(instance)


@pytest.mark.parametrize("closed", ["0<&-", "2>&-", "0<&- 1>&- 2>&-"])
async def test_it_serves_without_standard_streams(tmp_path: Path, closed: str) -> None:
    instance = serving(tmp_path)
    instance.wrapper = shell(f'exec "$0" "$@" {closed}')
    with instance:
        status = await asyncio.to_thread(instance.wait_serving)
        async with aiohttp.ClientSession() as session:
            assert (await stream_once(session, job(status))).ok
        assert_stops_clean(instance)


@contextmanager
def unread(path: Path) -> Iterator[Path]:
    """A pipe with a reader that never reads."""
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    try:
        yield path
    finally:
        os.close(reader)


async def test_a_reader_of_its_output_that_stops_reading_does_not_stop_it(tmp_path: Path) -> None:
    instance = serving(tmp_path)
    with unread(tmp_path / "pipe") as pipe:
        instance.wrapper = shell(f'exec "$0" "$@" 2>"{pipe}"')
        with instance:
            status = await asyncio.to_thread(instance.wait_serving)
            control = Control(Places(instance.state_dir))
            async with asyncio.timeout(30):
                for _ in range(30):  # far more than the pipe takes
                    await control.ask("POST", "/v1/drain", {})
                    while (now := await control.status()) and now["state"] != "drained":
                        await asyncio.sleep(0.01)
                    await control.ask("POST", "/v1/drain", {"off": True})
            async with aiohttp.ClientSession() as session:
                assert (await stream_once(session, job(status))).ok
            assert len(instance.events()) >= 50
            assert_stops_clean(instance)


def connect(status: Document, *, window: int = 0) -> socket.socket:
    """A connection of a client; `window` bytes are what its system takes without it reading."""
    host, _, port = status["listen"].rpartition(":")
    client = socket.socket()
    if window:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    client.settimeout(30)
    client.connect((host, int(port)))
    return client


def head(length: int) -> bytes:
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % length
    )


def wait_for_client(instance: Serving) -> None:
    def waits() -> bool:
        status = instance.status()
        return status is not None and status["load"]["waiting_for_client"] == 1

    wait_until(waits, seconds=30, what="it waits for the client", every=0.2)


def assert_not_taken_for_hung(instance: Serving, before: Document) -> None:
    """A client is waited for, longer than an engine may hang, and the engine is left alone."""

    wait_for_client(instance)
    end = time.monotonic() + HANG_AFTER + 2.5
    while time.monotonic() < end:
        status = instance.status()
        assert status is not None
        assert status["engine"]["pid"] == before["engine"]["pid"], status["reason"]
    assert not [event for event in instance.events() if event["event"] == "engine_lost"]


async def test_a_client_that_does_not_send_its_body_is_no_hang_of_the_engine(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as instance:
        before = await asyncio.to_thread(instance.wait_serving)
        with connect(before) as client:
            client.sendall(head(9 << 20) + b"{")
            await asyncio.to_thread(assert_not_taken_for_hung, instance, before)
        async with aiohttp.ClientSession() as session:
            assert (await stream_once(session, job(before))).ok
        assert_stops_clean(instance)


async def test_a_client_that_does_not_read_its_answer_is_no_hang_of_the_engine(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, eagle3={"sim-time-scale": 0.001}) as instance:
        before = await asyncio.to_thread(instance.wait_serving)
        wanted = {
            "model": "demo",
            "messages": [{"role": "user", "content": "numbered words"}],
            "max_tokens": 100_000,
            "stream": True,
        }
        body = json.dumps(wanted).encode()
        with connect(before, window=4096) as client:
            client.sendall(head(len(body)) + body)
            await asyncio.to_thread(assert_not_taken_for_hung, instance, before)
            assert await asyncio.to_thread(client.recv, 15) == b"HTTP/1.1 200 OK"
        assert_stops_clean(instance)


async def test_a_client_that_stopped_reading_is_let_go_and_a_switch_does_not_wait_for_it(
    tmp_path: Path,
) -> None:
    fast = {"sim-time-scale": 0.001}
    serve = {"gateway": {"client_timeout": "3s"}}
    with serving(tmp_path, serve=serve, eagle3=fast) as instance:
        before = await asyncio.to_thread(instance.wait_serving)
        wanted = {"model": "demo", "prompt": "x", "max_tokens": 100_000, "stream": True}
        body = json.dumps(wanted).encode()
        with connect(before, window=4096) as client:
            client.sendall(head(len(body)).replace(b"/chat", b"") + body)
            assert await asyncio.to_thread(client.recv, 15) == b"HTTP/1.1 200 OK"
            switched = await asyncio.to_thread(instance.opsctl, "switch", "baseline")
            assert switched.returncode == 0, switched.stderr
        [gone] = [event for event in instance.events() if event["event"] == "clients_let_go"]
        assert (gone["reading"], gone["sending"]) == (1, 0)
        async with aiohttp.ClientSession() as session:
            assert (await stream_once(session, job(before))).ok
        assert_stops_clean(instance)


@pytest.mark.parametrize("size", [1 << 20, 9 << 20])
async def test_a_client_that_stopped_sending_is_let_go(tmp_path: Path, size: int) -> None:
    """One whose body is being read into memory, and one whose body goes on to the engine."""
    with serving(tmp_path, serve={"gateway": {"client_timeout": "3s"}}) as instance:
        before = await asyncio.to_thread(instance.wait_serving)
        with connect(before) as client:
            client.sendall(head(size) + b"{")
            with suppress(ConnectionResetError):
                assert await asyncio.to_thread(client.recv, 1000) == b""
        [gone] = [event for event in instance.events() if event["event"] == "clients_let_go"]
        assert (gone["reading"], gone["sending"]) == (0, 1)
        after = await asyncio.to_thread(instance.wait_serving)
        assert after["engine"]["pid"] == before["engine"]["pid"]
        assert (after["gateway"]["failed"], after["load"]["in_flight"]) == (0, 0)
        assert_stops_clean(instance)


async def test_a_slow_client_that_goes_on_reading_is_not_let_go(tmp_path: Path) -> None:
    serve = {"gateway": {"client_timeout": "2s"}}
    with serving(tmp_path, serve=serve, eagle3={"sim-time-scale": 0.001}) as instance:
        before = await asyncio.to_thread(instance.wait_serving)
        wanted = {"model": "demo", "prompt": "x", "max_tokens": 50_000, "stream": True}
        body = json.dumps(wanted).encode()
        with connect(before, window=4096) as client:
            client.sendall(head(len(body)).replace(b"/chat", b"") + body)
            await asyncio.to_thread(wait_for_client, instance)
            answer, end = b"", time.monotonic() + 6
            while time.monotonic() < end:
                answer += await asyncio.to_thread(client.recv, 4096)
                await asyncio.sleep(0.1)  # what a slow reader is
            while not answer.endswith(b"[DONE]\n\n\r\n0\r\n\r\n"):
                read = await asyncio.to_thread(client.recv, 1 << 20)
                assert read, answer[-100:]
                answer += read
        assert b" w49999" in answer
        assert not [event for event in instance.events() if event["event"] == "clients_let_go"]
        assert_stops_clean(instance)


async def test_more_clients_than_descriptors_do_not_make_it_blind(tmp_path: Path) -> None:
    instance = serving(tmp_path)
    instance.wrapper = shell('ulimit -n 256; exec "$0" "$@"')
    with instance:
        before = await asyncio.to_thread(instance.wait_serving)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            asked = (stream_once(session, job(before, 200)) for _ in range(150))
            outcomes = await asyncio.gather(*asked)
        served = [outcome for outcome in outcomes if outcome.ok]
        assert len(served) >= 32
        turned_away = [outcome for outcome in outcomes if not outcome.ok]
        assert turned_away
        assert all(outcome.tokens == 0 for outcome in turned_away)
        after = await asyncio.to_thread(instance.wait_serving)
        assert after["engine"]["pid"] == before["engine"]["pid"]
        assert after["gateway"]["rejected"] >= len(turned_away)
        assert_stops_clean(instance)


async def test_it_takes_all_descriptors_it_may_have(tmp_path: Path) -> None:
    instance = serving(tmp_path)
    instance.wrapper = shell('ulimit -Sn 128; exec "$0" "$@"')
    with instance:
        status = await asyncio.to_thread(instance.wait_serving)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            asked = (stream_once(session, job(status)) for _ in range(200))
            assert all(outcome.ok for outcome in await asyncio.gather(*asked))


BUSY_PARENT = """#!/bin/sh
{python} -c '
import os, time
while True:
    parent = os.fork()
    if parent == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(0.01)
        os._exit(0)
    os.waitpid(parent, 0)
    time.sleep(0.2)
' &
exec {python} "$@"
"""


async def test_orphans_of_the_engine_do_not_pile_up_as_zombies(tmp_path: Path) -> None:
    instance = serving(tmp_path)
    program = tmp_path / "python"
    program.write_text(BUSY_PARENT.format(python=sys.executable))
    program.chmod(0o755)
    path = tmp_path / "opsctl.yaml"
    document = yaml.safe_load(path.read_text())
    document["profiles"]["eagle3"]["python"] = str(program)
    path.write_text(yaml.safe_dump(document))
    with instance:
        await asyncio.to_thread(instance.wait_serving)
        opsctl = psutil.Process(instance.process.pid)
        seen: set[int] = set()

        def reaped() -> bool:
            now = {child.pid for child in opsctl.children() if is_zombie(child)}
            seen.update(now)
            return len(seen - now) >= 10

        await asyncio.to_thread(wait_until, reaped, seconds=30, what="zombies are reaped")
        assert_stops_clean(instance)


def is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A file system nobody may write to."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    path = tmp_path / "read-only"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def assert_refused(config: Path, state_dir: Path) -> None:
    done = serving(config.parent).opsctl(
        "serve", "--config", str(config), "--state-dir", str(state_dir)
    )
    assert done.returncode == 4
    assert f"cannot keep state in {state_dir}" in done.stderr
    assert "--state-dir" in done.stderr


def test_a_state_directory_that_cannot_be_written_is_named(tmp_path: Path, read_only: Path) -> None:
    config = configuration(tmp_path / "opsctl.yaml")
    assert_refused(config, read_only / "state")


def test_a_state_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    config = configuration(tmp_path / "opsctl.yaml")
    (tmp_path / "file").touch()
    assert_refused(config, tmp_path / "file" / "state")


async def test_what_it_says_it_listens_on_can_be_used(tmp_path: Path) -> None:
    with suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        with serving(tmp_path, "--listen", "[::1]:0") as instance:
            status = await asyncio.to_thread(instance.wait_serving)
            async with aiohttp.ClientSession() as session:
                assert (await stream_once(session, job(status))).ok
            assert_stops_clean(instance)
        return
    pytest.skip("no IPv6 here")


async def test_status_answers_while_an_earlier_engine_is_ended(tmp_path: Path) -> None:
    with serving(tmp_path, eagle3={"sim-linger": 2}) as first:
        before = await asyncio.to_thread(first.wait_serving)
        first.process.kill()
        first.process.wait(10)
        configuration(tmp_path / "opsctl.yaml", eagle3={"sim-seed": 7})
        with Serving(first.arguments, first.state_dir, sessions=first.sessions) as second:
            early = await asyncio.to_thread(
                wait_until, second.status, seconds=20, what="status answers", every=0.1
            )
            assert early["state"] == "starting"
            assert "earlier opsctl" in early["reason"]
            refused = await asyncio.to_thread(second.opsctl, "switch", "baseline")
            assert refused.returncode == 75
            after = await asyncio.to_thread(second.wait_serving)
            assert after["engine"]["pid"] != before["engine"]["pid"]
            assert_stops_clean(second)
