from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from opsctl.gpu import cleanup, jit_locks
from opsctl.gpu.jit_locks import Cache
from opsctl.system import procfs
from tests.support.gpu_holders import wait_until

HOLD = """
import sys, time
files = [open(path, 'a') for path in sys.argv[1:]]
print(1, flush=True)
time.sleep(600)
"""


@contextmanager
def holding(*paths: Path, argv: tuple[str, ...] = (), cwd: Path | None = None) -> Iterator[int]:
    """A living process that has files open."""
    command = argv or (sys.executable, "-c", HOLD, *map(str, paths))
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=cwd) as process:
        try:
            assert process.stdout is not None
            if argv:  # the command line is empty for a moment after exec
                wait_until(lambda: procfs.title(process.pid, "?").startswith(argv[0]))
            else:
                process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


@pytest.fixture
def name() -> Iterator[str]:
    """A name in /dev/shm and the temporary directory that is the test's own."""
    own = uuid.uuid4().hex[:12]
    yield own
    for folder in ("/dev/shm", tempfile.gettempdir()):
        for path in Path(folder).glob(f"*{own}*"):
            real = path.is_dir() and not path.is_symlink()
            shutil.rmtree(path) if real else path.unlink()


def test_what_the_dead_had_goes_and_what_the_living_have_stays(name: str) -> None:
    mine, shared = Path(f"/dev/shm/psm_{name}_1"), Path(f"/dev/shm/psm_{name}_2")
    other = Path(f"/dev/shm/model_{name}")
    metrics = Path(tempfile.gettempdir()) / f"metrics{name}"
    metrics.mkdir()
    with holding(shared) as neighbour:
        with holding(mine, shared, other) as pid:
            gauge = metrics / f"gauge_all_{pid}.db"
            with holding(gauge):
                pass
            gauge.touch()
            belongings = cleanup.record([pid])
        assert {path for path, _ in belongings.segments} == {str(mine), str(shared)}
        found = cleanup.remove(belongings)
        assert found.removed == (str(mine),)
        assert found.kept == (str(shared),)
        assert neighbour
    assert other.exists()
    assert gauge.exists()  # nobody was seen to have it


def test_metric_files_go_with_their_directory(name: str) -> None:
    metrics = Path(tempfile.gettempdir()) / f"tmp{name}"
    metrics.mkdir()
    code = (
        "import os, sys, time; f = open(f'{sys.argv[1]}/gauge_all_{os.getpid()}.db', 'a');"
        "print(1, flush=True); time.sleep(600)"
    )
    argv = (sys.executable, "-c", code, str(metrics))
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        belongings = cleanup.record([process.pid])
        assert cleanup.remove(belongings).removed == ()  # it lives
        process.kill()
    assert len(cleanup.remove(belongings).removed) == 1
    assert not metrics.exists()


def test_a_socket_that_somebody_else_bound_meanwhile_stays(name: str) -> None:
    path = Path(tempfile.gettempdir()) / f"tmp{name}"
    code = (
        "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]);"
        "print(1, flush=True); time.sleep(600)"
    )
    argv = (sys.executable, "-c", code, str(path))
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        belongings = cleanup.record([process.pid])
        process.kill()
    path.unlink()
    with socket.socket(socket.AF_UNIX) as mine:
        mine.bind(str(path))
        assert cleanup.remove(belongings).removed == ()
        assert path.exists()


def test_a_directory_swapped_for_a_link_is_not_followed(name: str) -> None:
    base = Path(tempfile.gettempdir())
    work, victim = base / f"pymp-{name}", base / f"victim{name}"
    work.mkdir()
    target = work / "sglang_queue"
    with holding(target) as pid:
        belongings = cleanup.record([pid])
    assert len(belongings.files) == 1
    victim.mkdir()
    (victim / "sglang_queue").hardlink_to(target)
    shutil.rmtree(work)
    work.symlink_to(victim)
    assert cleanup.remove(belongings).removed == ()
    assert (victim / "sglang_queue").exists()


@pytest.fixture
def extensions(tmp_path: Path) -> Path:
    folder = tmp_path / "torch_extensions" / "fused"
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    (folder / "ninja.lock").touch()
    (folder / "fused.so").touch()
    return folder


def cache(folder: Path) -> Cache:
    return Cache(folder.parent, os.geteuid(), batons=True)


def test_a_stale_baton_is_reported_and_goes_when_asked(extensions: Path) -> None:
    found = {Path(lock.path).name: lock for lock in jit_locks.survey([cache(extensions)])}
    assert {(name, lock.kind, lock.stale) for name, lock in found.items()} == {
        ("lock", "baton", True),
        ("ninja.lock", "flock", True),
    }
    assert not any(lock.removed for lock in found.values())
    assert all(lock.removed for lock in jit_locks.survey([cache(extensions)], clear=True))
    assert sorted(path.name for path in extensions.iterdir()) == ["fused.so"]


def test_a_lock_that_is_open_stays_and_its_holder_is_named(extensions: Path) -> None:
    with holding(extensions / "lock") as pid:
        found = jit_locks.survey([cache(extensions)], clear=True)
    left = [lock for lock in found if not lock.removed]
    assert [(Path(lock.path).name, lock.holder) for lock in left] == [("lock", pid)]
    assert (extensions / "lock").exists()


def test_no_lock_goes_while_a_compiler_works_in_the_cache(extensions: Path, tmp_path: Path) -> None:
    ninja = tmp_path / "ninja"
    ninja.symlink_to(shutil.which("sleep") or "/bin/sleep")
    with holding(argv=(str(ninja), "600"), cwd=extensions) as pid:
        found = jit_locks.survey([cache(extensions)], clear=True)
        assert {(lock.holder, lock.removed) for lock in found} == {(pid, False)}
    with holding(argv=(str(ninja), "600"), cwd=tmp_path):
        assert all(lock.removed for lock in jit_locks.survey([cache(extensions)], clear=True))


def test_a_lock_held_by_nobody_that_can_be_seen_stays(
    extensions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jit_locks, "_opened", dict)  # as if the holder were on another host
    with (extensions / "ninja.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        found = {
            Path(lock.path).name: lock for lock in jit_locks.survey([cache(extensions)], clear=True)
        }
    assert not found["ninja.lock"].removed
    assert "another host" in found["ninja.lock"].why
    assert (extensions / "ninja.lock").exists()


def test_locks_of_other_users_are_not_even_looked_at(extensions: Path) -> None:
    other = Cache(extensions.parent, os.geteuid() + 1, batons=True)
    assert jit_locks.survey([other], clear=True) == ()
    assert (extensions / "lock").exists()


def test_caches_are_where_the_environment_puts_them(tmp_path: Path) -> None:
    environment = {
        "HOME": "/people/alice",
        "FLASHINFER_WORKSPACE_BASE": "/fast",
        "TORCH_EXTENSIONS_DIR": "/fast/ext",
        "XDG_CACHE_HOME": "/cache",
    }
    roots = [str(one.root) for one in jit_locks.caches(os.geteuid(), environment)]
    assert roots[:4] == [
        "/fast/.cache/flashinfer",
        "/cache/tvm-ffi",
        "/fast/ext",
        "/people/alice/.triton/cache",
    ]
