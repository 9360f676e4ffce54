"""File descriptors of this process: the three everybody takes for granted, and enough others."""

from __future__ import annotations

import os
import resource
import sys


def ensure_standard_streams() -> None:
    """Put /dev/null where stdin, stdout or stderr were closed by whoever started this program.

    Otherwise the next file or socket gets their number, and what is meant for the terminal is
    written into it.
    """
    lowest = os.open(os.devnull, os.O_RDWR)
    while lowest < 3:
        lowest = os.open(os.devnull, os.O_RDWR)
    os.close(lowest)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115


def limit() -> int:
    """How many descriptors this process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_limit() -> None:
    """Allow this process as many descriptors as it may have.

    Two for every request in flight: with the 1024 that a shell or systemd gives, opsctl could not
    open a file of its own any more at 500 streams.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
