"""`opsctl doctor collective` with real processes: what hangs is killed, and nothing is left.

GPUs are stood in for by a module named torch that behaves as it is told; the rank's own program
is the real one. One test sums with real torch and gloo, without a GPU.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.cli.main import run as opsctl
from opsctl.doctor import collective as collectives
from opsctl.doctor.collective import Collective, Setting, collective
from opsctl.system import cgroup, procfs
from tests.support.doctor.driver import FakeDriver
from tests.support.sglang_cpu.environment import UnavailableError, provide

STAND_IN = '''
"""A stand-in for torch that behaves as the file `mode` beside it says."""

import os
import signal
import subprocess
import sys
import time
import types

MODE = open(os.path.join(os.path.dirname(__file__), "mode")).read().split()
DISABLED = os.environ.get("NCCL_P2P_DISABLE") == "1"
__version__ = "stand-in"
float32 = "float32"
version = types.SimpleNamespace(cuda="13.0")
cuda = types.SimpleNamespace(
    is_available=lambda: "no-cuda" not in MODE,
    device_count=lambda: 0 if "no-cuda" in MODE else 2,
    set_device=lambda rank: None,
)
if "slow-import" in MODE:
    time.sleep(600)


def hang():
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    if "children" in MODE:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", __file__],
                         start_new_session=True)
    while True:
        time.sleep(600)


class Numbers:
    def __init__(self, values):
        self.values = values

    def __mod__(self, number):
        return Numbers([x % number for x in self.values])

    def __add__(self, number):
        return Numbers([x + number for x in self.values])

    def __rmul__(self, number):
        return Numbers([x * number for x in self.values])

    def __ne__(self, other):
        return Numbers([int(x != y) for x, y in zip(self.values, other.values)])

    def to(self, kind):
        return self

    def sum(self):
        return Numbers([sum(self.values)])

    def item(self):
        return self.values[0]


def arange(size, device):
    return Numbers(list(range(min(size, 4096))))
'''
DISTRIBUTED = '''
import sys

import torch

RANK = 0


def is_nccl_available():
    return "no-nccl" not in torch.MODE


def get_rank():
    return RANK


def init_process_group(backend, init_method, rank, world_size):
    global RANK
    RANK = rank
    assert backend == "nccl" and init_method.startswith("file:///") and world_size == 2


def all_reduce(values):
    """The other rank has the same values but for its number."""
    bad = not torch.DISABLED or "both-ways" in torch.MODE
    if "crash-alone" in torch.MODE and bad:
        if RANK == 0:
            torch.hang()
        raise RuntimeError("NCCL error: remote process exited")
    if "hang" in torch.MODE and bad and (RANK == 1 or "one-rank" not in torch.MODE):
        torch.hang()
    if "crash" in torch.MODE and bad:
        raise RuntimeError("NCCL error: unhandled system error")
    way = "SHM/direct/direct" if torch.DISABLED or "chooses-shm" in torch.MODE else "P2P/CUMEM"
    print(f"host:1:2 [{RANK}] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via {way}", flush=True)
    values.values = [2 * x - RANK + (1 - RANK) for x in values.values]
    if "wrong" in torch.MODE and bad:
        values.values[7] += 1
'''
FEW_SECONDS = 4.0
"""For a stand-in: long enough to start twice on a busy machine."""


@pytest.fixture
def torch(tmp_path: Path) -> Iterator[Path]:
    """The folder of the stand-in; nothing that was started from it is left."""
    folder = tmp_path / "torch-stand-in" / "torch"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(STAND_IN)
    (folder / "distributed.py").write_text(DISTRIBUTED)
    yield folder
    left = {pid: procfs.title(pid) for pid in procfs.pids() if str(tmp_path) in procfs.title(pid)}
    assert left == {}


def interpreter(torch: Path, *modes: str) -> str:
    (torch / "mode").write_text(" ".join(modes))
    path = torch.parent / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH={torch.parent} exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


def tried(torch: Path, *modes: str, seconds: float = 30.0) -> Collective:
    return collective(Setting(interpreter(torch, *modes), seconds=seconds))


def test_two_ranks_that_sum_right_are_ok(torch: Path) -> None:
    found = tried(torch, "fine")
    assert (found.verdict.verdict, found.verdict.why) == ("ok", "by P2P")
    assert [run.outcome for run in found.runs] == ["ok"]


def test_a_hang_with_peer_to_peer_that_goes_without_is_told_so(torch: Path) -> None:
    found = tried(torch, "hang", seconds=FEW_SECONDS)
    assert found.verdict.verdict == "ok without peer-to-peer", found
    assert [run.outcome for run in found.runs] == ["hang", "ok"]
    assert found.runs[0].stage == "joined"
    assert found.runs[1].transport == "SHM"


def test_a_hang_both_ways_hangs_and_ends_in_time(torch: Path) -> None:
    began = time.monotonic()
    found = tried(torch, "hang", "both-ways", seconds=FEW_SECONDS)
    assert found.verdict.verdict == "hangs"
    assert found.left == ()
    assert time.monotonic() - began < 2 * FEW_SECONDS + 10


def test_one_rank_alone_that_hangs_is_a_hang(torch: Path) -> None:
    found = tried(torch, "hang", "both-ways", "one-rank", seconds=FEW_SECONDS)
    assert found.verdict.verdict == "hangs"


def test_a_child_that_left_the_session_is_ended_too(torch: Path) -> None:
    if cgroup.writable_parent() is None:
        pytest.skip("no cgroup can be made here, so such a child cannot be held")
    found = tried(torch, "hang", "both-ways", "children", seconds=FEW_SECONDS)
    assert found.verdict.verdict == "hangs"
    sleepers = [pid for pid in procfs.pids() if str(torch) in procfs.title(pid)]
    assert sleepers == []


def test_without_a_cgroup_both_sessions_are_ended(
    torch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "writable_parent", lambda: None)
    found = tried(torch, "hang", "both-ways", seconds=FEW_SECONDS)
    assert (found.verdict.verdict, found.left) == ("hangs", ())


def test_a_rank_that_waits_for_one_that_failed_is_not_waited_for(torch: Path) -> None:
    began = time.monotonic()
    found = tried(torch, "crash-alone", "both-ways", seconds=60.0)
    assert time.monotonic() - began < 50
    assert found.verdict.verdict == "fails"
    assert "remote process exited" in found.verdict.why


def test_a_wrong_sum_is_no_success(torch: Path) -> None:
    found = tried(torch, "wrong", "both-ways")
    assert found.verdict.verdict == "fails"
    assert "wrong sum (1 of 1024 sums)" in found.verdict.why
    assert tried(torch, "wrong").verdict.verdict == "ok without peer-to-peer"


def test_an_error_is_told_in_its_own_words(torch: Path) -> None:
    found = tried(torch, "crash", "both-ways")
    assert found.verdict.verdict == "fails"
    assert "NCCL error: unhandled system error" in found.verdict.why


def test_nccl_that_avoids_peer_to_peer_by_itself_is_told(torch: Path) -> None:
    found = tried(torch, "chooses-shm")
    assert found.verdict.verdict == "ok without peer-to-peer"
    assert len(found.runs) == 1


@pytest.mark.parametrize(
    ("mode", "why"),
    [("no-cuda", "CUDA shows torch 0 of 2 GPUs"), ("no-nccl", "without CUDA or NCCL")],
)
def test_what_cannot_be_tried_is_not_possible(torch: Path, mode: str, why: str) -> None:
    found = tried(torch, mode)
    assert found.verdict.verdict == "not possible"
    assert why in found.verdict.why
    assert len(found.runs) == 1


def test_an_import_that_takes_too_long_is_no_hang(torch: Path) -> None:
    found = tried(torch, "slow-import", seconds=2.0)
    assert (found.verdict.verdict, found.verdict.why) == (
        "not possible",
        "torch was not imported in time",
    )


def test_an_interpreter_without_torch_is_not_possible(tmp_path: Path) -> None:
    found = collective(Setting(sys.executable, seconds=30.0))
    assert found.verdict.verdict == "not possible"
    assert "torch cannot be imported" in found.verdict.why


def test_ranks_get_a_clean_environment_and_the_gpus_by_pci_order(
    torch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, str]] = []
    real = collectives.spawn

    def spawn(argv: list[str], *, environment: dict[str, str], **rest: object) -> int:
        seen.append(environment)
        return real(argv, environment=environment, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(collectives, "spawn", spawn)
    own = {"PATH": os.environ["PATH"], "NCCL_P2P_LEVEL": "SYS", "HF_TOKEN": "canary"}
    collective(Setting(interpreter(torch, "fine"), gpus=(2, 5), environment=own))
    assert len(seen) == 2
    for environment in seen:
        assert environment["CUDA_VISIBLE_DEVICES"] == "2,5"
        assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert "NCCL_P2P_LEVEL" not in environment
        assert "NCCL_P2P_DISABLE" not in environment
        assert "canary" not in environment.values()


def test_ranks_end_with_the_opsctl_that_started_them(torch: Path) -> None:
    python = interpreter(torch, "hang", "both-ways")
    root = Path(__file__).parents[2]
    script = (
        "from opsctl.doctor.collective import Setting, collective\n"
        f"collective(Setting({python!r}, seconds=60.0))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=root, start_new_session=True
    ) as starter:
        until = time.monotonic() + 30
        while len(ranks := _ranks(starter.pid)) < 2 and time.monotonic() < until:
            time.sleep(0.1)
        assert len(ranks) == 2
        starter.send_signal(signal.SIGKILL)
    while any(_lives(pid) for pid in ranks) and time.monotonic() < until:
        time.sleep(0.1)
    assert [pid for pid in ranks if _lives(pid)] == []


def _ranks(parent: int) -> set[int]:
    found = procfs.snapshot().items()
    return {pid for pid, x in found if x.ppid == parent and "collective.py" in procfs.title(pid)}


def _lives(pid: int) -> bool:
    found = procfs.stat(pid)
    return found is not None and found.state not in "ZX"


# --- the command line --------------------------------------------------------------------------


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    made = FakeDriver.healthy(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, object]]:
    code = opsctl(["doctor", "collective", "-o", "json", *words])
    out = capsys.readouterr().out
    return code, json.loads(out) if out else {}


def test_the_document_and_the_exit_code(
    torch: Path, driver: FakeDriver, capsys: pytest.CaptureFixture[str]
) -> None:
    python = interpreter(torch, "fine")
    code, document = asked(capsys, "--python", python, "--gpus", "1,3")
    assert code == 0
    assert document["schema"] == "opsctl/doctor-collective/v1"
    assert (document["verdict"], document["gpus"]) == ("ok", [1, 3])
    python = interpreter(torch, "crash", "both-ways")
    code, document = asked(capsys, "--python", python)
    assert (code, document["verdict"]) == (4, "fails")
    assert document["fix"]


def test_gpus_in_use_are_not_touched(
    torch: Path, driver: FakeDriver, capsys: pytest.CaptureFixture[str]
) -> None:
    driver.nvml.set_process(os.getpid(), gpus=[1])
    python = interpreter(torch, "fine")
    assert opsctl(["doctor", "collective", "--python", python, "--gpus", "0,1"]) == 4
    assert f"in use: pid {os.getpid()}" in capsys.readouterr().err
    assert asked(capsys, "--python", python, "--gpus", "2,3")[0] == 0


@pytest.mark.parametrize("gpus", ["0", "0,0", "0,1,2", "a,b", "0,-1", "0,²"])
def test_gpus_that_are_no_pair_are_a_usage_error(gpus: str) -> None:
    assert opsctl(["doctor", "collective", "--python", sys.executable, "--gpus", gpus]) == 2


def test_a_gpu_that_is_not_there_is_said(
    driver: FakeDriver, capsys: pytest.CaptureFixture[str]
) -> None:
    assert opsctl(["doctor", "collective", "--python", sys.executable, "--gpus", "7,8"]) == 4
    assert "there is no GPU 8" in capsys.readouterr().err


def test_an_interpreter_that_is_not_there_is_said(
    driver: FakeDriver, capsys: pytest.CaptureFixture[str]
) -> None:
    assert opsctl(["doctor", "collective", "--python", "/nowhere/python"]) == 4
    assert "/nowhere/python cannot be started" in capsys.readouterr().err


# --- real torch --------------------------------------------------------------------------------


@pytest.mark.sglang
def test_real_torch_sums_over_gloo(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        python = str(provide().python)
    except UnavailableError as error:
        pytest.skip(f"no environment with torch here: {error}")
    code, document = asked(capsys, "--backend", "gloo", "--python", python, "--timeout", "120s")
    assert (code, document["verdict"]) == (0, "ok"), document
