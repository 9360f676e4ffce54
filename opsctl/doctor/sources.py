"""Where the readers look, so that tests can give them another host."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from opsctl.config.schema import Config
from opsctl.gpu import kernel_log, survey
from opsctl.gpu.kernel_log import Xid
from opsctl.gpu.model import Census


@dataclass(frozen=True)
class Sources:
    """Roots of file trees, and the readings that are not files."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    shm: Path = Path("/dev/shm")  # noqa: S108 - it is looked at, nothing is put there
    local: Path = Path("/usr/local")
    loader_cache: Callable[[], str] | None = None
    """What `ldconfig -p` prints; None runs it."""
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    look: Callable[[Sequence[str]], Census] = survey.look
    xids: Callable[[], tuple[Xid, ...] | None] = kernel_log.read

    def at(self, path: str) -> Path:
        """Where a file of /proc or /sys is read."""
        for root, place in (("/proc/", self.proc), ("/sys/", self.sys)):
            if path.startswith(root):
                return place / path.removeprefix(root)
        return Path(path)


@dataclass(frozen=True)
class Subject:
    """What the host is to be fit for: the configuration, or an interpreter named instead."""

    config: Config | None = None
    python: str | None = None
    no_config: str = "there is no configuration"
    """Why there is none."""


def text(path: Path, limit: int = 1 << 20) -> str | None:
    """Read a small file; None when it is not there or may not be read."""
    try:
        with path.open("rb") as file:
            return file.read(limit).decode(errors="replace")
    except OSError:
        return None


def number(path: Path) -> int | None:
    """Read a file that holds one number."""
    content = text(path)
    try:
        return None if content is None else int(content.strip(), 0)
    except ValueError:
        return None
