"""Process titles, as setproctitle sets them: the command line is wiped to the title alone."""

from __future__ import annotations

import ctypes
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_ARG_START = 47
_ARG_END = 48


def _prctl(option: int, value: int | bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    argument = ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value)
    if libc.prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def die_with_parent(signum: int) -> None:
    """Have the kernel send `signum` to this process when its parent dies."""
    _prctl(_PR_SET_PDEATHSIG, signum)


def set_title(title: str) -> None:
    """Show `title` in /proc/self/cmdline and its first 15 bytes as the process name.

    The argument area is overwritten in place. A last byte that is not NUL makes the kernel read
    /proc/PID/cmdline only up to the first NUL (fs/proc/base.c, get_mm_proctitle), so nothing of
    the old command line shows; where the area is too small, the command line stays as it was.
    """
    _prctl(_PR_SET_NAME, title.encode()[:15])
    stat = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
    # Fields 48 and 49; the name in field 2 may itself hold spaces and parentheses.
    fields = stat[stat.rindex(")") + 2 :].split()
    start, end = int(fields[_ARG_START - 2]), int(fields[_ARG_END - 2])
    area, data = end - start, title.encode()
    if start and area > len(data) + 1:
        ctypes.memset(start, 0, area)
        ctypes.memmove(start, data, len(data))
        ctypes.memset(end - 1, 1, 1)
