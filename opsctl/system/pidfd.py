"""Signals to exactly the process that was meant, whoever gets its number later."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterable
from typing import Literal

from opsctl.system import procfs

Delivery = Literal["sent", "gone", "denied"]


def open_pidfd(pid: int, start_time: int) -> int | None:
    """A descriptor for the process `pid` that started at `start_time` (clock ticks since boot).

    None when it is gone or the number belongs to another process now. The start time is read
    after the descriptor is open: from then on the number cannot change its owner unnoticed.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    found = procfs.stat(pid)
    if found is None or found.start_time != start_time:
        os.close(descriptor)
        return None
    return descriptor


def send(descriptor: int, number: signal.Signals) -> bool:
    """Signal through a pidfd; False when the process is gone or may not be signalled."""
    return deliver(descriptor, number) == "sent"


def deliver(descriptor: int, number: signal.Signals) -> Delivery:
    """Signal through a pidfd, and say why it could not be done (`denied`: no permission)."""
    try:
        signal.pidfd_send_signal(descriptor, number)
    except PermissionError:
        return "denied"
    except OSError:
        return "gone"
    return "sent"


def signal_process(pid: int, start_time: int, number: signal.Signals) -> bool:
    """Signal one process by identity; False when it is gone or may not be signalled."""
    descriptor = open_pidfd(pid, start_time)
    if descriptor is None:
        return False
    try:
        return send(descriptor, number)
    finally:
        os.close(descriptor)


def kill_group(group: int, *, witnesses: Iterable[int]) -> bool:
    """SIGKILL a process group at once, if one of `witnesses` is in it.

    A group's number is not given to another while the group has a member, so a known member
    proves whose group it is.
    """
    if not any((entry := procfs.stat(pid)) and entry.group == group for pid in witnesses):
        return False
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        return False
    return True


def has_exited(descriptor: int) -> bool:
    """Whether the process behind a pidfd has ended (a zombie has)."""
    poll = select.poll()
    with contextlib.suppress(OSError):
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(0))
    return True
