"""What holds for every host, however strange."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.gpu.census import census
from opsctl.gpu.model import Census, Gpu, GpuUse, HostProcess, KnownEngine, Snapshot, Verdict
from tests.support.proc_tree import GIB, INIT, MIB, gpu, process

NONCES = ("a" * 32, "b" * 32, "c" * 32)
ME = 12
TITLES = (
    "python train.py",
    "sglang::scheduler_TP0",
    "sglang::detokenizer",
    "python -m sglang.launch_server",
    "opsctl serve",
    "opsctl gpu ps",
    "Xorg :0",
    "nvidia-cuda-mps-server",
    "[python]",
    "tini -- sleep",
)
DEVICES = st.none() | st.frozensets(
    st.sampled_from(["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"]), max_size=3
)
PIDS = st.integers(1, 14)


@st.composite
def processes(draw: st.DrawFn) -> dict[int, HostProcess]:
    """Up to 14 processes whose parents, sessions, names and files are at odds with each other."""
    found = {1: replace(INIT, title=draw(st.sampled_from(["/sbin/init", *TITLES])))}
    for pid in draw(st.sets(st.integers(2, 14))):
        found[pid] = process(
            pid,
            draw(st.sampled_from(TITLES)),
            start_time=draw(st.integers(0, 30)),
            state=draw(st.sampled_from("SSSRDZT")),
            ppid=draw(st.integers(0, 14)),
            session=draw(PIDS),
            group=draw(PIDS),
            nonce=draw(st.sampled_from([None, None, "", *NONCES])),
            cgroup=draw(st.sampled_from([None, "/", *(f"/x/opsctl-{n}" for n in NONCES)])),
            devices=draw(DEVICES),
            ports=draw(st.sampled_from([(), (30000,)])),
            wchan=draw(st.sampled_from([None, "uvm_spin_loop", "do_wait"])),
            uid=draw(st.sampled_from([None, 0, 1000])),
        )
    return found


@st.composite
def engines(draw: st.DrawFn) -> list[KnownEngine]:
    return [
        KnownEngine(
            nonce=nonce,
            pid=draw(PIDS),
            start_time=draw(st.integers(0, 30)),
            session=draw(PIDS),
            cgroup=None,
            alive=alive,
            where=f"/state/{nonce[0]}",
            gone="" if alive else "its supervisor (pid 4711)",
            main_alive=draw(st.booleans()),
        )
        for nonce in draw(st.sets(st.sampled_from(NONCES[:2])))
        for alive in [draw(st.booleans())]
    ]


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    memory = st.none() | st.integers(0, 40 * GIB)
    uses = draw(
        st.lists(
            st.builds(
                GpuUse,
                st.integers(0, 1),
                st.integers(1, 16),
                st.sampled_from(["compute", "graphics", "mps"]),
                memory,
            ),
            max_size=6,
        )
    )
    gpus = tuple(
        gpu(
            index,
            memory_used=draw(memory),
            memory_reserved=draw(st.none() | st.just(600 * MIB)),
            minor=draw(st.sampled_from([index, None])),
        )
        for index in range(2)
    )
    return Snapshot("ok", gpus=gpus, uses=tuple(uses))


HOSTS = st.tuples(snapshots(), processes(), engines(), st.sampled_from([None, True, False]))
Host = tuple[Snapshot, dict[int, HostProcess], list[KnownEngine], bool | None]


def taken(host: Host) -> Census:
    rows, table, known, host_pids = host
    return census(rows, table, known, me=ME, host_pids=host_pids)


def ancestors(pid: int, table: dict[int, HostProcess]) -> set[int]:
    found: set[int] = set()
    while pid in table and pid not in found:
        found.add(pid)
        pid = table[pid].ppid
    return found | {pid}


@settings(max_examples=100, deadline=None)
@given(HOSTS)
def test_no_process_gets_two_verdicts_and_each_has_evidence(host: Host) -> None:
    found = taken(host)
    counted = Counter(h.pid for h in found.holders if h.process is not None)
    assert all(times == 1 for times in counted.values())
    assert all(h.evidence and all(h.evidence) for h in found.holders)


@settings(max_examples=100, deadline=None)
@given(HOSTS)
def test_an_orphan_is_proved_ours_by_itself_or_by_a_parent(host: Host) -> None:
    _, table, known, _ = host
    for holder in taken(host).holders:
        if holder.verdict is not Verdict.ORPHAN:
            continue
        assert holder.process is not None
        family = [table[p] for p in ancestors(holder.process.pid, table) if p in table]
        assert any(has_proof(member, known) for member in family)


def has_proof(one: HostProcess, known: list[KnownEngine]) -> bool:
    in_session = any(one.session == e.session and one.start_time >= e.start_time for e in known)
    return bool(one.nonce) or "opsctl-" in (one.cgroup or "") or in_session


@settings(max_examples=100, deadline=None)
@given(HOSTS)
def test_nothing_of_an_engine_without_supervisor_is_managed(host: Host) -> None:
    dead = {engine.nonce for engine in host[2] if not engine.alive}
    for holder in taken(host).holders:
        if holder.process is not None and holder.process.nonce in dead:
            assert holder.verdict is not Verdict.MANAGED


@settings(max_examples=100, deadline=None)
@given(HOSTS)
def test_nothing_of_a_supervised_engine_is_orphan_or_stray(host: Host) -> None:
    alive = {engine.nonce for engine in host[2] if engine.alive}
    for holder in taken(host).holders:
        if holder.process is not None and holder.process.nonce in alive:
            assert holder.verdict not in {Verdict.ORPHAN, Verdict.STRAY}


@settings(max_examples=100, deadline=None)
@given(HOSTS)
def test_opsctl_and_its_parents_are_nothing_that_could_be_ended(host: Host) -> None:
    ours = ancestors(ME, host[1])
    for holder in taken(host).holders:
        if holder.process is not None and holder.pid in ours:
            assert holder.verdict in {Verdict.FOREIGN, Verdict.MANAGED}


@settings(max_examples=100, deadline=None)
@given(HOSTS)
def test_the_rows_of_nvml_are_each_in_one_holder(host: Host) -> None:
    rows = host[0]
    expected = Counter({(use.pid, use.gpu) for use in rows.uses})
    owned = [h for h in taken(host).holders if h.verdict is not Verdict.PHANTOM]
    assert Counter((h.pid, number) for h in owned for number in h.per_gpu) == expected


@settings(max_examples=100, deadline=None)
@given(HOSTS)
def test_memory_is_neither_lost_nor_counted_twice(host: Host) -> None:
    rows, found = host[0], taken(host)
    for board in rows.gpus:
        held = [h.per_gpu[board.index] for h in found.holders if board.index in h.per_gpu]
        phantom = any(h.verdict is Verdict.PHANTOM and board.index in h.gpus for h in found.holders)
        if phantom:
            assert sum(value or 0 for value in held) + reserve(board) == board.memory_used


def reserve(board: Gpu) -> int:
    return board.memory_reserved or 0


@settings(max_examples=100, deadline=None)
@given(HOSTS)
def test_what_is_unmapped_is_no_process_of_this_host(host: Host) -> None:
    for holder in taken(host).holders:
        if holder.verdict is Verdict.UNMAPPED:
            assert (holder.process, holder.start_time) == (None, None)
