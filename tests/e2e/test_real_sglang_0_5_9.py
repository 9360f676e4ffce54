"""`opsctl serve` with the oldest SGLang it supports: no /ready, no watchdog, an end by -9."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest

from opsctl.engine import loads as parse
from tests.support.server import session_processes
from tests.support.serving import Serving
from tests.support.sglang_cpu.environment import SglangEnvironment, UnavailableError, provide
from tests.support.sglang_cpu.profiles import baseline, write_configuration
from tests.support.sglang_cpu.requests import (
    complete,
    engine_process,
    text,
    wait_load,
    wait_running,
)

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.extended,
    pytest.mark.timeout(1200),
]

LONG = 300


@pytest.fixture(scope="session")
def old_sglang() -> SglangEnvironment:
    try:
        return provide("0.5.9")
    except UnavailableError as error:
        pytest.skip(f"no real SGLang 0.5.9 here: {error}")


def test_it_serves_survives_the_loss_of_its_scheduler_and_stops_cleanly(
    old_sglang: SglangEnvironment, tmp_path: Path
) -> None:
    path = write_configuration(tmp_path / "opsctl.yaml", {"tiny": baseline(old_sglang)})
    with (
        Serving(("--config", str(path)), tmp_path / "state") as serving,
        ThreadPoolExecutor() as pool,
    ):
        first = serving.wait_serving()
        url = f"http://{first['listen']}"
        assert complete(url, 20) == (200, 20)
        wait_load(serving, running=0, queued=0)  # known, which is more than None
        metrics = parse.from_metrics(text(first["engine"]["port"], "/metrics"))
        assert metrics is not None
        assert (metrics.running, metrics.queued, metrics.capacity_tokens) == (0, 0, 8192)
        assert (metrics.generation_tokens_total or 0) >= 20
        assert metrics.accept_length is None  # nothing is drafted

        # Left alone it would stay for ever, take requests and answer none.
        answer = pool.submit(complete, url, LONG)
        wait_running(first["engine"]["port"])
        pid = first["engine"]["pid"]
        engine_process(pid, "sglang::scheduler").kill()
        killed = time.time()
        assert answer.result(180) == (200, LONG)
        second = serving.wait_serving()
        assert second["engine"]["pid"] != pid
        assert session_processes(pid) == []
        (lost,) = (event for event in serving.events() if event["event"] == "engine_lost")
        assert (lost["kind"], "sglang::scheduler" in lost["why"]) == ("child_lost", True)
        assert datetime.fromisoformat(lost["time"]).timestamp() - killed < 3

        answer = pool.submit(complete, url, LONG)
        wait_running(second["engine"]["port"])
        stopped = serving.opsctl("stop")
        assert (stopped.returncode, stopped.stderr.splitlines()[-1]) == (0, "stopped")
        assert answer.result(30) == (200, LONG)
        assert serving.process.wait(30) == 0
        assert serving.leftovers() == []

        # 0.5.9 ends every drain by killing itself: that is its way to stop, and no crash.
        events = serving.events()
        end = [event for event in events if event["event"] == "engine_stopped"][-1]
        assert (end["exit_code"], end["escalated"], end["killed"]) == (-9, False, [])
        assert end["released"]
        assert len([event for event in events if event["event"] == "engine_lost"]) == 1
        # Readiness without /ready, and load from a /v1/loads that answers.
        log = (tmp_path / "state" / "logs" / "engine.log").read_text()
        assert '"GET /ready HTTP/1.1" 404' in log
        assert '"GET /health HTTP/1.1" 200' in log
        assert '"GET /v1/loads?include=core,spec HTTP/1.1" 200' in log
