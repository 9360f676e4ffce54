from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from opsctl.system.threads import aside


async def test_results_and_errors_come_back() -> None:
    def fail() -> None:
        raise KeyError("x")

    assert await aside(lambda: 5) == 5
    assert await aside(threading.get_ident) != threading.get_ident()
    with pytest.raises(KeyError):
        await aside(fail)


async def test_what_hangs_does_not_pile_up() -> None:
    release, begun = threading.Event(), threading.Semaphore(0)

    def hang() -> str:
        begun.release()
        release.wait(30)
        return "done"

    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(aside(hang, key="disk"), 0.2)
    assert begun.acquire(timeout=5)
    assert not begun.acquire(blocking=False), "the first still hangs: no second was begun"
    assert await aside(lambda: "free", key="another") == "free"
    again = asyncio.ensure_future(aside(hang, key="disk"))
    release.set()
    assert await asyncio.wait_for(again, 10) == "done"


def test_a_program_ends_although_a_thread_hangs() -> None:
    code = """
import asyncio, time
from opsctl.system.threads import aside
async def main():
    try:
        await asyncio.wait_for(aside(lambda: time.sleep(1000)), 0.1)
    except TimeoutError:
        print("given up")
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "given up\n"
