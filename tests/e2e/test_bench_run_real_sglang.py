"""`opsctl bench run` with a real SGLang on CPU: its counters, load and usage are understood.

Speeds of a tiny model on a busy CPU mean nothing; what is tested is that every check had something
to stand on, and that tokens by usage are those that SGLang counted.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.bench.results import Cell, load
from tests.support.sglang_cpu.environment import SglangEnvironment
from tests.support.sglang_cpu.profiles import baseline, eagle3, write_configuration

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.extended,
    pytest.mark.timeout(1200),
]

MACHINE = ("the client was", "N/A")
"""Reasons that a test machine with two cores may give; all others are ours."""


def told(cell: Cell) -> list[str]:
    """Reasons that are not the machine's."""
    reasons = cell.reason.split("; ") if cell.reason else []
    return [reason for reason in reasons if not reason.startswith(MACHINE)]


def test_both_profiles_are_measured_and_every_check_has_its_source(
    sglang_environment: SglangEnvironment, tmp_path: Path
) -> None:
    profiles = {"baseline": baseline(sglang_environment), "eagle3": eagle3(sglang_environment)}
    config = write_configuration(tmp_path / "opsctl.yaml", profiles)
    out = tmp_path / "results"
    done = subprocess.run(
        [
            sys.executable, "-m", "opsctl", "bench", "run", "--profile", "baseline",
            "--profile", "eagle3", "--concurrency", "1,2", "--requests", "4", "--repeats", "1",
            "--output-tokens", "24", "--workload", "chat", "--out", str(out),
        ],
        env={**os.environ, "OPSCTL_CONFIG": str(config)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    result = load(out)
    assert result.complete, done.stderr
    assert [profile.speculative for profile in result.profiles] == [False, True]
    assert all(profile.versions["sglang"] for profile in result.profiles)
    assert len(result.cells) == 4
    for cell in result.cells:
        assert told(cell) == [], cell
        assert cell.extra["tokens_counted"] == cell.extra["tokens_sent"] > 0
        assert cell.output_tokens_mean == 24
        assert cell.prefix_cache_hit_rate is not None
        assert cell.extra["effective_concurrency_by"] == "engine"
        speculates = cell.profile == "eagle3"
        assert cell.extra["accept_length_by"] == ("counters" if speculates else None)
