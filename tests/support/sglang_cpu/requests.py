"""What the tests of a real server ask it, and which of its processes is which."""

from __future__ import annotations

import json
import urllib.request

import psutil

from tests.support.server import wait_until
from tests.support.serving import Serving
from tests.support.sglang_cpu.profiles import SERVED_NAME


def complete(url: str, tokens: int) -> tuple[int, int]:
    """Ask for one completion without streaming; its status and how many tokens came."""
    body = {"model": SERVED_NAME, "prompt": "hello world", "max_tokens": tokens, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=240) as response:
        return response.status, json.load(response)["usage"]["completion_tokens"]


def engine_process(main: int, title: str) -> psutil.Process:
    """Return the process of an engine that has retitled itself to `title`."""
    found = [
        process
        for process in psutil.Process(main).children(recursive=True)
        if " ".join(process.cmdline()).strip() == title
    ]
    (process,) = found
    return process


def text(port: int, path: str) -> str:
    """Return what the engine itself answers to a GET."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
        return str(response.read(), "utf-8")


def wait_running(port: int) -> None:
    """Wait until the engine itself says that it runs a request."""

    def running() -> bool:
        ranks = json.loads(text(port, "/v1/loads"))["loads"]
        return any(rank["num_running_reqs"] > 0 for rank in ranks)

    wait_until(running, seconds=60, what="a request runs", every=0.02)


def wait_load(serving: Serving, **wanted: int) -> None:
    """Wait until the status tells of this load (see `load` there)."""

    def reached() -> bool:
        status = serving.status()
        return status is not None and wanted.items() <= status["load"].items()

    wait_until(reached, seconds=60, what=f"the load is {wanted}", every=0.05)
