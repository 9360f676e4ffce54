"""Reading /proc: a tree in files for states that cannot be brought about."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.gpu import processes
from opsctl.system import procfs
from tests.support.proc_tree import NONCE, ProcTree

CONTEXT = ["/dev/nvidiactl", "/dev/nvidia0", "/dev/null"]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProcTree:
    made = ProcTree(tmp_path / "proc")
    monkeypatch.setattr(procfs, "PROC", made.root)
    return made


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each pause between two looks was meant to be."""
    waited: list[float] = []
    monkeypatch.setattr(processes.time, "sleep", waited.append)
    return waited


def test_a_holder_is_read_in_full(tree: ProcTree) -> None:
    tree.add(
        42,
        "sglang::schedul",
        "sglang::scheduler_TP0",
        environment=f"A=b OPSCTL_NONCE={NONCE}",
        cgroup=f"/opsctl-{NONCE}",
        files=CONTEXT,
    )
    found = processes.read()[42]
    assert found.title == "sglang::scheduler_TP0"
    assert found.devices == {"/dev/nvidiactl", "/dev/nvidia0"}
    assert (found.nonce, found.cgroup) == (NONCE, f"/opsctl-{NONCE}")
    assert (found.uid, found.user) == (0, "root")
    assert found.age is not None


def test_what_holds_nothing_is_read_in_short(tree: ProcTree) -> None:
    tree.add(42, "bash", "-bash", files=["/dev/null"])
    found = processes.read()[42]
    assert (found.uid, found.age, found.devices) == (None, None, frozenset())
    assert processes.read([42])[42].uid == 0


def test_a_device_that_is_only_mapped_counts(tree: ProcTree) -> None:
    tree.add(42, "python", "python x", maps=["/usr/lib/libc.so.6", "/dev/nvidia1"])
    assert processes.read([42])[42].devices == {"/dev/nvidia1"}


def test_a_listener_is_found_by_its_socket(tree: ProcTree) -> None:
    line = "   0: 0100007F:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 8899 1"
    (tree.root / "net/tcp").write_text(f"header\n{line}\n")
    tree.add(42, "sglang::tokeniz", "sglang::tokenizer_worker:7", files=["socket:[8899]"])
    assert processes.read()[42].ports == (30000,)


def test_a_process_stuck_in_the_driver_shows_where(tree: ProcTree, looks: list[float]) -> None:
    tree.add(
        42,
        "python",
        "python x",
        state="D",
        files=CONTEXT,
        wchan="rwsem_down_write_slowpath",
        stack=["rwsem_down_write_slowpath+0x1/0x2", "uvm_va_space_down+0x1/0x2 [nvidia_uvm]"],
    )
    found = processes.read()[42]
    assert (found.state, found.wchan) == ("D", "uvm_va_space_down [nvidia_uvm]")
    assert len(looks) == 3


def test_without_a_readable_stack_the_wchan_tells(tree: ProcTree, looks: list[float]) -> None:
    tree.add(42, "python", "python x", state="D", files=CONTEXT, wchan="folio_wait_bit_common")
    assert processes.read()[42].wchan == "folio_wait_bit_common"


def test_a_spinning_process_is_looked_at_again(tree: ProcTree, looks: list[float]) -> None:
    stack = ["uvm_spin_loop+0x1/0x2 [nvidia_uvm]"]
    tree.add(42, "python", "python x", state="R", files=CONTEXT, stack=stack)
    found = processes.read()[42]
    assert (found.wchan, len(looks)) == ("uvm_spin_loop [nvidia_uvm]", 3)


def test_a_process_that_moves_on_does_not_hang(
    tree: ProcTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.add(42, "python", "python x", state="D", files=CONTEXT, wchan="io_schedule")
    monkeypatch.setattr(processes.time, "sleep", lambda _: tree.set_state(42, "python", "S"))
    found = processes.read()[42]
    assert (found.state, found.wchan) == ("S", None)


def test_a_number_that_passed_to_another_is_gone(
    tree: ProcTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.add(42, "python", "python x", state="D", files=CONTEXT)
    monkeypatch.setattr(
        processes.time, "sleep", lambda _: tree.set_state(42, "python", "D", start_time=999)
    )
    assert processes.read()[42].state == "X"


def test_what_sleeps_but_holds_nothing_is_not_waited_for(
    tree: ProcTree, looks: list[float]
) -> None:
    tree.add(42, "cp", "cp a b", state="D")
    assert processes.read()[42].state == "D"
    assert looks == []


def test_kernel_threads_are_passed_over(tree: ProcTree) -> None:
    tree.add(2, "kthreadd", ppid=0)
    tree.add(42, "kworker/0:1", ppid=2, files=["/dev/nvidia0"])
    found = processes.read()[42]
    assert (found.title, found.devices) == ("[kworker/0:1]", frozenset())


def test_the_living_threads_of_a_zombie_are_counted(tree: ProcTree) -> None:
    tree.add(42, "sglang::schedul", state="Z", threads=3)
    assert processes.read()[42].threads == 3


def test_damaged_entries_are_no_processes(tree: ProcTree) -> None:
    (tree.root / "77").mkdir()
    (tree.root / "78").mkdir()
    (tree.root / "78/stat").write_text("78 (x) S")
    assert {77, 78}.isdisjoint(processes.read([77, 78]))
