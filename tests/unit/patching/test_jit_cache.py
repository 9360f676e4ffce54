"""Stale builds of FlashInfer: found by version, put aside, put back."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.errors import PreconditionError
from opsctl.patching.jit_cache import builds, put_aside

GLOB = "trtllm_comm*"


def build(cache: Path, name: str, version: str = "0.6.12", kind: str = "cached_ops") -> Path:
    folder = cache / version / "120f" / kind / name
    folder.mkdir(parents=True)
    (folder / f"{name}.so").write_text("built")
    return folder


def names(cache: Path) -> list[str]:
    return sorted(str(x.relative_to(cache)) for x in cache.rglob("*") if not x.is_dir())


def test_only_what_matches_and_only_of_that_version_is_found(tmp_path: Path) -> None:
    stale = [
        build(tmp_path, "trtllm_comm"),
        build(tmp_path, "trtllm_comm_sm120"),
        build(tmp_path, "trtllm_comm", kind="generated"),
    ]
    build(tmp_path, "trtllm_comm", version="0.6.14")
    build(tmp_path, "trtllm_comm", version="0.6.1")
    build(tmp_path, "batch_decode")
    build(tmp_path, "my_trtllm_comm")
    build(tmp_path, "trtllm_comm", kind="other")
    assert builds([tmp_path], "0.6.12", {GLOB}) == sorted(stale)
    assert builds([tmp_path], "0.6.12", set()) == []
    assert builds([tmp_path / "none"], "0.6.12", {GLOB}) == []


def test_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    elsewhere = build(tmp_path / "elsewhere", "trtllm_comm")
    here = build(tmp_path / "cache", "batch").parent
    (here / "trtllm_comm").symlink_to(elsewhere)
    assert builds([tmp_path / "cache"], "0.6.12", {GLOB}) == []


def test_they_are_gone_afterwards_and_others_are_not(tmp_path: Path) -> None:
    stale, other = build(tmp_path, "trtllm_comm"), build(tmp_path, "batch_decode")
    with put_aside([stale]):
        assert not stale.exists()
    assert names(tmp_path) == [str((other / "batch_decode.so").relative_to(tmp_path))]


def test_on_an_error_all_are_put_back(tmp_path: Path) -> None:
    folders = [build(tmp_path, "trtllm_comm"), build(tmp_path, "trtllm_comm_2")]
    before = names(tmp_path)
    with pytest.raises(KeyboardInterrupt), put_aside(folders):
        raise KeyboardInterrupt
    assert names(tmp_path) == before


def test_one_that_cannot_be_moved_leaves_all(tmp_path: Path) -> None:
    first, second = build(tmp_path, "trtllm_comm"), tmp_path / "gone"
    before = names(tmp_path)
    with pytest.raises(PreconditionError, match="cannot be put aside"), put_aside([first, second]):
        raise AssertionError
    assert names(tmp_path) == before


def test_what_a_killed_run_had_put_aside_is_found_and_removed(tmp_path: Path) -> None:
    left = build(tmp_path, "trtllm_comm.opsctl-stale")
    new = build(tmp_path, "trtllm_comm")
    found = builds([tmp_path], "0.6.12", {GLOB})
    assert found == [new, left]
    with put_aside(found):
        pass
    assert names(tmp_path) == []


def test_a_cache_that_may_not_be_read_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path, "trtllm_comm")

    def refused(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", refused)
    with pytest.raises(PreconditionError, match="stale builds cannot be looked for"):
        builds([tmp_path], "0.6.12", {GLOB})
