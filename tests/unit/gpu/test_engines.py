"""Recorded engines: what a state file says, and who of it still lives."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.gpu import engines, processes
from opsctl.gpu.model import KnownEngine
from opsctl.system import procfs
from opsctl.system.lock import lock
from tests.support.proc_tree import NONCE


@pytest.fixture
def main() -> Iterator[int]:
    """A living process that stands for an engine's main process."""
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    )
    yield child.pid
    child.communicate()


def record(directory: Path, main: int, /, *, supervisor: int, **changes: Any) -> None:
    """A state file as `opsctl serve` writes it."""
    found = procfs.stat(main)
    identity = {
        "nonce": NONCE,
        "pid": main,
        "start_time": found.start_time if found else 7,
        "session": main,
        "cgroup": None,
        "boot_id": procfs.boot_id(),
    } | changes
    document = {
        "schema": "opsctl/state/v1",
        "boot_id": identity["boot_id"],
        "pid": supervisor,
        "engine": {"identity": json.dumps(identity), "profile": "baseline"},
    }
    (directory / "run").mkdir(exist_ok=True)
    (directory / "state.json").write_text(json.dumps(document))


def known(directory: Path) -> KnownEngine | None:
    return next(iter(engines.known([directory])), None)


GONE = 2**22 + 1  # above the largest number Linux gives to a process


def test_an_engine_whose_supervisor_holds_the_lock_is_alive(tmp_path: Path, main: int) -> None:
    record(tmp_path, main, supervisor=GONE)
    with lock(tmp_path / "run/serve.lock"):
        found = known(tmp_path)
    assert found is not None
    assert (found.alive, found.gone, found.where) == (True, "", str(tmp_path))


def test_an_engine_whose_supervisor_is_gone_says_so(tmp_path: Path, main: int) -> None:
    record(tmp_path, main, supervisor=GONE)
    (tmp_path / "run/serve.lock").touch()
    found = known(tmp_path)
    assert found is not None
    assert (found.alive, found.main_alive) == (False, True)
    assert found.gone == f"its supervisor (pid {GONE})"


def test_a_living_process_with_the_supervisors_number_must_be_an_opsctl(
    tmp_path: Path, main: int
) -> None:
    record(tmp_path, main, supervisor=main)
    found = known(tmp_path)
    assert found is not None
    assert not found.alive


def test_without_a_visible_lock_a_living_opsctl_is_taken_for_the_recorded_one(
    tmp_path: Path, main: int
) -> None:
    program = tmp_path / "opsctl"
    program.write_text("import sys; print('here', flush=True); sys.stdin.read()")
    with subprocess.Popen(
        [sys.executable, str(program), "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as serve:
        assert serve.stdout is not None
        assert serve.stdout.readline(), "before that the kernel may not show its command yet"
        record(tmp_path, main, supervisor=serve.pid)
        found = known(tmp_path)
        serve.communicate()
    assert found is not None
    assert found.alive


def test_an_engine_whose_main_process_is_another_by_now_is_gone(tmp_path: Path, main: int) -> None:
    record(tmp_path, main, supervisor=GONE, start_time=1)
    with lock(tmp_path / "run/serve.lock"):
        found = known(tmp_path)
    assert found is not None
    assert (found.alive, found.gone) == (False, f"its main process (pid {main})")


def test_engines_of_an_earlier_boot_are_forgotten(tmp_path: Path, main: int) -> None:
    record(tmp_path, main, supervisor=GONE, boot_id="another")
    assert known(tmp_path) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        '{"boot_id": "B"}',
        '{"boot_id": "B", "pid": 1, "engine": null}',
        '{"boot_id": "B", "pid": 1, "engine": {"identity": "[]"}}',
        '{"boot_id": "B", "pid": 1, "engine": {"identity": 7}}',
        '{"boot_id": "B", "pid": 1, "engine": {"identity": "{\\"pid\\": \\"9\\"}"}}',
    ],
)
def test_damaged_state_files_hold_no_engine(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text.replace('"B"', json.dumps(procfs.boot_id())))
    assert known(tmp_path) is None


@pytest.mark.parametrize(
    "changes", [{"pid": 1}, {"pid": True}, {"nonce": ""}, {"nonce": 5}, {"session": "9"}]
)
def test_an_identity_that_proves_nothing_is_none(
    tmp_path: Path, main: int, changes: dict[str, Any]
) -> None:
    record(tmp_path, main, supervisor=GONE, **changes)
    assert known(tmp_path) is None


def test_state_directories_are_found_through_the_locks_of_living_opsctls(tmp_path: Path) -> None:
    state = tmp_path / "somewhere"
    (state / "run").mkdir(parents=True)
    held = os.open(state / "run/serve.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    program = tmp_path / "opsctl"
    program.write_text("import sys; sys.stdin.read()")
    with subprocess.Popen(
        [sys.executable, str(program), "serve"], stdin=subprocess.PIPE, pass_fds=[held]
    ) as serve:
        os.close(held)
        table = processes.read()
        found = engines.state_dirs(["/a"], {"OPSCTL_STATE_DIR": "/b"}, table)
        serve.communicate()
    assert found[:2] == (Path("/a"), Path("/b"))
    assert state in found
