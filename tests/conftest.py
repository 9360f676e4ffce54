"""Fixtures shared by all rooms of the test-suite."""

from __future__ import annotations

import pytest

from tests.support.sglang_cpu.environment import SglangEnvironment, UnavailableError, provide


@pytest.fixture(scope="session")
def sglang_environment() -> SglangEnvironment:
    """A real SGLang on CPU; skips with the reason where it cannot be had."""
    try:
        return provide()
    except UnavailableError as error:
        pytest.skip(f"no real SGLang here: {error}")
