from __future__ import annotations

import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from opsctl.errors import TemporaryError
from opsctl.system import files
from opsctl.system.lock import lock


def test_a_file_is_replaced_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_text("old")
    path.chmod(0o644)
    files.write_atomic(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    files.write_atomic(path, b"\x00", mode=0o640)
    assert path.read_bytes() == b"\x00"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "state"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    with (
        lock(path),
        pytest.raises(TemporaryError, match="the demo is in use"),
        lock(path, what="the demo"),
    ):
        pytest.fail("two holders")
    with lock(path):
        pass


def hold_and_die(path: Path) -> None:
    with lock(path):
        os._exit(0)


def test_the_lock_of_a_dead_process_is_free(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=hold_and_die, args=(tmp_path / "lock",)
    )
    process.start()
    process.join(30)
    assert process.exitcode == 0
    with lock(tmp_path / "lock"):
        pass
