"""`opsctl patch` and FlashInfer's JIT cache: what a patch makes stale goes with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from opsctl.patching import apply as applying
from opsctl.patching import jit_cache
from tests.support.patch_targets import Answer, difference, patch, photograph, small

STALE = (
    "0.6.12/120a/cached_ops/trtllm_comm",
    "0.6.12/120f/cached_ops/trtllm_comm",
    "0.6.12/120f/generated/trtllm_comm_sm120",
)
OTHERS = (
    "0.6.12/120f/cached_ops/batch_decode",
    "0.6.14/120f/cached_ops/trtllm_comm",
    "0.6.12/120f/other/trtllm_comm",
)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache with builds that a patch of FlashInfer 0.6.12 makes stale, and others."""
    for name in (*STALE, *OTHERS):
        folder = tmp_path / "cache" / name
        folder.mkdir(parents=True)
        (folder / "module.so").write_text(name)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "module.so").write_text("mine")
    (tmp_path / "cache/0.6.12/120f/cached_ops/trtllm_comm_link").symlink_to(elsewhere)
    return tmp_path / "cache"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """SGLang 0.5.14 and its FlashInfer 0.6.12, as far as patches reach."""
    return small(tmp_path / "env")


def run(verb: str, root: Path, cache: Path, *words: str) -> Answer:
    chosen = words or ("--all",)
    return patch(verb, *chosen, "--site-packages", root, "--jit-cache", cache)


def test_stale_builds_go_when_it_is_applied_and_when_it_is_taken_back(
    root: Path, cache: Path
) -> None:
    before = photograph(cache)
    stale = sorted(str(cache / name) for name in STALE)
    tried = run("apply", root, cache, "--all", "--dry-run")
    assert tried.code == 3
    assert tried.document["wiped"] == stale
    assert difference(before, photograph(cache)) == []

    for verb in ("apply", "revert"):
        for name in STALE:
            (cache / name).mkdir(parents=True, exist_ok=True)
        done = run(verb, root, cache)
        assert done.code == 0, done.err
        assert done.document["wiped"] == stale
        gone = {x for x in before if x.startswith(STALE) and not x.endswith("_link")}
        assert set(difference(before, photograph(cache))) == gone
    assert (cache.parent / "elsewhere/module.so").read_text() == "mine"


def test_a_patch_that_touches_no_kernel_wipes_nothing(root: Path, cache: Path) -> None:
    before = photograph(cache)
    done = run("apply", root, cache, "--only", "torch-symm-mem")
    assert (done.code, done.document["wiped"]) == (0, [])
    assert run("apply", root, cache, "--only", "torch-symm-mem").code == 0
    assert difference(before, photograph(cache)) == []


def test_when_the_change_fails_they_are_put_back(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, builds = photograph(root), photograph(cache)

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device", str(root))

    monkeypatch.setattr(applying, "_whole", fails)
    done = run("apply", root, cache)
    assert done.code == 4, done.err
    assert "no space left" in done.err
    assert difference(tree, photograph(root)) == []
    assert difference(builds, photograph(cache)) == []


def test_builds_that_cannot_be_moved_stop_the_change(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, builds = photograph(root), photograph(cache)
    rename = Path.rename

    def refused(path: Path, target: Path) -> Path:
        if "generated" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refused)
    done = run("apply", root, cache)
    assert done.code == 4
    assert "a stale build cannot be put aside: Permission denied" in done.err
    assert difference(tree, photograph(root)) == []
    assert difference(builds, photograph(cache)) == []


def test_what_a_killed_run_had_put_aside_goes_with_the_next(root: Path, cache: Path) -> None:
    child = multiprocessing.get_context("fork").Process(target=_die_aside, args=(root, cache))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert list(cache.rglob("*.opsctl-stale"))
    done = run("apply", root, cache)
    assert done.code == 0, done.err
    assert not list(cache.rglob("*.opsctl-stale"))


def _die_aside(root: Path, cache: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            jit_cache.shutil,
            "rmtree",
            lambda *_, **__: None,  # type: ignore[attr-defined]
        )
        patched.setattr(applying, "_whole", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        run("apply", root, cache)
