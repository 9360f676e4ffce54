from __future__ import annotations

import socket
import time
from contextlib import suppress
from pathlib import Path

from opsctl.serve.notify import Notifier


def test_a_systemd_that_does_not_listen_any_more_holds_nobody_up(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(path))
        with suppress(BlockingIOError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as full:
            full.setblocking(False)
            while True:
                full.sendto(b"WATCHDOG=1", str(path))
        notifier = Notifier({"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "5000000"})
        begun = time.monotonic()
        for _ in range(5):
            notifier.alive()
            notifier.extend(60.0)
        assert time.monotonic() - begun < 5


def test_a_reason_with_a_name_that_is_no_text_is_told_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(path))
        systemd.settimeout(5)
        Notifier({"NOTIFY_SOCKET": str(path)}).send(STATUS="cannot start /opt/\udcff")
        assert systemd.recv(100) == b"STATUS=cannot start /opt/?"
