"""Stands in for systemd's notification socket, over real datagrams."""

from __future__ import annotations

import socket
import threading
from pathlib import Path


class Manager:
    """Reads whatever is sent, at once and in order, as systemd does.

    A socket that nobody reads holds eleven messages; the sender then has to wait or to give up.
    """

    def __init__(self, path: Path) -> None:
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._channel.bind(str(path))
        self._news = threading.Condition()
        self._messages: list[dict[str, str]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Manager:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self._channel.getsockname())
        self._reader.join(10)
        self._channel.close()

    def heard(self) -> list[dict[str, str]]:
        """Every message so far, each as assignments."""
        with self._news:
            return list(self._messages)

    def forget(self) -> None:
        """Go on as if nothing had been heard."""
        with self._news:
            self._messages.clear()

    def index(self, name: str) -> int:
        """Place of the first message that assigns `name`; -1 when there is none."""
        return next((i for i, message in enumerate(self.heard()) if name in message), -1)

    def quiet_for(self, seconds: float) -> bool:
        """Whether nothing is heard for so long."""
        with self._news:
            return not self._news.wait_for(lambda: self._messages, seconds)

    def _read(self) -> None:
        while data := self._channel.recv(65536):
            message = dict(line.split("=", 1) for line in data.decode().splitlines())
            with self._news:
                self._messages.append(message)
                self._news.notify_all()
