"""Real hosts for tests: Debian 12 and 13 under systemd, each fresh, each gone afterwards.

    with systemd_host("bookworm", files={"/etc/opsctl/opsctl.yaml": b"..."}) as host:
        host.run(["systemctl", "start", "opsctl"])

A host is a systemd-nspawn container, so it shares the machine's kernel. Not enforced there, since
the controllers may lie elsewhere: MemoryMax=, TasksMax=, CPUQuota=. /proc/sys and /sys are not
writable, and no kernel module can be loaded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.hosts.container import Wish, booted
from tests.support.hosts.debs import Package
from tests.support.hosts.gpu import gpu_files, show_gpus
from tests.support.hosts.host import BootError, Host
from tests.support.hosts.repository import DRIVERS, TOOLKITS, Repository, make_repository
from tests.support.hosts.rootfs import Distribution
from tests.support.hosts.wheels import Python, make_wheelhouse
from tests.support.sglang_cpu.environment import UnavailableError

__all__ = [
    "BootError",
    "Distribution",
    "Host",
    "Package",
    "Python",
    "Repository",
    "gpu_files",
    "show_gpus",
    "standin_repository",
    "systemd_host",
    "wheelhouse",
]

NOTHING: Mapping[str, Any] = {}


@contextlib.contextmanager
def systemd_host(
    distribution: Distribution,
    *,
    files: Mapping[str, bytes] = NOTHING,
    binds: Mapping[str, Path] = NOTHING,
    network: bool = False,
) -> Iterator[Host]:
    """Boot a fresh host; skips the test with the reason where this machine cannot.

    `files` are there before it boots, by absolute path; scripts and programs are executable.
    `binds` are folders of this machine that it sees, read only, by its path. Without `network`
    it has its own loopback and nothing else; with it, this machine's network.
    The first host ever takes a minute: its root filesystem is built and kept.
    """
    with contextlib.ExitStack() as stack:
        try:
            host = stack.enter_context(booted(Wish(distribution, files, binds, network)))
        except UnavailableError as error:
            pytest.skip(f"no systemd host here: {error}")
        yield host


def standin_repository(
    folder: Path,
    distribution: Distribution,
    driver: Sequence[str] = DRIVERS,
    toolkit: Sequence[str] = TOOLKITS,
) -> Repository:
    """Build a stand-in for NVIDIA's apt repository in an empty folder; skips where it cannot."""
    try:
        return make_repository(folder, distribution, driver, toolkit)
    except UnavailableError as error:
        pytest.skip(f"no stand-in repository here: {error}")


def wheelhouse(
    python: Python = "3.11", *, sglang: Sequence[str] = ("0.5.23",), extra: Sequence[str] = ()
) -> Path:
    """Return a folder of wheels for a host without network; skips where one cannot be had.

    In it: opsctl built from this tree, all that it requires, and stand-ins of SGLang, FlashInfer
    and torch for each release of SGLang asked for. `extra`: more packages, with what they need.
    bookworm has Python 3.11, trixie 3.13. Never write to the folder.
    """
    try:
        return make_wheelhouse(python, sglang, extra)
    except UnavailableError as error:
        pytest.skip(f"no wheels for a host here: {error}")
