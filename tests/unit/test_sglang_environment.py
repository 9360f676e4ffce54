"""Where real SGLang cannot be had, its tests are skipped with a reason, never passed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.sglang_cpu import environment
from tests.support.sglang_cpu.environment import UnavailableError, cache_folder, provide


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPSCTL_TEST_CACHE", str(tmp_path))
    return tmp_path


def test_without_a_source_of_packages_the_reason_is_pips(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(UnavailableError, match=r"No matching distribution found for torch"):
        provide()
    assert not list(empty_cache.glob("*/complete"))


def test_a_cuda_build_of_torch_is_not_fetched(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = ["filelock", "nvidia-cudnn-cu13==9; platform_system == 'Linux'", "cuda-bindings"]
    needs.append("nvidia-optional; extra == 'rare'")
    calls = []

    def run(argv: list[str]) -> str:
        calls.append(argv)
        return json.dumps({"install": [{"metadata": {"version": "2", "requires_dist": needs}}]})

    monkeypatch.setattr(environment, "_run", run)
    with pytest.raises(UnavailableError, match=r"CUDA build of torch.*2 CUDA packages"):
        provide()
    assert len(calls) == 1
    assert "--dry-run" in calls[0]


def test_an_unfinished_build_is_thrown_away(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = json.dumps({"install": [{"metadata": {"requires_dist": ["filelock"]}}]})
    seen = []

    def run(argv: list[str]) -> str:
        if "--dry-run" not in argv:
            seen.append(sorted(path.name for path in empty_cache.glob("sglang-cpu-*/*")))
            raise UnavailableError("interrupted")
        return plan

    monkeypatch.setattr(environment, "_run", run)
    for _ in range(2):
        with pytest.raises(UnavailableError, match="interrupted"):
            provide()
        (folder,) = (path for path in empty_cache.glob("sglang-cpu-*") if path.is_dir())
        (folder / "half").touch()
    assert seen == [[], []]


def test_the_cache_is_where_the_variables_say() -> None:
    assert cache_folder({"OPSCTL_TEST_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_folder({"XDG_CACHE_HOME": "/b"}) == Path("/b/opsctl-tests")
    assert cache_folder({}) == Path.home() / ".cache/opsctl-tests"
