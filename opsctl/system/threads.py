"""Work that may hang, beside the event loop: on a file system that is gone, on a stuck process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

_POLL = 0.05
_busy: set[Hashable] = set()


async def aside(work: Callable[[], T], *, key: Hashable = None) -> T:
    """The result of `work`, done in a thread that nobody has to wait for.

    A thread of `asyncio.to_thread` that hangs takes a place in a small pool and keeps the program
    from ending; this one does neither. To bound it, wait with a deadline. Of the works with the
    same `key` one is begun at a time, so that what hangs does not pile up.
    """
    while key is not None and key in _busy:  # noqa: ASYNC110 - a thread, not the loop, ends it
        await asyncio.sleep(_POLL)
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: Exception | None) -> None:
        if answer.done():  # nobody waits any more
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except Exception as error:
            failure = error
        _busy.discard(key)
        with suppress(RuntimeError):  # the loop is gone
            loop.call_soon_threadsafe(deliver, result, failure)

    if key is not None:
        _busy.add(key)
    threading.Thread(target=run, name="aside", daemon=True).start()
    return await answer
