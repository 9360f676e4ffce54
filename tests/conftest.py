"""Fixtures shared by all rooms of the test-suite."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from opsctl.system import subreaper
from tests.support.sglang_cpu.environment import SglangEnvironment, UnavailableError, provide

_PR_SET_CHILD_SUBREAPER = 36
_ON_GPUS = (
    "test_gpu",
    "test_doctor",
    "test_real_sglang",
    "test_serve_real",
    "test_bench_run_real",
    "test_auto_spec_in_engine_real",
)
"""Files that must not run at the same time: a driver that one makes hang, hangs for the host; and
a real SGLang on CPU takes all the cores there are."""

# Limits of time belong into benchmarks: a busy machine is no fault.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several processes a file stays in one of them, and what must not meet stays together.

    xdist's own groups (`--dist loadgroup`) had no effect with pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return "gpus" if path.rpartition("/")[2].startswith(_ON_GPUS) else path

    return ByFile(config, log)


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
