from __future__ import annotations

import os

import pytest

from opsctl.engine import tree
from opsctl.engine.tree import Identity, Member, compiling, find, living
from opsctl.system import procfs
from opsctl.system.compilers import is_compiler
from opsctl.system.procfs import ProcessStat

IDENTITY = Identity("mine", 100, 1000, 100, None, "boot")


def process(pid: int, ppid: int = 1, **changes: object) -> ProcessStat:
    fields = {
        "pid": pid,
        "comm": "python",
        "state": "S",
        "ppid": ppid,
        "group": pid,
        "session": pid,
        "cpu_time": 0,
        "start_time": 1000 + pid,
    }
    return ProcessStat(**(fields | changes))  # type: ignore[arg-type]


MAIN = process(100, start_time=1000)


class Table:
    """A process table of our own making in the place of /proc."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.processes: list[ProcessStat] = [MAIN]
        self.nonces: dict[int, str] = {}
        self.reaped: list[int] = []
        monkeypatch.setattr(procfs, "snapshot", lambda: {p.pid: p for p in self.processes})
        monkeypatch.setattr(procfs, "environ_value", lambda pid, name: self.nonces.get(pid))
        monkeypatch.setattr(procfs, "title", lambda pid, comm="": f"title {pid}")
        monkeypatch.setattr(procfs, "boot_id", lambda: "boot")
        monkeypatch.setattr(tree.subreaper, "reap", self.reaped.extend)

    def members(self, seen: tuple[tuple[int, int], ...] = ()) -> dict[int, str]:
        return {member.pid: member.how for member in find(IDENTITY, seen=seen)}


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    return Table(monkeypatch)


def test_session_nonce_and_descent_all_make_members(table: Table) -> None:
    table.processes += [
        process(101, 100, session=100),
        process(102, 1),
        process(103, 102),
        process(104, 103),
        process(105, 1),
    ]
    table.nonces[102] = "mine"
    assert table.members() == {
        100: "session",
        101: "session",
        102: "nonce",
        103: "descendant",
        104: "descendant",
    }


def test_another_launch_is_never_a_member_whatever_it_looks_like(table: Table) -> None:
    table.processes += [process(101, 1, session=100)]
    table.nonces[101] = "theirs"
    assert table.members(((101, 1101),)) == {100: "session"}


def test_a_reused_session_number_proves_nothing(table: Table) -> None:
    table.processes = [process(100, start_time=5000), process(101, 100, session=100)]
    assert table.members() == {}


def test_a_session_whose_leader_is_gone_still_counts(table: Table) -> None:
    table.processes = [process(101, 1, session=100)]
    assert table.members() == {101: "session"}


def test_what_is_older_than_the_engine_is_no_member(table: Table) -> None:
    table.processes += [process(101, 1, session=100, start_time=999)]
    table.nonces[101] = "mine"
    assert table.members() == {100: "session"}


def test_opsctl_itself_and_its_parents_are_never_members(table: Table) -> None:
    table.processes += [
        process(os.getpid(), 100, session=100),
        process(os.getppid(), 100, session=100),
    ]
    table.nonces |= {os.getpid(): "mine", os.getppid(): "mine"}
    assert table.members() == {100: "session"}


def test_a_remembered_process_stays_a_member_unless_its_number_was_reused(table: Table) -> None:
    table.processes += [process(101, 1)]
    assert table.members(((101, 1101),)) == {100: "session", 101: "descendant"}
    assert table.members(((101, 1),)) == {100: "session"}


def test_after_a_reboot_nothing_is_a_member(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "boot_id", lambda: "another")
    assert table.members() == {}


def test_only_adopted_zombies_are_reaped_and_never_the_main_process(table: Table) -> None:
    me = os.getpid()
    table.processes = [
        process(100, me, start_time=1000, state="Z"),
        process(101, me, session=100, state="Z"),
        process(102, 100, session=100, state="Z"),
        process(103, me, session=100, state="S"),
        process(104, me, state="Z"),
    ]
    table.members()
    assert table.reaped == [101]


def test_an_identity_survives_its_file() -> None:
    for identity in (IDENTITY, Identity("n", 5, 6, 7, "/sys/fs/cgroup/x", "b")):
        assert Identity.from_json(identity.to_json()) == identity


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", "[]", "null", '"x"',
        IDENTITY.to_json().replace("100,", '"100",'),
        IDENTITY.to_json().replace('"pid": 100', '"pid": 1'),
        IDENTITY.to_json().replace('"pid": 100', '"pid": -1'),
        IDENTITY.to_json().replace('"pid": 100', '"pid": true'),
        IDENTITY.to_json().replace("null", "7"),
    ],
)  # fmt: skip
def test_a_broken_identity_is_refused(text: str) -> None:
    """Process 1 and negative numbers would mean init, or everything."""
    with pytest.raises(ValueError):
        Identity.from_json(text)


@pytest.mark.parametrize(
    "title",
    [
        "/usr/local/cuda/bin/nvcc -O3 x.cu",
        "cicc --c++17", "ptxas -arch=sm_120a", "ptxas-blackwell x", "ninja -v -j 8",
        "/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus -quiet", "x86_64-linux-gnu-g++-12 -shared",
        "/usr/bin/ld -o x", "clang++ x.cc", "g++", "cudafe++ --x",
        "python -m torch/_inductor/compile_worker/__main__.py",
    ],
)  # fmt: skip
def test_compilers_are_known(title: str) -> None:
    assert is_compiler(title)
    assert compiling([Member(1, 1, "R", title, "session")])
    assert not compiling([Member(1, 1, "S", title, "session")])


@pytest.mark.parametrize(
    "title",
    ["python -m sglang.launch_server", "sglang::scheduler_TP0", "[nvcc]", "", "vi nvcc", "ninjas"],
)
def test_other_programs_are_no_compilers(title: str) -> None:
    assert not is_compiler(title)


def test_zombies_do_not_live() -> None:
    states = [Member(1, 1, state, "", "session") for state in "RSDTZX"]
    assert [member.state for member in living(states)] == ["R", "S", "D", "T"]
