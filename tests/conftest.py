"""Fixtures shared by all rooms of the test-suite."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest

from opsctl.system import subreaper
from tests.support.sglang_cpu.environment import SglangEnvironment, UnavailableError, provide

_PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture(scope="session")
def sglang_environment() -> SglangEnvironment:
    """A real SGLang on CPU; skips with the reason where it cannot be had."""
    try:
        return provide()
    except UnavailableError as error:
        pytest.skip(f"no real SGLang here: {error}")


@pytest.fixture(autouse=True)
def orphans_go_to_init() -> Iterator[None]:
    """Undo what a test that spawned an engine has made of this process: an adopter of orphans.

    Otherwise later tests would see orphans with a living parent, and zombies nobody reaps.
    """
    yield
    if subreaper.active():
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
