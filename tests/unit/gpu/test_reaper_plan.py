from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.errors import UsageError
from opsctl.gpu import protected
from opsctl.gpu.model import (
    Census,
    Gpu,
    GpuUse,
    Holder,
    HostProcess,
    KnownEngine,
    Snapshot,
    Verdict,
)
from opsctl.gpu.reaper_plan import Plan, agreed, blocking, plan

ME, SHELL, ALICE, BOB = 50, 49, 1000, 1001
GIB = 2**30


def process(pid: int, **changes: object) -> HostProcess:
    plain = HostProcess(
        pid=pid,
        start_time=pid * 10,
        state="S",
        ppid=1,
        session=pid,
        group=pid,
        comm="python",
        title="sglang::scheduler_TP0",
        uid=ALICE,
        user="alice",
    )
    return replace(plain, **changes)


def holder(
    pid: int,
    verdict: Verdict,
    gpus: Sequence[int] = (0,),
    memory: int | None = GIB,
    **changes: object,
) -> Holder:
    return Holder(
        verdict=verdict,
        pid=pid,
        start_time=pid * 10,
        gpus=tuple(gpus),
        memory=memory,
        evidence=("because",),
        process=process(pid, **changes),
        per_gpu=dict.fromkeys(gpus, memory),
    )


def census(*holders: Holder, snapshot: Snapshot | None = None) -> Census:
    return Census(snapshot or Snapshot("ok", gpus=(Gpu(0), Gpu(1))), holders)


def planned(view: Census, **wishes: object) -> Plan:
    return plan(view, **{"caller_uid": ALICE, "me": ME, "spared": {SHELL}, **wishes})


def pids(found: Plan) -> list[int]:
    return [target.pid for target in found.targets]


def test_orphans_go_by_default_and_a_stray_waits_for_its_word() -> None:
    view = census(holder(2, Verdict.ORPHAN, nonce="n"), holder(3, Verdict.STRAY))
    found = planned(view)
    assert pids(found) == [2]
    assert [(left.holder.pid, left.word) for left in found.left] == [(3, "--include stray")]
    assert pids(planned(view, include=["stray"])) == [2, 3]


def test_an_orphan_that_holds_only_a_port_counts_but_not_when_a_gpu_is_named() -> None:
    view = census(holder(2, Verdict.ORPHAN, gpus=(), memory=0, nonce="n", ports=(30000,)))
    assert pids(planned(view)) == [2]
    assert pids(planned(view, gpus=[0])) == []


def test_strays_of_others_need_their_users_name() -> None:
    view = census(holder(3, Verdict.STRAY, uid=BOB, user="bob"))
    found = planned(view, include=["stray"])
    assert pids(found) == []
    assert found.left[0].word == "--include stray --user bob"
    assert pids(planned(view, include=["stray"], user="bob")) == [3]
    assert pids(planned(view, include=["stray"], user="alice")) == []


def test_everybodys_strays_are_for_root() -> None:
    view = census(holder(3, Verdict.STRAY, uid=BOB, user="bob"), holder(4, Verdict.STRAY))
    assert pids(planned(view, include=["stray"], user="all", caller_uid=0)) == [3, 4]
    assert pids(planned(view, include=["stray"], caller_uid=0)) == []
    with pytest.raises(UsageError):
        planned(view, include=["stray"], user="all")


@pytest.mark.parametrize(
    "word",
    ["strays", "foreign", "foreign:3", "foreign:3@", "foreign:-3@30", "foreign:03@30", "all"],
)
def test_words_that_mean_nothing_are_refused(word: str) -> None:
    with pytest.raises(UsageError, match="not understood"):
        planned(census(), include=[word])


def test_a_user_without_strays_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="strays are not included"):
        planned(census(), user="bob")


def test_foreign_goes_only_by_its_exact_identity() -> None:
    view = census(holder(3, Verdict.FOREIGN, uid=BOB), holder(4, Verdict.FOREIGN, uid=BOB))
    found = planned(view, include=["stray"])
    assert pids(found) == []
    assert found.left[0].word == "--include foreign:3@30"
    assert pids(planned(view, include=["foreign:3@30"])) == [3]


def test_an_identity_of_yesterday_is_refused_with_the_one_of_today() -> None:
    with pytest.raises(UsageError, match="process 3 of now started at 30"):
        planned(census(holder(3, Verdict.FOREIGN)), include=["foreign:3@29"])
    with pytest.raises(UsageError, match="no such process"):
        planned(census(), include=["foreign:3@30"])


@pytest.mark.parametrize(
    ("verdict", "changes", "words"),
    [
        (Verdict.MANAGED, {}, "opsctl stop"),
        (Verdict.UNMAPPED, {}, "cannot be matched"),
        (Verdict.STUCK, {"state": "D"}, "reset"),
        (Verdict.ZOMBIE, {"state": "Z", "ppid": 77}, "parent 77 does not reap"),
        (Verdict.FOREIGN, {"comm": "nvidia-cuda-mps", "title": "nvidia-cuda-mps-server"}, "MPS"),
        (Verdict.FOREIGN, {"session": 0, "title": "[nvidia-modeset]"}, "kernel"),
    ],
)
def test_some_no_word_reaches(verdict: Verdict, changes: dict[str, object], words: str) -> None:
    view = census(holder(3, verdict, **changes))
    found = planned(view, include=["stray", "foreign:3@30"], user="all", caller_uid=0)
    assert pids(found) == []
    assert words in found.left[0].why
    assert found.left[0].word is None


def test_process_one_opsctl_and_its_shell_are_never_touched() -> None:
    view = census(*(holder(pid, Verdict.ORPHAN) for pid in (1, ME, SHELL)))
    named = [f"foreign:{pid}@{pid * 10}" for pid in (1, ME, SHELL)]
    assert pids(planned(view, include=named)) == []


def test_an_orphan_of_a_launch_that_serves_is_no_orphan() -> None:
    engine = KnownEngine("n", 9, 90, 9, None, alive=True, where="state")
    view = census(holder(3, Verdict.ORPHAN, nonce="n"))
    assert pids(planned(view, engines=[engine])) == []


def test_infrastructure_goes_only_when_named_exactly() -> None:
    view = census(holder(3, Verdict.FOREIGN, comm="nvidia-persiste", title="nvidia-persistenced"))
    found = planned(view)
    assert "persistence daemon" in found.left[0].why
    assert found.left[0].word is None  # not a thing to advise
    assert pids(planned(view, include=["foreign:3@30"])) == [3]
    stray = census(holder(3, Verdict.STRAY, comm="nv-hostengine", title="nv-hostengine"))
    assert pids(planned(stray, include=["stray"])) == []


def test_clients_of_an_mps_server_are_left_whoever_they_are() -> None:
    server = holder(9, Verdict.FOREIGN, [0], comm="nvidia-cuda-mps", title="nvidia-cuda-mps-server")
    view = census(server, holder(3, Verdict.ORPHAN, [0, 1]), holder(4, Verdict.ORPHAN, [1]))
    found = planned(view)
    assert pids(found) == [4]
    assert "nvidia-cuda-mps-control" in found.left[1].why
    client = Snapshot("ok", gpus=(Gpu(0),), uses=(GpuUse(0, 3, "mps", GIB),))
    assert pids(planned(census(holder(3, Verdict.ORPHAN), snapshot=client))) == []


def test_a_silent_driver_leaves_only_what_is_proved_to_be_ours() -> None:
    view = census(
        holder(2, Verdict.ORPHAN), holder(3, Verdict.STRAY), snapshot=Snapshot("unresponsive")
    )
    found = planned(view, include=["stray"])
    assert pids(found) == [2]
    assert "driver does not answer" in found.left[0].why


def test_a_gpu_takes_the_whole_tree_and_spares_the_other_engine() -> None:
    view = census(
        holder(2, Verdict.ORPHAN, [0], nonce="a"),
        holder(3, Verdict.ORPHAN, [1], nonce="a"),
        holder(4, Verdict.ORPHAN, [], nonce="a"),
        holder(5, Verdict.ORPHAN, [1], nonce="b"),
        holder(6, Verdict.STRAY, [], title="python -m sglang.launch_server"),
        holder(7, Verdict.STRAY, [0], ppid=6),
        holder(8, Verdict.STRAY, [1], group=6),
    )
    assert pids(planned(view, gpus=[0], include=["stray"])) == [2, 3, 4, 6, 7]


def test_the_recorded_main_process_is_asked_first_else_the_root() -> None:
    view = census(
        holder(2, Verdict.ORPHAN, nonce="a"),
        holder(3, Verdict.ORPHAN, nonce="a"),
        holder(7, Verdict.STRAY, ppid=6),
        holder(6, Verdict.STRAY, title="python -m sglang.launch_server"),
    )
    engine = KnownEngine("a", 3, 30, 3, None, alive=False, where="state")
    found = planned(view, include=["stray"], engines=[engine])
    assert [(target.pid, target.main) for target in found.targets] == [
        (3, True),
        (2, False),
        (6, True),
        (7, False),
    ]
    without = planned(view, include=["stray"])
    assert [target.pid for target in without.targets if target.main] == [2, 3, 6]


def test_children_that_hold_nothing_go_with_their_parent() -> None:
    table = {
        5: process(5, ppid=3, title="ninja", uid=None),
        6: process(6, ppid=5, title="cicc", uid=None),
        7: process(7, ppid=3, uid=BOB),
        8: process(8, ppid=3, state="Z"),
        ME: process(ME, ppid=3),
        60: process(60, ppid=4),
        61: process(61, ppid=3, start_time=29),  # older than its parent: not its child
        62: process(62, ppid=3, nonce="living"),
    }
    view = census(holder(3, Verdict.STRAY), holder(4, Verdict.FOREIGN))
    found = planned(
        view,
        include=["stray", "foreign:4@40"],
        processes=table,
        engines=[KnownEngine("living", 9, 90, 9, None, alive=True, where="state")],
    )
    assert pids(found) == [3, 5, 6, 4]


def test_living_members_of_a_zombies_group_are_targets_even_when_a_gpu_is_named() -> None:
    view = census(
        holder(2, Verdict.ZOMBIE, [0], state="Z", group=2),
        holder(3, Verdict.ORPHAN, [], group=2, nonce="a"),
        holder(4, Verdict.ORPHAN, [], group=4, nonce="b"),
    )
    assert pids(planned(view, gpus=[0])) == [3]


def test_a_stopped_process_is_let_go_on_so_that_it_sees_the_signal() -> None:
    view = census(holder(2, Verdict.ORPHAN, state="T"), holder(3, Verdict.ORPHAN))
    assert [target.signals for target in planned(view).targets] == [
        ("TERM", "CONT", "KILL"),
        ("TERM", "KILL"),
    ]


def test_memory_to_come_back_is_unknown_when_a_part_of_it_is() -> None:
    view = census(
        holder(2, Verdict.ORPHAN, [0, 1], nonce="a"),
        holder(3, Verdict.ORPHAN, [1], None, nonce="a"),
    )
    assert planned(view).memory == {0: GIB, 1: None}


def test_what_was_taken_over_while_somebody_thought_is_not_ended() -> None:
    shown = planned(census(holder(2, Verdict.ORPHAN, nonce="n"), holder(3, Verdict.ORPHAN)))
    fresh = planned(
        census(
            holder(2, Verdict.MANAGED, nonce="n"),
            holder(3, Verdict.ORPHAN),
            holder(4, Verdict.ORPHAN),
        )
    )
    assert pids(agreed(shown, fresh)) == [3]


def test_workers_of_a_stray_server_have_the_user_of_the_server() -> None:
    view = census(
        holder(6, Verdict.STRAY, title="python -m sglang.launch_server"),
        holder(7, Verdict.STRAY, [], ppid=6, uid=None, user=None),
        holder(8, Verdict.STRAY, [], ppid=1, uid=None, user=None),
    )
    found = planned(view, include=["stray"])
    assert pids(found) == [6, 7]
    assert [left.word for left in found.left] == ["--include foreign:8@80"]


def test_what_serves_and_what_belongs_there_does_not_block() -> None:
    holders = (
        holder(2, Verdict.MANAGED),
        holder(3, Verdict.FOREIGN, comm="Xorg", title="/usr/lib/xorg/Xorg :0"),
        holder(4, Verdict.FOREIGN, gpus=(), memory=0),
        holder(5, Verdict.FOREIGN, memory=None),
        holder(6, Verdict.UNMAPPED, [1]),
    )
    assert [one.pid for one in blocking(holders, None)] == [5, 6]
    assert [one.pid for one in blocking(holders, [0])] == [5]


TITLES = [
    "sglang::scheduler_TP0",
    "python -m sglang.launch_server",
    "nvidia-cuda-mps-server",
    "nvidia-persistenced",
    "[kworker]",
    "",
]


@st.composite
def holders(draw: st.DrawFn, pid: int) -> Holder:
    lived = draw(st.booleans())
    start = draw(st.sampled_from([pid * 10, pid * 10 + 1, None]))
    title = draw(st.sampled_from(TITLES))
    body = process(
        pid,
        title=title,
        comm=title[:15],
        state=draw(st.sampled_from("SRDTZ")),
        ppid=draw(st.integers(0, 12)),
        session=draw(st.integers(0, 12)),
        group=draw(st.integers(0, 12)),
        uid=draw(st.sampled_from([0, ALICE, BOB, None])),
        user=draw(st.sampled_from(["root", "alice", "bob", None])),
        nonce=draw(st.sampled_from([None, "living", "dead"])),
        cgroup=draw(st.sampled_from([None, "/", "/opsctl-dead", "/opsctl-"])),
    )
    gpus = draw(st.sets(st.integers(0, 1)))
    return Holder(
        verdict=draw(st.sampled_from(list(Verdict))),
        pid=pid,
        start_time=start,
        gpus=tuple(gpus),
        memory=draw(st.sampled_from([0, GIB, None])),
        evidence=(),
        process=body if lived else None,
        per_gpu=dict.fromkeys(gpus, GIB),
    )


@given(data=st.data())
def test_no_plan_ever_holds_what_may_not_be_touched(data: st.DataObject) -> None:
    found = [data.draw(holders(pid)) for pid in data.draw(st.sets(st.integers(1, 12)))]
    table = {
        one.pid: data.draw(holders(one.pid)).process or process(one.pid)
        for one in found
        if one.pid is not None
    } | {pid: process(pid, ppid=data.draw(st.integers(1, 12))) for pid in (20, 21, SHELL, ME)}
    exact = [one for one in found if one.start_time and data.draw(st.booleans())]
    stray = data.draw(st.booleans())
    caller = data.draw(st.sampled_from([0, ALICE]))
    state = data.draw(st.sampled_from(["ok", "absent", "fault", "unresponsive"]))
    spared = data.draw(st.sets(st.integers(1, 12), max_size=3)) | {SHELL}
    view = census(*found, snapshot=Snapshot(state, gpus=(Gpu(0), Gpu(1))))
    scope = data.draw(st.sampled_from([None, [0], [1], []]))
    result = plan(
        view,
        gpus=scope,
        include=[f"foreign:{one.pid}@{one.start_time}" for one in exact] + ["stray"] * stray,
        user=data.draw(st.sampled_from([None, "bob"])) if stray else None,
        caller_uid=caller,
        me=ME,
        spared=spared,
        processes=table,
        engines=[
            KnownEngine("living", 2, 20, 2, None, alive=True, where="a"),
            KnownEngine("dead", 3, 30, 3, None, alive=False, where="b"),
        ],
    )
    by_pid = {one.pid: one for one in found}
    named = {(one.pid, one.start_time) for one in exact}
    taken = [target.pid for target in result.targets]
    assert len(taken) == len(set(taken))
    for target in result.targets:
        body = target.holder.process
        assert body is not None
        assert target.pid > 1
        assert target.pid not in spared | {ME}
        assert (target.pid, target.start_time) == (body.pid, body.start_time)
        assert body.state not in "ZX"
        assert protected.kind_of(body) in ({None, "infrastructure"})
        assert target.signals[0] == "TERM"
        assert target.tree in taken
        verdict = by_pid[target.pid].verdict if target.pid in by_pid else target.holder.verdict
        assert verdict in {Verdict.ORPHAN, Verdict.STRAY, Verdict.FOREIGN}
        is_named = (target.pid, target.start_time) in named
        if protected.kind_of(body) or verdict is Verdict.FOREIGN:
            assert is_named
        if verdict is Verdict.STRAY and not is_named:
            assert stray
        if state in {"fault", "unresponsive"}:
            assert verdict is Verdict.ORPHAN
        assert body.nonce != "living"
    assert "living" not in result.nonces
    left = {one.holder.pid for one in result.left}
    assert not left & set(taken)
    if scope is None:
        assert set(by_pid) <= left | set(taken)
