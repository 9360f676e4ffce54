"""Log lines in SGLang's form, one write each, so that processes sharing the file never mix them."""

from __future__ import annotations

import os
import time


def say(message: str, *, rank: int | None = None) -> None:
    """Write `[time] message`, or `[time TPn] message`, to standard error."""
    who = "" if rank is None else f" TP{rank}"
    raw(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}{who}] {message}")


def raw(text: str) -> None:
    """Write one line as it is; a closed or full log never stops the engine."""
    try:
        os.write(2, (text + "\n").encode("utf-8", "backslashreplace"))
    except OSError:
        return
