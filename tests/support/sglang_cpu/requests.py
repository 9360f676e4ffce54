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


def wait_load(serving: Serving, **wanted: int) -> None:
    """Wait until the status tells of this load: `running` in the engine, `in_flight` to it."""

    def reached() -> bool:
        status = serving.status()
        return status is not None and wanted.items() <= status["load"].items()

    wait_until(reached, seconds=60, what=f"the load is {wanted}", every=0.05)
