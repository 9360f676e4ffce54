"""Whose server it is that answers on an engine's port."""

from __future__ import annotations

import os
from collections.abc import Collection

from opsctl.system import ports as tcp


def stranger(port: int, members: Collection[int]) -> tcp.Listener | None:
    """Who listens on `port` instead of `members`; None when they do, or when nobody can tell.

    An answer on the port does not prove that the engine gave it: in a port conflict SGLang warms
    up the other server and prints that it is ready itself (0.5.23). A socket of our own user
    whose owner cannot be read may be the engine's: a program with capabilities hides its files.
    """
    found = tcp.listeners((port,))
    if any(entry.pid in members for entry in found):
        return None
    others = (entry for entry in found if entry.pid is not None or entry.uid != os.geteuid())
    return next(others, None)
