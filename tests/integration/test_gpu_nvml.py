"""The real NVML bindings against a fake library: what is read, and that nothing ever hangs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.gpu import nvml, nvml_process
from opsctl.gpu.model import Gpu, GpuUse
from opsctl.gpu.nvml import Nvml
from opsctl.system import procfs
from tests.support import fake_nvml
from tests.support.fake_nvml import GIB, MIB, FakeNvml, compile_library

NOWHERE = 2**22 + 1  # above the largest process number there can be
READ = 20.0  # a generous deadline for readings that are to succeed


def helpers() -> set[int]:
    """Living helpers of this process."""
    return {
        pid
        for pid, entry in procfs.snapshot().items()
        if entry.ppid == os.getpid() and "opsctl.gpu.nvml_helper" in procfs.title(pid)
    }


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert helpers() == set()


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    made = FakeNvml.eight_sm120(tmp_path)
    use(made, monkeypatch)
    return made


def use(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_a_healthy_host_is_read_whole(fake: FakeNvml) -> None:
    snapshot = nvml.read(deadline=READ)
    assert (snapshot.state, snapshot.why) == ("ok", "")
    assert (snapshot.driver, snapshot.cuda) == ("580.95.05", "13.0")
    assert [gpu.index for gpu in snapshot.gpus] == list(range(8))
    assert snapshot.gpus[7] == Gpu(
        index=7,
        uuid="GPU-00000000-0000-0000-0000-000000000007",
        name="NVIDIA RTX PRO 6000 Blackwell Server Edition",
        compute_capability=(12, 0),
        memory_total=97887 * MIB,
        memory_used=636 * MIB,
        memory_reserved=636 * MIB,
        power=35.5,
        power_limit=600.0,
        temperature=31,
        utilization=0,
        pcie_generation=1,
        pcie_width=16,
        pcie_generation_max=5,
        pcie_width_max=16,
        bus_id="0000:81:00.0",
        minor=7,
        persistence=True,
    )
    assert snapshot.uses == ()


def test_processes_of_every_kind_are_listed(
    fake: FakeNvml, sleeper: subprocess.Popen[bytes]
) -> None:
    fake.set_process(sleeper.pid, gpus=[0, 1], memory=90 * GIB)
    fake.set_process(NOWHERE, gpus=[2], memory=GIB, kinds=["compute", "graphics"])
    fake.set_process(NOWHERE + 1, gpus=[2], memory=GIB, kinds=["mps"], reported=False)
    snapshot = nvml.read(deadline=READ)
    assert snapshot.uses == (
        GpuUse(0, sleeper.pid, "compute", 90 * GIB),
        GpuUse(1, sleeper.pid, "compute", 90 * GIB),
        GpuUse(2, NOWHERE, "compute", GIB),
        GpuUse(2, NOWHERE + 1, "mps", None),
    )
    assert snapshot.gpus[0].memory_used == 90 * GIB + 636 * MIB
    assert snapshot.gpus[2].memory_used == 2 * GIB + 636 * MIB


def test_more_processes_than_one_guess_of_the_table_size(fake: FakeNvml) -> None:
    for number in range(40):
        fake.set_process(NOWHERE + number, gpus=[0], memory=MIB)
    assert len(nvml.read(deadline=READ).uses) == 40


@pytest.mark.parametrize("name", ["NotSupported", "NoPermission", "FunctionNotFound"])
def test_a_value_that_is_not_given_is_unknown_and_no_fault(fake: FakeNvml, name: str) -> None:
    for function in (
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetName",
        "nvmlDeviceGetPciInfo",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetFieldValues",
    ):
        fake.error(function, name, gpu=1)
    snapshot = nvml.read(deadline=READ)
    broken = snapshot.gpus[1]
    assert snapshot.state == "ok"
    assert broken.fault is None
    assert [
        broken.power,
        broken.temperature,
        broken.utilization,
        broken.memory_used,
        broken.memory_total,
        broken.name,
        broken.bus_id,
    ] == [None] * 7
    assert snapshot.gpus[0].power == snapshot.gpus[2].power == 35.5


def test_older_interfaces_are_used_where_the_newest_are_missing(fake: FakeNvml) -> None:
    fake.gpus[0].used = GIB
    fake.set_process(NOWHERE, gpus=[0], memory=GIB)
    fake.error("nvmlDeviceGetMemoryInfo_v2", "FunctionNotFound")
    fake.error("nvmlDeviceGetComputeRunningProcesses_v3", "FunctionNotFound")
    snapshot = nvml.read(deadline=READ)
    assert snapshot.gpus[0].memory_reserved is None
    assert snapshot.gpus[0].memory_used == 2 * GIB + 636 * MIB  # version 1 counts the reserve
    assert snapshot.uses == (GpuUse(0, NOWHERE, "compute", GIB),)


def test_mig_instances_are_read_one_by_one_when_the_sum_is_not_allowed(fake: FakeNvml) -> None:
    fake.gpus[0].mig, fake.gpus[0].instances = True, 2
    fake.set_process(NOWHERE, gpus=[0], memory=GIB, instance=(1, 0))
    fake.set_process(NOWHERE, gpus=[0], memory=2 * GIB, instance=(2, 0))
    expected = (GpuUse(0, NOWHERE, "compute", 3 * GIB),)
    snapshot = nvml.read(deadline=READ)
    assert snapshot.gpus[0].mig is True
    assert snapshot.uses == expected
    fake.error("nvmlDeviceGetComputeRunningProcesses", "NoPermission", gpu=0)
    assert nvml.read(deadline=READ).uses == expected


def test_a_lost_gpu_is_a_fault_of_that_gpu_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(FakeNvml.lost(tmp_path, gpu=3), monkeypatch)
    snapshot = nvml.read(deadline=READ)
    assert snapshot.state == "ok"
    assert len(snapshot.gpus) == 8
    assert "GPU is lost" in (snapshot.gpus[3].fault or "")
    assert snapshot.gpus[3].memory_used is None
    assert [gpu.fault for gpu in snapshot.gpus if gpu.index != 3] == [None] * 7


def test_a_gpu_lost_between_two_calls_keeps_what_was_read(fake: FakeNvml) -> None:
    fake.error("nvmlDeviceGetPowerUsage", "GpuIsLost", gpu=2)
    gpu = nvml.read(deadline=READ).gpus[2]
    assert "GPU is lost" in (gpu.fault or "")
    assert gpu.name is not None


def test_a_memory_reading_that_fails_is_a_fault(fake: FakeNvml) -> None:
    fake.error("nvmlDeviceGetMemoryInfo", "Unknown", gpu=2)
    fake.error("nvmlDeviceGetPowerUsage", "Unknown", gpu=4)
    gpus = nvml.read(deadline=READ).gpus
    assert gpus[2].fault == "nvmlDeviceGetMemoryInfo_v2 failed: Unknown Error"
    assert (gpus[4].fault, gpus[4].power) == (None, None)


@pytest.mark.parametrize(
    ("action", "word"), [(1, "reset"), (2, "reboot"), (4, "reset"), (6, "reset"), (7, "reboot")]
)
def test_the_driver_says_itself_what_a_gpu_needs(fake: FakeNvml, action: int, word: str) -> None:
    fake.gpus[5].recovery = action
    fake.write()
    gpus = nvml.read(deadline=READ).gpus
    assert word in (gpus[5].fault or "")
    assert gpus[4].fault is None


def test_a_mismatch_of_driver_and_library_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(FakeNvml.mismatch(tmp_path), monkeypatch)
    snapshot = nvml.read(deadline=READ)
    assert snapshot.state == "fault"
    assert "do not match" in snapshot.why
    assert "13.580.95.05" in snapshot.why


def test_an_init_error_is_a_fault(fake: FakeNvml) -> None:
    fake.init = fake_nvml.ERRORS["Unknown"]
    fake.write()
    snapshot = nvml.read(deadline=READ)
    assert snapshot.state == "fault"
    assert "code 999" in snapshot.why


def test_a_count_that_fails_is_not_a_host_without_gpus(fake: FakeNvml) -> None:
    fake.error("nvmlDeviceGetCount", "Unknown")
    snapshot = nvml.read(deadline=READ)
    assert (snapshot.state, snapshot.gpus) == ("fault", ())
    assert "nvmlDeviceGetCount" in snapshot.why


def test_no_driver_loaded_and_no_gpu_are_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeNvml.no_driver(tmp_path)
    use(fake, monkeypatch)
    assert nvml.read(deadline=READ).why == "the NVIDIA kernel module is not loaded"
    assert nvml.read(deadline=READ).state == "absent"
    fake.init = 0
    fake.write()
    assert nvml.read(deadline=READ).state == "absent"


def test_no_library_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A file that is no library stands for none, on hosts that have a real one too.
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    snapshot = nvml.read(deadline=READ)
    assert snapshot.state == "absent"
    assert "libnvidia-ml.so.1" in snapshot.why


def test_a_blocked_call_is_named_in_time_and_the_rest_is_told(fake: FakeNvml) -> None:
    fake.block("nvmlDeviceGetMemoryInfo", gpu=5)
    start = time.monotonic()
    snapshot = nvml.read(deadline=3.0)
    assert time.monotonic() - start < 10
    assert snapshot.state == "unresponsive"
    assert "the call nvmlDeviceGetMemoryInfo_v2 for GPU 5 did not return" in snapshot.why
    assert "not read: GPU 6, 7" in snapshot.why
    assert [gpu.memory_used for gpu in snapshot.gpus] == [636 * MIB] * 5 + [None]
    assert snapshot.gpus[5].fault is not None
    assert snapshot.gpus[5].name is not None


@pytest.mark.parametrize("hard", [False, True])
def test_a_driver_that_hangs_at_once_is_unresponsive_and_can_recover(
    fake: FakeNvml, hard: bool
) -> None:
    fake.block("nvmlInitWithFlags", hard=hard)
    start = time.monotonic()
    snapshot = nvml.read(deadline=2.0)
    assert time.monotonic() - start < 10
    assert snapshot.state == "unresponsive"
    assert "nvmlInit" in snapshot.why
    fake.heal()
    assert nvml.read(deadline=READ).state == "ok"


def test_slow_calls_are_waited_for_as_long_as_each_returns(fake: FakeNvml) -> None:
    """Without persistence mode each GPU takes a second to wake; all of them exceed a deadline."""
    fake.slow("nvmlDeviceGetHandleByIndex", 0.3)
    start = time.monotonic()
    snapshot = nvml.read(deadline=1.5)
    assert snapshot.state == "ok", snapshot.why
    assert time.monotonic() - start > 2.0


def test_slow_calls_end_too(fake: FakeNvml) -> None:
    fake.slow("nvmlDeviceGetName", 0.4)
    fake.slow("nvmlDeviceGetUUID", 0.4)
    start = time.monotonic()
    snapshot = nvml.read(deadline=0.7)  # 4.2 s for all calls; they would take 6.4
    assert time.monotonic() - start < 6.2
    assert snapshot.state == "unresponsive"
    assert "for all its calls" in snapshot.why
    assert 0 < len(snapshot.gpus) < 8
    assert all(gpu.fault is None for gpu in snapshot.gpus)


def test_a_library_that_crashes_is_a_fault(fake: FakeNvml) -> None:
    fake.crash("nvmlDeviceGetUUID", gpu=2)
    snapshot = nvml.read(deadline=READ)
    assert snapshot.state == "fault"
    assert "nvmlDeviceGetUUID for GPU 2" in snapshot.why
    assert "SIGABRT" in snapshot.why
    assert [gpu.index for gpu in snapshot.gpus] == [0, 1]


def test_the_state_is_read_live(fake: FakeNvml) -> None:
    with Nvml() as reader:
        assert reader.read(deadline=READ).gpus[0].memory_used == 636 * MIB
        fake.gpus[0].used = GIB
        fake.write()
        assert reader.read(deadline=READ).gpus[0].memory_used == GIB + 636 * MIB
        fake.error("nvmlDeviceGetMemoryInfo", "GpuIsLost", gpu=0)
        assert reader.read(deadline=READ).gpus[0].fault is not None
        fake.heal()
        assert reader.read(deadline=READ).gpus[0].fault is None


def test_memory_comes_back_some_time_after_a_death(fake: FakeNvml) -> None:
    with subprocess.Popen(["sleep", "600"]) as process, Nvml() as reader:
        fake.set_process(process.pid, gpus=[0], memory=GIB, linger=0.5)
        fake.set_process(process.pid, gpus=[1], memory=GIB, linger=None, ghost=True)
        assert len(reader.read(deadline=READ).uses) == 2
        process.kill()
        process.wait()
        first = reader.read(deadline=READ)
        assert [use.gpu for use in first.uses] == [1]  # its row is still in the driver's table
        assert first.gpus[0].memory_used == GIB + 636 * MIB
        deadline = time.monotonic() + 5
        while reader.read(deadline=READ).gpus[0].memory_used != 636 * MIB:
            assert time.monotonic() < deadline
        assert reader.read(deadline=READ).gpus[1].memory_used == GIB + 636 * MIB


def test_one_helper_serves_many_readings_and_leaves_after_them(fake: FakeNvml) -> None:
    fake.log = True
    fake.write()
    with Nvml(keep=60) as reader:
        for _ in range(3):
            assert reader.read(deadline=READ).state == "ok"
        assert len(helpers()) == 1
    assert helpers() == set()
    assert sum(name.startswith("nvmlInit") for _, _, name in fake.calls()) == 1


def test_a_kept_helper_ends_by_itself_and_is_replaced(fake: FakeNvml) -> None:
    reader = Nvml(keep=0.1)
    assert reader.read(deadline=READ).state == "ok"
    deadline = time.monotonic() + 5
    while helpers():
        assert time.monotonic() < deadline, "still there"
        time.sleep(0.02)
    assert reader.read(deadline=READ).state == "ok"
    reader.close()


def test_a_kept_reader_sees_a_driver_that_comes_and_goes(fake: FakeNvml) -> None:
    fake.init = fake_nvml.ERRORS["DriverNotLoaded"]
    fake.log = True
    fake.write()
    with Nvml() as reader:
        assert reader.read(deadline=READ).state == "absent"
        assert reader.read(deadline=READ).state == "absent"
        fake.init = 0
        fake.write()
        assert reader.read(deadline=READ).state == "ok"
    # The real library does not get over a failed start: each was tried with a fresh one.
    assert len({pid for pid, _, name in fake.calls() if name.startswith("nvmlInit")}) == 3


def test_a_helper_that_was_killed_is_replaced(fake: FakeNvml) -> None:
    with Nvml() as reader:
        assert reader.read(deadline=READ).state == "ok"
        (pid,) = helpers()
        os.kill(pid, signal.SIGKILL)
        assert reader.read(deadline=READ).state == "ok"


def test_the_helper_gets_no_secret(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with Nvml() as reader:
        reader.read(deadline=READ)
        (pid,) = helpers()
        environment = Path(f"/proc/{pid}/environ").read_text()
        assert "LD_LIBRARY_PATH" in environment
        assert "hf_secret" not in environment
        entry = procfs.stat(pid)
        assert entry is not None
        assert entry.session == pid  # out of reach of Ctrl-C and of group signals


async def test_an_event_loop_stays_free_while_the_driver_hangs(fake: FakeNvml) -> None:
    fake.block("nvmlInitWithFlags")
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.05)
            ticks += 1

    ticking = asyncio.create_task(tick())
    snapshot = await nvml.read_async(deadline=1.5)
    ticking.cancel()
    assert snapshot.state == "unresponsive"
    assert ticks > 10


def test_a_program_ends_while_a_reading_hangs(fake: FakeNvml) -> None:
    """A thread that waits for the driver would keep the interpreter from ending."""
    fake.block("nvmlInitWithFlags")
    code = (
        "import asyncio\nfrom opsctl.gpu import nvml\n"
        "async def main():\n"
        "    try:\n"
        "        await asyncio.wait_for(nvml.read_async(deadline=60), 0.3)\n"
        "    except TimeoutError:\n"
        "        print('cancelled')\n"
        "asyncio.run(main())"
    )
    try:
        program = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **fake.environment},
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    finally:
        for pid in procfs.pids():  # its helper hangs in the fake for ever
            if "opsctl.gpu.nvml_helper" in procfs.title(pid) and _uses(pid, fake):
                os.kill(pid, signal.SIGTERM)
    assert program.stdout == "cancelled\n"


def _uses(pid: int, fake: FakeNvml) -> bool:
    return procfs.environ_value(pid, "LD_LIBRARY_PATH") == str(fake.folder)


class Freezer:
    """A frozen process is in state D and outlives SIGKILL: what a hung driver does to one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def freeze(self, pid: int) -> None:
        (self.path / "cgroup.procs").write_text(str(pid))
        (self.path / "freezer.state").write_text("FROZEN")

    def thaw(self) -> None:
        (self.path / "freezer.state").write_text("THAWED")


@pytest.fixture
def freezer() -> Iterator[Freezer]:
    path = Path("/sys/fs/cgroup/freezer") / f"opsctl-test-{os.getpid()}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no freezer cgroup (version 1) to put a process into state D: {error}")
    made = Freezer(path)
    yield made
    made.thaw()
    deadline = time.monotonic() + 5
    while (path / "cgroup.procs").read_text().strip():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    path.rmdir()


def test_a_helper_stuck_in_the_driver_is_left_and_no_second_one_started(
    fake: FakeNvml, freezer: Freezer
) -> None:
    fake.log = True
    fake.write()
    reader = Nvml(keep=60)
    assert reader.read(deadline=READ).state == "ok"
    (stuck,) = helpers()
    freezer.freeze(stuck)
    start = time.monotonic()
    snapshot = reader.read(deadline=1.5)
    assert time.monotonic() - start < 10
    assert snapshot.state == "unresponsive"
    assert f"helper process {stuck} is stuck" in snapshot.why
    assert procfs.stat(stuck).state == "D"  # type: ignore[union-attr]

    for _ in range(3):
        start = time.monotonic()
        again = nvml.read(deadline=5.0)
        assert time.monotonic() - start < 4, "it does not try at all"
        assert again.state == "unresponsive"
        assert f"the helper process {stuck} has been stuck in the driver (state D)" in again.why
    assert helpers() == {stuck}

    freezer.thaw()  # the driver comes back: the signals that were sent take effect
    deadline = time.monotonic() + 5
    while helpers():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert nvml.read(deadline=READ).state == "ok"


def test_a_helper_that_another_opsctl_left_stuck_is_enough(
    fake: FakeNvml, freezer: Freezer
) -> None:
    other = subprocess.Popen(
        [sys.executable, "-m", "opsctl.gpu.nvml_helper"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline()  # it runs, under its own name
        freezer.freeze(other.pid)
        snapshot = nvml.read(deadline=READ)
        assert snapshot.state == "unresponsive"
        assert f"process {other.pid}, an NVML helper of another opsctl" in snapshot.why
        freezer.thaw()
        assert nvml.read(deadline=READ).state == "ok"
    finally:
        freezer.thaw()
        other.communicate()


def test_a_process_that_only_looks_like_a_stuck_helper_stops_nobody(fake: FakeNvml) -> None:
    with subprocess.Popen(
        ["sleep", "600"], executable="/bin/sleep", stdin=subprocess.DEVNULL
    ) as innocent:
        assert nvml_process.stuck_elsewhere() is None
        innocent.kill()


def test_the_fake_agrees_with_nvidias_own_header(tmp_path: Path) -> None:
    """Compiled against nvml.h of the package nvidia-nvml-dev, which is fetched, never kept."""
    fetched = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
        + ["--disable-pip-version-check", "--target", str(tmp_path), "nvidia-nvml-dev>=13"],
        capture_output=True,
        text=True,
        check=False,
    )
    headers = list(tmp_path.rglob("nvml.h"))
    if not headers:
        pytest.skip(f"nvml.h cannot be had here: {fetched.stderr.strip()[-200:]}")
    arguments = [str(fake_nvml.SOURCE), "-DFAKE_NVML_HEADER", f"-I{headers[0].parent}"]
    compile_library(arguments, tmp_path / "checked.so")


def test_the_checks_for_a_real_gpu_skip_with_a_reason_where_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    script = Path(__file__).parents[1] / "device" / "check_gpu.py"
    result = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 77, result.stderr
    assert json.loads(result.stdout)["verdict"] == "skipped"
