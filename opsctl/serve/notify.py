"""Telling systemd how serving stands (sd_notify protocol, systemd.exec(5) and sd_notify(3))."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


class Notifier:
    """Sends datagrams to `NOTIFY_SOCKET`; does nothing where there is none."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        microseconds = environment.get("WATCHDOG_USEC", "")
        for_us = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._watchdog = for_us and microseconds.isdigit()

    def alive(self) -> None:
        """Tell systemd's watchdog, if it asked, that the owner loop still turns."""
        if self._watchdog:
            self._tell({"WATCHDOG": 1}, patience=0.0)

    def extend(self, seconds: float) -> None:
        """Ask systemd to wait this much longer, from now, for a start or a stop to end."""
        self._tell({"EXTEND_TIMEOUT_USEC": int(seconds * 1_000_000)}, patience=0.0)

    def offer(self, **fields: str | int) -> bool:
        """Send assignments such as READY=1 if there is room; False when there was none."""
        return self._tell(fields, patience=0.0)

    def send(self, **fields: str | int) -> None:
        """The same, and wait a second for room; never raises, systemd may be restarting."""
        self._tell(fields, patience=1.0)

    def _tell(self, fields: Mapping[str, str | int], *, patience: float) -> bool:
        """Wait at most `patience` seconds for room. What is told again and again waits for none:
        a systemd that hangs must not take the gateway with it."""
        if not self._address:
            return True
        address = self._address
        if address.startswith("@"):
            address = "\0" + address[1:]
        message = "\n".join(f"{name}={value}" for name, value in fields.items())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.settimeout(patience)
                channel.sendto(message.encode(errors="replace"), address)
        except OSError:
            return False
        return True
