"""Each verdict, and what it is told from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from opsctl.gpu.census import census
from opsctl.gpu.model import Census, Holder, HostProcess, Snapshot, Verdict
from tests.support.proc_tree import (
    ALL_DEVICES,
    GIB,
    MIB,
    NONCE,
    engine,
    gpu,
    process,
    snapshot,
    table,
)

ME = 999


def judged(
    holder: HostProcess, *others: HostProcess, listed: bool = True, **given: Any
) -> Holder | None:
    """The verdict about `holder`, which NVML lists on GPU 0."""
    rows = snapshot((holder.pid, 0, 80 * GIB)) if listed else snapshot()
    engines = given.pop("engines", ())
    found = census(rows, table(holder, *others), engines, me=ME, **{"host_pids": True, **given})
    return found.of(holder.pid)


def verdict(holder: HostProcess, *others: HostProcess, **given: Any) -> Verdict | None:
    found = judged(holder, *others, **given)
    return found.verdict if found else None


def why(holder: HostProcess, *others: HostProcess, **given: Any) -> str:
    found = judged(holder, *others, **given)
    assert found is not None
    return "; ".join(found.evidence)


MAIN = process(1000, "python -m sglang.launch_server --port 30000", ppid=900, nonce=NONCE)
SERVE = process(900, "/usr/bin/python3 /usr/bin/opsctl serve --config opsctl.yaml")
CHILD = process(
    2000, "sglang::scheduler_TP0", ppid=1000, session=1000, group=1000, devices=ALL_DEVICES
)
LOST = process(3000, "sglang::scheduler_TP0", devices=ALL_DEVICES)


# --- managed and orphan ------------------------------------------------------------------------

PROOFS = {
    "nonce": {"nonce": NONCE, "ppid": 1, "session": 77},
    "cgroup": {"cgroup": f"/system.slice/opsctl.service/opsctl-{NONCE}", "ppid": 1, "session": 77},
    "session": {"ppid": 1, "session": 1000},
    "descends": {"session": 77},
}


@pytest.mark.parametrize("how", PROOFS)
def test_a_process_of_a_living_engine_is_managed(how: str) -> None:
    child = process(
        2000, "sglang::scheduler_TP0", devices=ALL_DEVICES, **{"ppid": 1000} | PROOFS[how]
    )
    assert verdict(child, MAIN, SERVE, engines=[engine()]) is Verdict.MANAGED
    said = why(child, MAIN, SERVE, engines=[engine()])
    assert how in said
    assert "/var/lib/opsctl" in said


@pytest.mark.parametrize("how", PROOFS)
def test_the_same_process_is_an_orphan_when_the_supervisor_is_gone(how: str) -> None:
    child = process(
        2000, "sglang::scheduler_TP0", devices=ALL_DEVICES, **{"ppid": 1000} | PROOFS[how]
    )
    dead = engine(alive=False)
    assert verdict(child, MAIN, engines=[dead]) is Verdict.ORPHAN
    assert "its supervisor (pid 4711) is gone" in why(child, MAIN, engines=[dead])


def test_an_orphan_that_could_be_taken_over_says_how() -> None:
    found = judged(MAIN, engines=[engine(alive=False, main_alive=True)], listed=False)
    assert found is not None
    assert "opsctl serve --state-dir /var/lib/opsctl" in str(found.advice)


def test_members_without_gpu_are_told_too() -> None:
    assert verdict(MAIN, SERVE, engines=[engine()], listed=False) is Verdict.MANAGED


def test_a_foreign_nonce_wins_over_the_session() -> None:
    other = process(2000, ppid=1, session=1000, nonce="b" * 32, devices=ALL_DEVICES)
    assert verdict(other, MAIN, SERVE, engines=[engine(alive=False)]) is Verdict.ORPHAN
    assert "state directory is not known" in why(other, MAIN, engines=[engine()])


def test_a_session_whose_number_was_given_to_another_leader_proves_nothing() -> None:
    leader = process(1000, "sshd", start_time=99_999)
    child = process(2000, ppid=1, session=1000, start_time=100_000, devices=ALL_DEVICES)
    assert verdict(child, leader, engines=[engine(alive=False)]) is Verdict.FOREIGN


def test_a_session_without_its_leader_proves_nothing_without_a_title() -> None:
    daemon = process(2000, "python train.py", session=1000, devices=ALL_DEVICES)
    assert verdict(daemon, engines=[engine(alive=False)]) is Verdict.FOREIGN
    retitled = process(2000, "sglang::scheduler_TP0", session=1000, devices=ALL_DEVICES)
    assert verdict(retitled, engines=[engine(alive=False)]) is Verdict.ORPHAN


def test_a_process_older_than_the_engine_is_not_of_it() -> None:
    older = process(2000, "sglang::scheduler_TP0", session=1000, start_time=5, devices=ALL_DEVICES)
    assert verdict(older, engines=[engine(alive=False)]) is not Verdict.ORPHAN


def test_a_nonce_nobody_recorded_is_managed_below_a_living_opsctl() -> None:
    assert verdict(MAIN, SERVE, listed=False) is Verdict.MANAGED
    assert "900" in why(MAIN, SERVE, listed=False)


def test_a_nonce_nobody_recorded_is_an_orphan_below_init() -> None:
    child = process(2000, "sglang::scheduler_TP0", ppid=1000, nonce=NONCE, devices=ALL_DEVICES)
    main = process(1000, "python -m sglang.launch_server", nonce=NONCE)
    assert verdict(child, main) is Verdict.ORPHAN
    assert "process 1000 is 1 (systemd), which adopts orphans" in why(child, main)


def test_a_nonce_nobody_recorded_is_left_to_what_started_it() -> None:
    launcher = process(900, "python -m pytest")
    assert verdict(MAIN, launcher, listed=False) is Verdict.MANAGED


def test_a_nonce_whose_parents_cannot_be_seen_is_not_proved_an_orphan() -> None:
    hidden = process(2000, nonce=NONCE, ppid=4242, devices=ALL_DEVICES)
    assert verdict(hidden) is Verdict.FOREIGN
    assert "parents cannot be seen" in why(hidden)


def test_opsctl_as_process_1_supervises_what_it_started() -> None:
    init = process(1, "/usr/bin/opsctl serve", ppid=0)
    assert verdict(process(2000, nonce=NONCE, devices=ALL_DEVICES), init) is Verdict.MANAGED


# --- stray engine ------------------------------------------------------------------------------


def test_a_retitled_child_below_init_is_a_stray_engine() -> None:
    assert verdict(LOST) is Verdict.STRAY
    assert "title sglang::scheduler_TP0" in why(LOST)
    assert "its parent is systemd (1)" in why(LOST)


def test_a_title_alone_is_no_stray_engine() -> None:
    assert verdict(process(3000, "sglang::scheduler_TP0"), listed=False) is None


def test_a_tokenizer_worker_that_only_holds_a_port_is_one() -> None:
    worker = process(3000, "sglang::tokenizer_worker:7", ports=(30000,))
    assert verdict(worker, listed=False) is Verdict.STRAY
    assert "listens on port 30000" in why(worker, listed=False)


def test_a_server_left_running_by_hand_is_one_and_says_that_it_may_serve() -> None:
    main = process(3000, "python3 -m sglang.launch_server --port 30000", ports=(30000,))
    child = process(3001, "sglang::scheduler_TP0", ppid=3000, session=3000, devices=ALL_DEVICES)
    worker = process(3002, "python -c from torch import worker", ppid=3001, session=3000)
    assert verdict(main, child, listed=False) is Verdict.STRAY
    assert verdict(child, main) is Verdict.STRAY
    assert verdict(worker, main, child, listed=False) is Verdict.STRAY
    assert "it may serve" in why(child, main)


@pytest.mark.parametrize(
    ("title", "comm"),
    [
        ("vim notes/sglang serve notes", "vim"),
        ("python -m pytest sglang/test", "python"),
        ("bash -c python -m sglang.launch_server", "bash"),
        ("tail -f sglang::log", "tail"),
    ],
)
def test_a_name_that_only_mentions_sglang_is_foreign(title: str, comm: str) -> None:
    assert verdict(process(3000, title, comm=comm, devices=ALL_DEVICES)) is Verdict.FOREIGN


def test_a_server_that_somebody_runs_is_foreign() -> None:
    shell = process(2900, "-bash")
    assert verdict(process(3000, "sglang serve", ppid=2900, devices=ALL_DEVICES), shell) is (
        Verdict.FOREIGN
    )
    service = process(
        3000, "sglang serve", cgroup="/system.slice/sglang.service", devices=ALL_DEVICES
    )
    assert verdict(service) is Verdict.FOREIGN
    assert "systemd unit sglang.service keeps it" in why(service)


def test_the_first_process_of_a_container_has_started_its_children() -> None:
    tini = process(1, "tini -- sglang serve", ppid=0)
    assert verdict(process(7, "sglang serve", devices=ALL_DEVICES), tini) is Verdict.FOREIGN
    assert verdict(process(8, "sglang::scheduler_TP0", devices=ALL_DEVICES), tini) is Verdict.STRAY
    script = process(1, "bash start.sh", ppid=0)
    started = process(7, "sglang serve", session=1, devices=ALL_DEVICES)
    assert verdict(started, script) is Verdict.FOREIGN
    assert verdict(process(8, "sglang serve", devices=ALL_DEVICES), script) is Verdict.STRAY
    server = process(1, "python -m sglang.launch_server", ppid=0)
    child = process(8, "sglang::scheduler_TP0", devices=ALL_DEVICES)
    assert verdict(child, server) is Verdict.FOREIGN


# --- zombie and stuck --------------------------------------------------------------------------


def test_a_zombie_names_the_parent_that_does_not_reap_it_and_the_living_of_its_group() -> None:
    parent = process(2900, "bash start.sh")
    dead = process(3000, "[python]", state="Z", ppid=2900, group=3000)
    living = process(3001, "sglang::scheduler_TP0", group=3000)
    assert verdict(dead, parent, living) is Verdict.ZOMBIE
    assert "its parent 2900 (bash start.sh) does not reap it" in why(dead, parent, living)
    assert "of its process group live 3001" in why(dead, parent, living)


def test_a_zombie_of_ours_is_no_orphan() -> None:
    dead = process(2000, "[sglang::schedul]", state="Z", cgroup=f"/opsctl-{NONCE}")
    assert verdict(dead, engines=[engine(alive=False)], listed=False) is Verdict.ZOMBIE


def test_a_zombie_whose_threads_live_says_so() -> None:
    assert "2 of its threads live on" in why(process(3000, "[python]", state="Z", threads=3))


@pytest.mark.parametrize("wchan", ["uvm_va_space_destroy", "os_acquire_rwlock_write [nvidia]"])
def test_a_process_asleep_in_the_driver_is_stuck_whoever_it_belongs_to(wchan: str) -> None:
    for owned in ({}, {"nonce": NONCE}):
        held = process(2000, state="D", wchan=wchan, devices=ALL_DEVICES, **owned)
        assert verdict(held, engines=[engine()]) is Verdict.STUCK
        assert wchan in why(held, engines=[engine()])


def test_what_has_closed_its_files_but_sleeps_in_the_driver_is_stuck_not_unmapped() -> None:
    ending = process(2000, "[python]", state="D", wchan="nvidia_close [nvidia]")
    assert verdict(ending) is Verdict.STUCK


def test_a_process_that_waits_for_a_disk_is_not_stuck() -> None:
    reading = process(2000, state="D", wchan="folio_wait_bit_common", devices=ALL_DEVICES)
    assert verdict(reading) is Verdict.FOREIGN


def test_where_it_sleeps_is_not_claimed_when_it_cannot_be_read() -> None:
    asleep = process(2000, state="D", devices=ALL_DEVICES)
    assert verdict(asleep) is Verdict.STUCK
    assert "where cannot be read" in why(asleep)
    ours = process(2000, state="D", devices=ALL_DEVICES, nonce=NONCE)
    assert verdict(ours, engines=[engine()]) is Verdict.MANAGED


def test_spinning_in_uvm_without_a_parent_is_stuck() -> None:
    spinning = process(3000, state="R", wchan="uvm_spin_loop [nvidia_uvm]", devices=ALL_DEVICES)
    assert verdict(spinning) is Verdict.STUCK
    shell = process(2900, "-bash")
    kept = process(3000, state="R", wchan="uvm_spin_loop", ppid=2900, devices=ALL_DEVICES)
    assert verdict(kept, shell) is Verdict.FOREIGN


# --- foreign -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "title",
    [
        "/usr/lib/xorg/Xorg :0",
        "/usr/bin/nvidia-persistenced --user nvidia",
        "nv-hostengine -n",
        "dcgm-exporter",
        "nvidia-cuda-mps-server",
        "nvidia-cuda-mps-control -d",
        "nvtop",
        "/opt/bin/python3 -m opsctl.gpu.nvml_helper",
    ],
)
def test_protected_programs_are_foreign_even_with_a_nonce(title: str) -> None:
    held = process(2000, title, devices=ALL_DEVICES, nonce=NONCE)
    assert verdict(held, engines=[engine(alive=False)]) is Verdict.FOREIGN
    assert "opsctl never ends it" in why(held, engines=[engine(alive=False)])


def test_files_that_may_not_be_read_make_it_foreign_not_unmapped() -> None:
    hidden = process(2000, devices=None, uid=1001, user="bob")
    assert verdict(hidden) is Verdict.FOREIGN
    assert "may not be read without root" in why(hidden)


def test_opsctl_and_what_started_it_are_never_more_than_foreign() -> None:
    me = process(ME, "opsctl gpu ps", ppid=998, nonce=NONCE, devices=ALL_DEVICES)
    shell = process(998, "sglang::fake", nonce=NONCE, devices=ALL_DEVICES)
    for one in (me, shell):
        assert verdict(one, me, shell, engines=[engine(alive=False)]) is Verdict.FOREIGN
        assert "this opsctl itself" in why(one, me, shell, engines=[engine(alive=False)])
    sibling = process(997, ppid=998, devices=ALL_DEVICES)
    assert verdict(sibling, me, shell, engines=[engine(alive=False)]) is Verdict.FOREIGN


def test_a_holder_that_nvml_does_not_list_is_seen_by_its_open_device() -> None:
    found = judged(process(2000, devices=frozenset({"/dev/nvidia1"})), listed=False)
    assert found is not None
    assert (found.verdict, found.gpus, found.memory) == (Verdict.FOREIGN, (1,), None)


def test_the_reader_of_this_census_is_not_told_but_that_of_another_opsctl_is() -> None:
    me = process(ME, "opsctl gpu ps --watch")
    reader = process(2000, "python -m opsctl.gpu.nvml_helper", devices=ALL_DEVICES)
    assert verdict(reader, me, listed=False) is Verdict.FOREIGN
    own = process(2000, "python -m opsctl.gpu.nvml_helper", ppid=ME, devices=ALL_DEVICES)
    assert verdict(own, me, listed=False) is None


# --- unmapped ----------------------------------------------------------------------------------


def test_a_number_that_does_not_exist_here_is_unmapped() -> None:
    found = census(snapshot((4242, 0, GIB)), table(), (), me=ME, host_pids=True).of(4242)
    assert found is not None
    assert (found.verdict, found.start_time, found.process) == (Verdict.UNMAPPED, None, None)
    assert (found.memory, found.gpus) == (GIB, (0,))


def test_an_innocent_process_with_the_same_number_is_unmapped() -> None:
    innocent = process(2000, "sleep 600")
    assert verdict(innocent) is Verdict.UNMAPPED
    assert "process 2000 here (sleep 600, user alice) has no /dev/nvidia* open" in why(innocent)
    kernel = process(2000, "[kworker/0:1]", ppid=2, comm="kworker/0:1")
    assert verdict(kernel) is Verdict.UNMAPPED


def test_the_device_must_be_that_of_the_listed_gpu() -> None:
    other = process(2000, "sleep 600", devices=frozenset({"/dev/nvidia1"}))
    rows = census(snapshot((2000, 0, GIB)), table(other), (), me=ME, host_pids=True)
    assert [h.verdict for h in rows.holders] == [Verdict.FOREIGN, Verdict.UNMAPPED]


def test_one_impossible_number_in_a_container_makes_all_numbers_doubtful() -> None:
    rows = snapshot((4242, 0, GIB), (2000, 1, GIB))
    monitor = process(2000, "python watch.py", devices=ALL_DEVICES)
    for host_pids, expected in ((True, False), (False, True)):
        found = census(rows, table(monitor), (), me=ME, host_pids=host_pids)
        unmapped = {h.pid for h in found.holders if h.verdict is Verdict.UNMAPPED}
        assert (2000 in unmapped) is expected


def test_ours_with_the_number_of_a_foreign_row_keeps_its_own_verdict() -> None:
    worker = process(2000, "sglang::detokenizer", nonce=NONCE)
    found = census(snapshot((2000, 0, GIB)), table(worker), [engine(alive=False)], me=ME)
    assert [(h.verdict, h.memory) for h in found.holders] == [
        (Verdict.ORPHAN, None),
        (Verdict.UNMAPPED, GIB),
    ]


# --- phantom -----------------------------------------------------------------------------------


def phantom_of(snap: Snapshot, *processes: HostProcess, host_pids: bool = True) -> Holder | None:
    found: Census = census(snap, table(*processes), (), me=ME, host_pids=host_pids)
    return next((h for h in found.holders if h.verdict is Verdict.PHANTOM), None)


def test_memory_nobody_owns_is_a_phantom() -> None:
    found = phantom_of(snapshot(gpus=[gpu(used=40 * GIB)]))
    assert found is not None
    assert found.memory == 40 * GIB - 600 * MIB
    assert (found.pid, found.gpus) == (None, (0,))
    assert "reset" in str(found.advice)


@pytest.mark.parametrize(
    ("used", "reserved", "is_phantom"),
    [
        (600 * MIB, 600 * MIB, False),
        (1500 * MIB, 600 * MIB, False),
        (1700 * MIB, 600 * MIB, True),
        (1700 * MIB, None, False),
        (2100 * MIB, None, True),
    ],
)
def test_the_drivers_reserve_is_not_a_leak(
    used: int, reserved: int | None, is_phantom: bool
) -> None:
    board = gpu(used=used, memory_reserved=reserved)
    assert (phantom_of(snapshot(gpus=[board])) is not None) is is_phantom


def test_untold_memory_is_not_a_phantom() -> None:
    holder = process(2000, devices=ALL_DEVICES)
    assert phantom_of(snapshot((2000, 0, None), gpus=[gpu(used=40 * GIB)]), holder) is None
    assert phantom_of(snapshot(gpus=[gpu(used=40 * GIB, mig=True)])) is None
    assert phantom_of(snapshot(gpus=[gpu(used=40 * GIB, memory_used=None)])) is None


def test_a_phantom_names_those_that_have_its_device_open_without_being_listed() -> None:
    holder = process(2000, devices=frozenset({"/dev/nvidia0"}))
    found = phantom_of(snapshot(gpus=[gpu(used=40 * GIB)]), holder)
    assert found is not None
    assert "process 2000" in "; ".join(found.evidence)


def test_inside_a_container_a_phantom_may_be_somebody_elses() -> None:
    found = phantom_of(snapshot(gpus=[gpu(used=40 * GIB)]), host_pids=False)
    assert found is not None
    assert "pid namespace" in "; ".join(found.evidence)


def test_a_process_in_two_tables_of_a_gpu_is_counted_once() -> None:
    holder = process(2000, devices=ALL_DEVICES)
    rows = snapshot((2000, 0, 30 * GIB), (2000, 0, 30 * GIB), gpus=[gpu(used=31 * GIB)])
    found = census(rows, table(holder), (), me=ME, host_pids=True)
    assert [h.memory for h in found.holders] == [30 * GIB]


# --- fault -------------------------------------------------------------------------------------


def faults(snap: Snapshot, *xids: Any) -> list[Holder]:
    return [
        h for h in census(snap, table(), (), me=ME, xids=xids).holders if h.verdict is Verdict.FAULT
    ]


def xid(code: int, bus_id: str, remedy: str) -> Any:
    return SimpleNamespace(
        code=code, bus_id=bus_id, text="GPU has fallen off the bus", remedy=remedy
    )


@pytest.mark.parametrize("state", ["fault", "unresponsive"])
def test_a_driver_that_fails_is_a_fault_of_the_host(state: Any) -> None:
    (found,) = faults(Snapshot(state, "Driver/library version mismatch"))
    assert found.gpus == ()
    assert "mismatch" in found.evidence[0]


def test_no_driver_is_no_fault() -> None:
    assert faults(Snapshot("absent", "no library")) == []


def test_a_lost_gpu_and_a_serious_xid_are_one_fault_of_that_gpu() -> None:
    lost = snapshot(gpus=[gpu(0, fault="GPU is lost"), gpu(1)])
    found = faults(lost, xid(79, "0000:11:00", "reboot"), xid(31, "0000:12:00", "restart engine"))
    assert [(h.gpus, len(h.evidence)) for h in found] == [((0,), 2)]
    assert "Xid 79" in found[0].evidence[1]
    assert str(found[0].advice).startswith("reboot")


def test_an_xid_of_a_gpu_that_nvml_no_longer_shows_is_not_lost() -> None:
    (found,) = faults(snapshot(gpus=[gpu(0)]), xid(79, "0000:99:00", "reset"))
    assert found.gpus == ()
