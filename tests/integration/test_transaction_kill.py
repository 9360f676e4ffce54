"""A change of several files in real processes: killed at every step, on full and closed disks.

What a power cut leaves cannot be seen here; the unit tests hold the order of flushes.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from opsctl.errors import PreconditionError
from opsctl.system.transaction import apply, nothing, recover
from opsctl.system.transaction_files import STRAY
from tests.support.transactions import Step, plant, snapshot, steps, three

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
AFTER = ["elsewhere.py", "p", "p/a.py", "q", "q/r", "q/r/c.py", "top.py"]


class StopError(Exception):
    """What a check raises here."""


def stop() -> None:
    raise StopError


def environment(folder: Path) -> tuple[Path, Path]:
    """An environment with a hard-linked file, and a place for the journal."""
    root = folder / "site-packages"
    plant(root)
    (root / "elsewhere.py").hardlink_to(root / "p/a.py")
    return root, folder / "state/journal"


def change(root: Path, journal: Path, check: Callable[[], None] = nothing) -> None:
    apply(three(root), journal, root=root, check=check)


def in_a_child(work: Callable[..., object], *arguments: object) -> int | None:
    """Run in a forked process; returns its exit status, negative for a signal."""
    child = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    child.start()
    child.join(60)
    return child.exitcode


def killed_at(number: int, halfway: bool, work: Callable[[], object]) -> None:
    """Work until step `number`, and die before it, or with it half done where it has halves."""

    def act(name: str, step: Step) -> Any:
        if len(done) == number:
            try:
                if halfway and name.startswith("write"):
                    os_write(int(name.split()[1]), b"ne")
                elif halfway:
                    step()
            finally:
                os.kill(os.getpid(), signal.SIGKILL)
        return step()

    os_write = os.write
    with steps(act) as done:
        work()


@pytest.fixture
def unflushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flush nothing: a kill loses nothing that was written, and a busy disk takes its time."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.mark.usefixtures("unflushed")
@pytest.mark.parametrize("halfway", [False, True])
def test_killed_at_any_step_it_is_as_before_or_made_but_never_half(
    tmp_path: Path, halfway: bool
) -> None:
    made: list[bool] = []
    for number in itertools.count(1):
        root, journal = environment(tmp_path / str(number))
        before = snapshot(root)
        ended = in_a_child(killed_at, number, halfway, partial(change, root, journal))
        assert ended in {0, -signal.SIGKILL}
        left = journal.exists()
        assert recover(journal, root=root) is left
        assert not recover(journal, root=root)
        clean(root, journal)
        made.append(not left and (root / "p/a.py").read_bytes() == b"new a")
        if made[-1]:
            assert sorted(snapshot(root)) == AFTER
            assert (root / "elsewhere.py").read_text() == "old p/a.py"
        else:
            assert snapshot(root) == before, f"killed at step {number}"
        shutil.rmtree(tmp_path / str(number))
        if ended == 0:
            break
    assert made == sorted(made), "there is one moment that makes it"
    assert made.count(False) > 20
    assert made.count(True) > 2


def clean(root: Path, journal: Path) -> None:
    """Let the next change clear away what lies about without a journal, as it may."""
    left = [path for path in root.rglob("*") if STRAY.fullmatch(path.name)]
    unknown = [path for path in root.rglob(".*") if path not in left]
    assert unknown == [], "what a dead run leaves has a name to know it by"
    before = (root / "p/a.py").read_bytes()
    with pytest.raises(StopError):
        apply(three(root), journal, root=root, check=stop)
    assert (root / "p/a.py").read_bytes() == before
    assert [path for path in root.rglob("*") if STRAY.fullmatch(path.name)] == []
    assert list(journal.parent.iterdir()) == []


@pytest.mark.usefixtures("unflushed")
@pytest.mark.parametrize(
    ("switched", "halfway"), [("none", False), ("some", False), ("some", True), ("all", False)]
)
def test_killed_while_it_recovers_it_can_be_recovered_again(
    tmp_path: Path, switched: str, halfway: bool
) -> None:
    for number in itertools.count(1):
        root, journal = environment(tmp_path / str(number))
        before = snapshot(root)
        assert in_a_child(killed_after, switched, root, journal) == -signal.SIGKILL
        assert journal.exists()
        ended = in_a_child(killed_at, number, halfway, partial(recover, journal, root=root))
        assert ended in {0, -signal.SIGKILL}
        assert recover(journal, root=root) or not journal.exists()
        assert snapshot(root) == before, f"killed at step {number}"
        assert list(journal.parent.iterdir()) == []
        shutil.rmtree(tmp_path / str(number))
        if ended == 0:
            break
    assert number > 10


def killed_after(switched: str, root: Path, journal: Path) -> None:
    """Die with the journal written and none, some or all of the names switched."""
    names = {
        "none": f"mkdir {root / 'q'}",
        "some": f"unlink {root / 'p/b.py'}",
        "all": f"unlink {journal}",
    }

    def act(name: str, step: Step) -> Any:
        if name == names[switched]:
            os.kill(os.getpid(), signal.SIGKILL)
        return step()

    with steps(act):
        apply(three(root), journal, root=root)


def test_killed_from_outside_while_it_is_checked(tmp_path: Path) -> None:
    root, journal = environment(tmp_path)
    before = snapshot(root)
    context = multiprocessing.get_context("fork")
    checking = context.Event()

    def wait() -> None:
        checking.set()
        signal.pause()

    child = context.Process(target=change, args=(root, journal, wait), daemon=True)
    child.start()
    assert checking.wait(60)
    child.kill()
    child.join(60)
    assert (root / "p/a.py").read_bytes() == b"new a"
    assert recover(journal, root=root)
    assert snapshot(root) == before


def mounted(tmp_path: Path, options: str, script: str) -> str:
    """Run a script with `disk` being a file system of its own, seen by it alone."""
    disk = tmp_path / "disk"
    disk.mkdir(exist_ok=True)
    text = f"from pathlib import Path\ndisk = Path({str(disk)!r})\n{textwrap.dedent(script)}"
    mount = f'mount {options} "$1" && shift && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, "sh", str(disk), sys.executable, "-c", text],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare failed" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_full_disk_changes_nothing_and_is_said(tmp_path: Path) -> None:
    said = mounted(
        tmp_path,
        "-t tmpfs -o size=256k none",
        """
        from opsctl.errors import PreconditionError
        from opsctl.system.transaction import FileChange, apply
        from tests.support.transactions import plant, snapshot, three
        root = disk / "site-packages"
        plant(root)
        before = snapshot(root)
        changes = [*three(root), FileChange(root / "top.py", bytes(300_000))]
        try:
            apply(changes, disk / "journal", root=root)
        except PreconditionError as error:
            print(error)
        assert snapshot(root) == before
        assert sorted(path.name for path in disk.iterdir()) == ["site-packages"]
        """,
    )
    top = tmp_path / "disk/site-packages/top.py"
    assert said == f"{top}: no space left on the disk; nothing was changed"


def test_undoing_needs_no_space(tmp_path: Path) -> None:
    said = mounted(
        tmp_path,
        "-t tmpfs -o size=256k none",
        """
        import errno
        from opsctl.errors import PreconditionError
        from opsctl.system.transaction import apply
        from tests.support.transactions import plant, snapshot, three
        root = disk / "site-packages"
        plant(root)
        before = snapshot(root)
        def fill():
            with (disk / "others").open("wb", buffering=0) as file:
                while file.write(bytes(4096)) == 4096:
                    pass
        def fill_up():
            try:
                fill()
            except OSError as error:
                assert error.errno == errno.ENOSPC
            raise RuntimeError("the disk is full now")
        try:
            apply(three(root), disk / "journal", root=root, check=fill_up)
        except RuntimeError as error:
            print(error)
        assert snapshot(root) == before
        assert sorted(path.name for path in disk.iterdir()) == ["others", "site-packages"]
        """,
    )
    assert said == "the disk is full now"


def test_a_read_only_file_system_is_said(tmp_path: Path) -> None:
    plant(tmp_path / "disk/site-packages")
    before = snapshot(tmp_path / "disk")
    said = mounted(
        tmp_path,
        f"-o bind,ro '{tmp_path / 'disk'}'",
        f"""
        from opsctl.errors import PreconditionError
        from opsctl.system.transaction import apply
        from tests.support.transactions import three
        try:
            apply(three(disk / "site-packages"), Path({str(tmp_path)!r}) / "journal", root=disk)
        except PreconditionError as error:
            print(error)
        """,
    )
    path = tmp_path / "disk/site-packages/p/a.py"
    assert said == f"{path}: the file system is read-only; nothing was changed"
    assert snapshot(tmp_path / "disk") == before


@pytest.fixture
def of_root() -> Iterator[tuple[Path, Path]]:
    """An environment of root's that user `nobody` can read, and a state folder of its own."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory(prefix="opsctl-transaction-") as name:
        root, journal = environment(Path(name))
        Path(name).chmod(0o755)
        for path in root.rglob("*.py"):
            path.chmod(0o644)
        journal.parent.mkdir()
        os.chown(journal.parent, NOBODY, NOBODY)
        yield root, journal


def test_a_folder_of_somebody_else_is_said(of_root: tuple[Path, Path]) -> None:
    root, journal = of_root
    before = snapshot(root)
    assert in_a_child(refused_as_nobody, root, journal) == 0
    assert snapshot(root) == before
    assert list(journal.parent.iterdir()) == []


def refused_as_nobody(root: Path, journal: Path) -> None:
    become_nobody()
    with pytest.raises(PreconditionError) as raised:
        change(root, journal)
    assert str(raised.value) == f"{root / 'p/a.py'}: permission denied; nothing was changed"
    assert "as root" in str(raised.value.hint)


def test_files_that_may_not_be_linked_are_copied(of_root: tuple[Path, Path]) -> None:
    if Path("/proc/sys/fs/protected_hardlinks").read_text().strip() != "1":
        pytest.skip("this system lets everybody link everything (fs.protected_hardlinks)")
    root, journal = of_root
    for folder in (root, root / "p"):
        os.chown(folder, NOBODY, NOBODY)
    assert in_a_child(changed_as_nobody, root, journal) == 0
    assert (root / "elsewhere.py").read_text() == "old p/a.py"
    assert sorted(snapshot(root)) == AFTER


def changed_as_nobody(root: Path, journal: Path) -> None:
    become_nobody()
    with pytest.raises(PermissionError):
        (root / "p/link").hardlink_to(root / "p/a.py")
    with pytest.raises(StopError):
        change(root, journal, stop)
    assert (root / "p/a.py").read_text() == "old p/a.py"
    assert (root / "p/a.py").stat().st_mtime_ns == 2_000_000_009
    change(root, journal)
    assert (root / "p/a.py").read_bytes() == b"new a"


def become_nobody() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
