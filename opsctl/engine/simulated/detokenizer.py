"""The process `sglang::detokenizer`: turns token numbers into words on their way to the front."""

from __future__ import annotations

import select
from collections.abc import Callable

from opsctl.engine.simulated import words
from opsctl.engine.simulated.wire import Line


def run(scheduler: Line, front: Line, on_work: Callable[[], None]) -> None:
    """Pass emissions on, with their text, until the front is gone; `on_work` is called first.

    A dead scheduler is not noticed here, as in SGLang: the main process's watchdog is for that.
    """
    select.select([scheduler], [], [])
    on_work()
    while not front.closed:
        reading = [] if scheduler.closed else [scheduler]
        writing = [front] if front.pending else []
        select.select(reading, writing, [])
        front.flush()
        for batch in scheduler.receive():
            front.send(
                [
                    [rid, words.text(first, count) if count else "", count, finish, steps]
                    for rid, first, count, finish, steps in batch
                ]
            )
