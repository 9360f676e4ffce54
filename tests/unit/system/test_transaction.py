from __future__ import annotations

import errno
import itertools
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opsctl.errors import PreconditionError
from opsctl.system.transaction import FileChange, apply, recover
from opsctl.system.transaction_files import mark
from tests.support.transactions import Step, plant, snapshot, steps, three


class Boom(BaseException):
    """An interrupt between any two steps."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "site-packages"
    plant(folder)
    return folder


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal"


def refuse() -> None:
    raise RuntimeError("the new files are wrong")


def unfinished(root: Path, journal: Path, changes: list[FileChange]) -> None:
    """Leave what a run that is killed after its last rename leaves."""

    def die() -> None:
        raise Boom

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Boom):
        patched.setattr("opsctl.system.transaction._give_up", lambda *_: None)
        apply(changes, journal, root=root, check=die)
    assert journal.exists()


def test_all_files_are_changed_and_nothing_is_left_over(root: Path, journal: Path) -> None:
    top = root / "top.py"
    before = snapshot(root)["top.py"]
    apply([*three(root), FileChange(top, b"t", mtime_ns=5, mode=0o755)], journal, root=root)
    assert sorted(snapshot(root)) == ["p", "p/a.py", "q", "q/r", "q/r/c.py", "top.py"]
    assert (root / "p/a.py").read_bytes() == b"new a"
    assert (root / "q/r/c.py").read_bytes() == b"new c"
    assert stat.S_IMODE((root / "q/r/c.py").stat().st_mode) == 0o644
    assert top.stat().st_mtime_ns == 5
    assert stat.S_IMODE(top.stat().st_mode) == 0o755
    assert snapshot(root)["top.py"] != before
    assert list(journal.parent.iterdir()) == []


def test_a_file_keeps_its_mode_and_owner_and_gets_a_new_time(root: Path, journal: Path) -> None:
    path = root / "p/b.py"
    if os.geteuid() == 0:
        os.chown(path, 12345, 23456)
    path.chmod(0o4750)
    was = path.stat()
    apply([FileChange(path, b"new")], journal, root=root)
    now = path.stat()
    assert (now.st_mode, now.st_uid, now.st_gid) == (was.st_mode, was.st_uid, was.st_gid)
    assert now.st_mtime_ns > was.st_mtime_ns


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_new_files_and_folders_belong_to_the_owner_of_the_environment(
    root: Path, journal: Path
) -> None:
    os.chown(root, 12345, 23456)
    apply([FileChange(root / "q/r/c.py", b"c")], journal, root=root)
    for path in (root / "q", root / "q/r", root / "q/r/c.py"):
        assert (path.stat().st_uid, path.stat().st_gid) == (12345, 23456)


def test_other_links_keep_the_old_content_and_the_old_file(
    root: Path, journal: Path, tmp_path: Path
) -> None:
    cached = tmp_path / "cache.py"
    cached.hardlink_to(root / "p/a.py")
    was = cached.stat()
    apply(three(root), journal, root=root)
    assert cached.read_text() == "old p/a.py"
    assert (cached.stat().st_ino, cached.stat().st_mtime_ns) == (was.st_ino, was.st_mtime_ns)
    assert cached.stat().st_nlink == 1
    assert (root / "p/a.py").stat().st_ino != was.st_ino


def test_hard_links_are_still_links_after_an_undone_change(
    root: Path, journal: Path, tmp_path: Path
) -> None:
    cached = tmp_path / "cache.py"
    cached.hardlink_to(root / "p/a.py")
    with pytest.raises(RuntimeError):
        apply(three(root), journal, root=root, check=refuse)
    assert cached.samefile(root / "p/a.py")
    assert cached.stat().st_nlink == 2


def test_the_check_sees_the_new_files_and_undoes_them_by_raising(root: Path, journal: Path) -> None:
    before = snapshot(root)

    def look() -> None:
        assert (root / "p/a.py").read_bytes() == b"new a"
        assert not (root / "p/b.py").exists()
        assert (root / "q/r/c.py").read_bytes() == b"new c"
        assert journal.exists()
        refuse()

    with pytest.raises(RuntimeError, match="the new files are wrong"):
        apply(three(root), journal, root=root, check=look)
    assert snapshot(root) == before
    assert list(journal.parent.iterdir()) == []


def test_a_folder_that_somebody_put_a_file_into_is_left(root: Path, journal: Path) -> None:
    def look() -> None:
        (root / "q/r/theirs").touch()
        refuse()

    with pytest.raises(RuntimeError):
        apply(three(root), journal, root=root, check=look)
    assert [p.name for p in (root / "q/r").iterdir()] == ["theirs"]
    assert not journal.exists()


def test_removing_what_is_not_there_changes_nothing(root: Path, journal: Path) -> None:
    before = snapshot(root)
    apply([FileChange(root / "none/such.py", None)], journal, root=root)
    assert snapshot(root) == before


def test_a_symbolic_link_is_refused_and_its_goal_untouched(root: Path, journal: Path) -> None:
    (root / "link.py").symlink_to("top.py")
    before = snapshot(root)
    for content in (b"new", None):
        changes = [*three(root), FileChange(root / "link.py", content)]
        with pytest.raises(PreconditionError, match=r"link\.py is a symbolic link"):
            apply(changes, journal, root=root)
    assert snapshot(root) == before
    assert not journal.exists()


def test_only_regular_files_below_the_root_are_changed(
    root: Path, journal: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (root / "leads-out").symlink_to(tmp_path / "outside")
    os.mkfifo(root / "pipe")
    before = snapshot(tmp_path)
    for path, why in {
        tmp_path / "outside/x.py": "is no file below",
        root / "leads-out/x.py": "is no file below",
        root / "../outside/x.py": "is no file below",
        root / f".opsctl-{'0' * 12}-{'0' * 8}-0.old": "is no file below",
        Path("relative.py"): "is no file below",
        root / "p": "is no regular file",
        root / "pipe": "is no regular file",
        root / "p/a.py/x": "Not a directory",
        root / "bytes-\udcff": "holds bytes that are no text",
    }.items():
        with pytest.raises(PreconditionError, match=why):
            apply([*three(root), FileChange(path, b"new")], journal, root=root)
        assert snapshot(tmp_path / "site-packages") == {
            name.removeprefix("site-packages/"): facts
            for name, facts in before.items()
            if name.startswith("site-packages/")
        }
    with pytest.raises(PreconditionError, match="is no directory"):
        apply([FileChange(root / "no/x", b"")], journal, root=root / "no")


def test_one_file_cannot_become_two_things(root: Path, journal: Path) -> None:
    twice = [FileChange(root / "top.py", b"1"), FileChange(root / "top.py", b"2")]
    with pytest.raises(ValueError, match="two changes"):
        apply(twice, journal, root=root)


def test_an_unfinished_change_is_undone_before_the_next_one(root: Path, journal: Path) -> None:
    before = snapshot(root)
    unfinished(root, journal, three(root))
    with pytest.raises(PreconditionError, match="was not finished"):
        apply(three(root), journal, root=root)
    assert recover(journal, root=root)
    assert snapshot(root) == before
    assert not recover(journal, root=root)
    apply(three(root), journal, root=root)
    assert not recover(journal, root=root)
    assert (root / "p/a.py").read_bytes() == b"new a"


def test_strays_of_dead_runs_go_and_those_of_other_journals_stay(root: Path, journal: Path) -> None:
    ours = root / f"p/.opsctl-{mark(journal)}-{'0' * 8}-0.new"
    theirs = root / f"p/.opsctl-{mark(journal.with_name('other'))}-{'0' * 8}-0.old"
    similar = root / f"p/.opsctl-{mark(journal)}-notes.txt"
    for path in (ours, theirs, similar):
        path.touch()
    journal.parent.mkdir()
    journal.with_name("journal.new").write_text("half a journ")
    apply([FileChange(root / "p/a.py", b"1")], journal, root=root)
    assert [p.exists() for p in (ours, theirs, similar)] == [False, True, True]
    ours.touch()
    unfinished(root, journal, three(root))
    ours.touch()
    journal.with_name("journal.new").touch()
    assert recover(journal, root=root)
    assert [p.exists() for p in (ours, theirs, similar)] == [False, True, True]
    assert list(journal.parent.iterdir()) == []


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS])
def test_without_second_names_a_copy_is_kept(
    root: Path, journal: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", link)
    before = without_inodes(snapshot(root))
    with pytest.raises(RuntimeError):
        apply(three(root), journal, root=root, check=refuse)
    assert without_inodes(snapshot(root)) == before
    unfinished(root, journal, three(root))
    assert recover(journal, root=root)
    assert without_inodes(snapshot(root)) == before
    apply(three(root), journal, root=root)
    assert (root / "p/a.py").read_bytes() == b"new a"
    assert not [name for name in snapshot(root) if "opsctl" in name]


def without_inodes(seen: dict[str, tuple[object, ...]]) -> dict[str, tuple[object, ...]]:
    return {name: facts[:3] + facts[4:] for name, facts in seen.items()}


def test_what_somebody_else_changed_meanwhile_is_left_alone(root: Path, journal: Path) -> None:
    unfinished(root, journal, three(root))
    (root / "q/r/c.py").write_text("of a newer release")
    before = snapshot(root)
    with pytest.raises(PreconditionError, match=r"c\.py was changed by somebody else") as raised:
        recover(journal, root=root)
    assert f"delete {journal}" in str(raised.value.hint)
    assert snapshot(root) == before
    assert journal.exists()


def test_a_file_that_somebody_edited_before_it_was_replaced_keeps_the_edit(
    root: Path, journal: Path
) -> None:
    def die(*_: object) -> None:
        raise Boom

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Boom):
        patched.setattr("opsctl.system.transaction._switch", die)
        patched.setattr("opsctl.system.transaction._give_up", lambda *_: None)
        apply(three(root), journal, root=root)
    (root / "p/a.py").write_text("edited in place")
    before = snapshot(root)["p/a.py"]
    assert recover(journal, root=root)
    assert (root / "p/a.py").read_text() == "edited in place"
    assert (root / "p/a.py").stat().st_nlink == 1
    assert snapshot(root)["p/a.py"] != before, "it had a second name until then"


def test_a_package_that_was_installed_again_meanwhile_is_fine(root: Path, journal: Path) -> None:
    unfinished(root, journal, three(root))
    for name in ("p/a.py", "p/b.py"):
        (root / name).unlink(missing_ok=True)
        (root / name).write_text(f"old {name}")
    assert recover(journal, root=root)
    assert sorted(snapshot(root)) == ["p", "p/a.py", "p/b.py", "top.py"]
    assert not journal.exists()


def test_an_old_copy_that_was_tampered_with_is_not_put_back(root: Path, journal: Path) -> None:
    unfinished(root, journal, [FileChange(root / "top.py", b"new")])
    (kept,) = root.glob(".opsctl-*.old")
    kept.write_text("something else")
    with pytest.raises(PreconditionError, match="changed by somebody else"):
        recover(journal, root=root)
    assert (root / "top.py").read_bytes() == b"new"


def broken_journals(good: dict[str, Any], tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Journals that are damaged in one place each, and what is said about them."""
    whole = json.dumps(good)
    yield from ((whole[:cut], "cannot be used") for cut in (0, 1, len(whole) // 2, len(whole) - 1))
    yield "\x00" * len(whole), "cannot be used"
    yield "[]", "cannot be used"

    def other(value: object, *keys: str | int) -> str:
        copy: Any = json.loads(whole)
        *path, last = keys
        inner = copy
        for key in path:
            inner = inner[key]
        inner[last] = value
        return json.dumps(copy)

    outside = str(tmp_path / "outside.py")
    beside = str(tmp_path / f".opsctl-{'0' * 12}-{'0' * 8}-0.old")
    yield other("opsctl/transaction/v2", "format"), "cannot be used"
    yield other(1, "more"), "cannot be used"
    yield other("abc", "entries", 0, "before"), "cannot be used"
    yield other(17, "entries", 0, "path"), "cannot be used"
    yield other(None, "entries", 0, "old"), "contradicts itself"
    yield other(None, "entries", 0, "after"), "contradicts itself"
    yield other(outside, "entries", 0, "path"), "is not a file below"
    yield other("p/a.py", "entries", 0, "path"), "is not a file below"
    yield other(beside, "entries", 0, "old"), "is no file of opsctl's"
    yield other(beside, "entries", 0, "new"), "is no file of opsctl's"
    yield other(good["entries"][0]["path"], "entries", 0, "old"), "is no file of opsctl's"
    yield other(good["entries"][2]["new"], "entries", 0, "old"), "does not lie beside"
    yield other([str(tmp_path / "d")], "made"), "is not below"
    inner = good["entries"][0]["path"].replace("site-packages/", "site-packages/../site-packages/")
    yield other(inner, "entries", 0, "path"), "is not a file below"


def test_a_damaged_journal_is_named_and_nothing_is_touched(
    root: Path, journal: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside.py").write_text("theirs")
    (tmp_path / "d").mkdir()
    unfinished(root, journal, three(root))
    good = json.loads(journal.read_text())
    before = snapshot(tmp_path / "site-packages")
    for text, why in broken_journals(good, tmp_path):
        journal.write_text(text)
        with pytest.raises(PreconditionError, match=why) as raised:
            recover(journal, root=root)
        assert str(journal) in str(raised.value), text
        assert "nothing was touched" in str(raised.value)
        assert snapshot(root) == before
        assert journal.read_text() == text
    assert (tmp_path / "outside.py").read_text() == "theirs"
    assert (tmp_path / "d").is_dir()
    journal.write_text(json.dumps(good))
    assert recover(journal, root=root)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "no space left on the disk"),
        (errno.EDQUOT, "the disk quota is used up"),
        (errno.EROFS, "the file system is read-only"),
        (errno.EACCES, "permission denied"),
        (errno.EPERM, "the system does not permit it"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_what_the_system_refuses_is_said_in_words_with_the_file(
    root: Path, journal: Path, code: int, words: str
) -> None:
    def fail(name: str, step: Step) -> Any:
        if name.startswith("write"):
            raise OSError(code, os.strerror(code))
        return step()

    before = snapshot(root)
    with steps(fail), pytest.raises(PreconditionError) as raised:
        apply([FileChange(root / "top.py", b"new")], journal, root=root)
    assert str(raised.value) == f"{root / 'top.py'}: {words}; nothing was changed"
    assert raised.value.hint
    assert snapshot(root) == before


def test_undoing_that_fails_too_keeps_the_journal_for_the_next_run(
    root: Path, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look() -> None:
        def replace(*_: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, "replace", replace)
        refuse()

    before = snapshot(root)
    with pytest.raises(PreconditionError, match="undoing it failed too") as raised:
        apply(three(root), journal, root=root, check=look)
    assert "the new files are wrong" in str(raised.value)
    with pytest.raises(PreconditionError, match=f"the journal {journal} is kept"):
        recover(journal, root=root)
    monkeypatch.undo()
    assert recover(journal, root=root)
    assert snapshot(root) == before


def test_everything_is_flushed_before_the_journal_and_the_journal_before_the_first_rename(
    root: Path, journal: Path
) -> None:
    changes = [FileChange(root / "top.py", b"1"), FileChange(root / "p/a.py", b"2")]
    with steps(lambda _, step: step()) as done:
        apply(changes, journal, root=root)
    names = [step.split()[0] for step in done]
    opened = [(n, step.split()[1]) for n, step in enumerate(done) if step.startswith("open")]
    commit = done.index(f"unlink {journal}")
    renames = [n for n, name in enumerate(names) if name in {"replace", "rename"}]
    assert len(renames) == 3
    folders = {str(root), str(root / "p")}
    flushed_before = {where for n, where in opened if n < renames[0]}
    assert folders < flushed_before, "new files have names that survive before the journal does"
    between = {where for n, where in opened if renames[0] < n < renames[1]}
    assert str(journal.parent) in between, "the journal's name survives before the first target's"
    after = {where for n, where in opened if renames[2] < n < commit}
    assert folders <= after, "the new names survive before the journal goes"
    last = [n for n, step in enumerate(done) if step.endswith(".old") and "unlink" in step]
    gone = [n for n, where in opened if n > commit and where == str(journal.parent)]
    assert gone, "the journal's end survives"
    assert min(last) > gone[0], "old copies outlive the journal"
    writes = [n for n, name in enumerate(names) if name == "write"]
    for n in writes:
        assert "fsync" in names[n : n + 5], "each content is flushed"


contents = st.one_of(st.none(), st.binary(max_size=8))
trees = st.dictionaries(
    st.sampled_from(["a", "b", "d/a", "d/e/a", "f/g/a"]),
    st.tuples(contents, contents, st.booleans(), st.sampled_from([0o600, 0o644, 0o755, 0o4711])),
    min_size=1,
)
"""Per file: content before, content after, whether another link exists, mode before."""
Tree = dict[str, tuple[bytes | None, bytes | None, bool, int]]


def grow(folder: Path, tree: Tree) -> tuple[Path, Path, list[FileChange]]:
    root, journal = folder / "root", folder / "state/journal"
    (root / "elsewhere").mkdir(parents=True)
    for name, (before, _, linked, mode) in tree.items():
        if before is not None:
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(before)
            path.chmod(mode)
            os.utime(path, ns=(1, 1_000_000_000 + len(name)))
            if linked:
                (root / "elsewhere" / name.replace("/", "-")).hardlink_to(path)
    return root, journal, [FileChange(root / n, after) for n, (_, after, *_) in tree.items()]


def is_after(root: Path, tree: Tree) -> bool:
    found = {n: (root / n).read_bytes() if (root / n).exists() else None for n in tree}
    return found == {name: after for name, (_, after, *_) in tree.items()}


def instead_of_the_step(_: Step) -> Any:
    raise OSError(errno.EIO, "Input/output error")


def after_the_step(step: Step) -> Any:
    step()
    raise Boom


@pytest.mark.parametrize("fault", [instead_of_the_step, after_the_step])
@given(tree=trees)
@settings(deadline=None, max_examples=12, suppress_health_check=list(HealthCheck))
def test_a_failure_at_any_step_leaves_everything_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, fault: Callable[[Step], Any], tree: Tree
) -> None:
    folder = tmp_path_factory.mktemp("tree")
    for number in itertools.count(1):
        root, journal, changes = grow(folder / str(number), tree)
        before = snapshot(root)
        raised, taken, made = fail_at(number, fault, changes, journal, root)
        if made:
            assert is_after(root, tree), f"step {number} of {taken}"
        else:
            assert snapshot(root) == before, f"step {number} of {taken}"
        assert not journal.exists()
        assert not journal.with_name("journal.new").exists()
        if taken < number:
            assert not raised
            return


def fail_at(
    number: int, fault: Callable[[Step], Any], changes: list[FileChange], journal: Path, root: Path
) -> tuple[bool, int, bool]:
    """Run with one fault; returns whether it raised, how many steps it took, if it was made.

    It is made when the journal goes, unless a fault came first: then that ends the undoing.
    """
    gone = False

    def act(name: str, step: Step) -> Any:
        nonlocal gone
        faulty = len(done) == number
        done_too = not faulty or fault is after_the_step
        gone = gone or (name == f"unlink {journal}" and len(done) <= number and done_too)
        return fault(step) if faulty else step()

    raised = False
    with steps(act) as done:
        try:
            apply(changes, journal, root=root)
        except (Boom, PreconditionError):
            raised = True
    return raised, len(done), gone or not raised
