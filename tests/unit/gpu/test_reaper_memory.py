from __future__ import annotations

from collections.abc import Sequence

import pytest

from opsctl.gpu.model import Census, Gpu, GpuUse, Holder, HostProcess, Snapshot, Verdict
from opsctl.gpu.reaper_memory import TOLERANCE, releases
from opsctl.gpu.reaper_outcome import End, GpuRelease, Outcome, Result
from opsctl.gpu.reaper_plan import Target

GIB = 2**30
RESERVE = GIB // 2


def target(pid: int = 2, memory: int | None = 10 * GIB) -> Target:
    body = HostProcess(pid, pid * 10, "S", 1, pid, pid, "python", "sglang::scheduler_TP0")
    holder = Holder(
        Verdict.ORPHAN, pid, pid * 10, (0,), memory, ("because",), body, per_gpu={0: memory}
    )
    return Target(holder, ("TERM", "KILL"), "because", pid)


def census(used: int | None, *rows: tuple[int, int | None], state: str = "ok") -> Census:
    uses = tuple(GpuUse(0, pid, "compute", memory) for pid, memory in rows)
    gpus = (Gpu(0, memory_used=used, memory_reserved=RESERVE),)
    snapshot = Snapshot(state, gpus=gpus, uses=uses)  # type: ignore[arg-type]
    others = [
        Holder(Verdict.FOREIGN, pid, pid * 10, (0,), memory, ("because",)) for pid, memory in rows
    ]
    return Census(snapshot, tuple(others))


@pytest.mark.parametrize(
    ("before", "after", "released", "words"),
    [
        (census(RESERVE + 10 * GIB, (2, 10 * GIB)), census(RESERVE), True, "released"),
        (census(RESERVE + 10 * GIB, (2, 10 * GIB)), census(RESERVE + 10 * GIB), False, "not back"),
        (
            census(RESERVE + 10 * GIB, (2, 10 * GIB)),
            census(RESERVE + 10 * GIB, (2, 10 * GIB)),
            False,
            "still lists 2",
        ),
        # Another process has taken as much meanwhile: that is not a leak.
        (
            census(RESERVE + 10 * GIB, (2, 10 * GIB)),
            census(RESERVE + 10 * GIB, (3, 10 * GIB)),
            True,
            "still there: foreign 3",
        ),
        # NVML does not say who holds how much: only the sum is left to look at.
        (census(11 * GIB, (2, 10 * GIB), (3, None)), census(GIB, (3, None)), True, "released"),
        (census(11 * GIB, (2, 10 * GIB), (3, None)), census(11 * GIB, (3, None)), False, "not"),
        (census(11 * GIB), census(None), None, "unknown"),
        (census(11 * GIB), census(GIB, state="unresponsive"), None, "unknown"),
        (census(11 * GIB), Census(Snapshot("ok"), ()), None, "unknown"),
    ],
)
def test_release_is_judged_by_what_nobody_owns(
    before: Census, after: Census, released: bool | None, words: str
) -> None:
    (found,) = releases([target()], before, after)
    assert found.released is released
    assert words in found.why


def test_without_any_figures_nothing_is_claimed() -> None:
    (found,) = releases(
        [target(memory=None)], census(11 * GIB, (2, None)), census(11 * GIB, (3, None))
    )
    assert found.released is None


def test_a_little_may_stay() -> None:
    before = census(RESERVE + 10 * GIB, (2, 10 * GIB))
    assert releases([target()], before, census(RESERVE + TOLERANCE))[0].released
    assert releases([target()], before, census(RESERVE + TOLERANCE + 1))[0].released is False


def results(*ends: End) -> tuple[Result, ...]:
    return tuple(Result(target(number + 2), (), end) for number, end in enumerate(ends))


HELD = Holder(Verdict.FOREIGN, 9, 90, (0,), GIB, ("because",))
BACK = GpuRelease(0, GIB, 0, released=True, why="")
NOT_BACK = GpuRelease(0, GIB, GIB, released=False, why="")
UNKNOWN = GpuRelease(0, GIB, None, released=None, why="")


@pytest.mark.parametrize(
    ("ends", "memory", "facts", "code"),
    [
        ((), (), {}, 0),
        (("exited", "killed", "gone", "replaced"), (BACK,), {}, 0),
        (("exited",), (UNKNOWN,), {}, 0),
        (("exited",), (NOT_BACK,), {}, 5),
        (("exited",), (), {"ports_busy": ("port 1 is held by somebody",)}, 5),
        (("exited", "denied"), (), {}, 5),
        (("denied",), (), {}, 4),
        (("survived",), (), {}, 4),
        (("exited", "survived"), (), {}, 4),
        (("exited",), (BACK,), {"blocked_by": (HELD,)}, 4),
        ((), (), {"driver": "unresponsive"}, 4),
        ((), (), {"driver": "fault"}, 4),
        ((), (), {"driver": "absent"}, 0),
    ],
)
def test_one_exit_code_says_it_all(
    ends: Sequence[End], memory: tuple[GpuRelease, ...], facts: dict[str, object], code: int
) -> None:
    outcome = Outcome(results(*ends), memory, **facts)  # type: ignore[arg-type]
    assert outcome.exit_code == code
