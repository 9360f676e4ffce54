"""`opsctl doctor` against a fake driver and fake trees: real helpers, real bindings, no GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from opsctl.cli.main import run as opsctl
from opsctl.config.load import load_text
from opsctl.config.schema import Config
from opsctl.doctor import disposable, facts
from opsctl.doctor.driver_readings import cuda_facts, gpu_details
from opsctl.doctor.model import Result
from opsctl.doctor.registry import CHECKS
from opsctl.doctor.run import run
from opsctl.gpu.kernel_log import parse
from opsctl.gpu.model import Census, KnownEngine, Snapshot
from opsctl.system import procfs
from tests.support.doctor.driver import FakeDriver
from tests.support.doctor.healthy import CUDA, DETAILS
from tests.support.doctor.tree import GPUS, PORTS, Tree, acs_space
from tests.support.released import released_or_skip

NVML, LIBCUDA = disposable.HELPERS
ALLOWED = {
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceCanAccessPeer",
    "cuDeviceGetP2PAttribute",
}


def helpers() -> set[int]:
    return {
        pid
        for pid, entry in procfs.snapshot().items()
        if entry.ppid == os.getpid() and "opsctl.doctor" in procfs.title(pid)
    }


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert helpers() == set()


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    made = FakeDriver.healthy(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "tree")


def by_id(results: list[Result]) -> dict[str, Result]:
    return {result.id: result for result in results}


# --- what the helpers read ---------------------------------------------------------------------


def test_nvml_is_read_whole(driver: FakeDriver) -> None:
    said = disposable.ask(NVML)
    assert said.trouble == ""
    assert gpu_details(said.lines) == DETAILS


def test_libcuda_is_read_whole_and_no_context_is_made(driver: FakeDriver) -> None:
    said = disposable.ask(LIBCUDA)
    assert said.trouble == ""
    assert cuda_facts(said.lines) == CUDA
    assert driver.cuda_calls() == ALLOWED


def test_a_pair_is_as_good_as_its_worse_direction(driver: FakeDriver) -> None:
    driver.more = ["back 2 5 4"]
    driver.write()
    pairs = {(x.first, x.second): x for x in gpu_details(disposable.ask(NVML).lines).pairs}
    assert pairs[2, 5].read == 4
    assert pairs[2, 6].read == 0


def test_values_nvml_does_not_give_are_unknown(driver: FakeDriver) -> None:
    for function in ("nvmlDeviceGetBAR1MemoryInfo", "nvmlDeviceGetRemappedRows"):
        driver.nvml.error(function, "NotSupported", gpu=3)
    gpus = gpu_details(disposable.ask(NVML).lines).gpus
    assert gpus[3] == replace(DETAILS.gpus[3], bar1_total=None, rows_pending=None, rows_failed=None)
    assert gpus[4] == DETAILS.gpus[4]


def test_a_driver_that_hangs_is_left_in_time_and_the_call_is_named(driver: FakeDriver) -> None:
    driver.nvml.block("nvmlDeviceGetEccMode", gpu=5)
    began = time.monotonic()
    said = disposable.ask(NVML, silence=1.0)
    assert said.trouble == "no answer at nvmlDeviceGetEccMode"
    assert time.monotonic() - began < 8


def test_a_helper_that_ignores_sigterm_is_killed(driver: FakeDriver) -> None:
    driver.nvml.block("nvmlDeviceGetEccMode", gpu=0, hard=True)
    assert "no answer" in disposable.ask(NVML, silence=1.0).trouble
    assert helpers() == set()


def test_a_helper_that_dies_is_said(driver: FakeDriver) -> None:
    driver.nvml.crash("nvmlDeviceGetComputeMode", gpu=0)
    assert disposable.ask(NVML).trouble == "the helper died at nvmlDeviceGetComputeMode"


def test_a_slow_driver_is_bounded_in_all(driver: FakeDriver) -> None:
    driver.nvml.slow("nvmlDeviceGetP2PStatus", 0.4)
    said = disposable.ask(NVML, silence=1.0, longest=2.0)
    assert "no answer" in said.trouble


def test_libcuda_that_does_not_start_is_said(driver: FakeDriver) -> None:
    driver.init = 803
    driver.write()
    assert disposable.ask(LIBCUDA).trouble == "cuInit: driver and library do not match"


def test_libcuda_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    assert "libcuda.so.1 cannot be loaded" in disposable.ask(LIBCUDA).trouble


def test_helpers_see_all_devices_and_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("HF_TOKEN", "canary")
    passed = disposable._environment(os.environ)
    assert "CUDA_VISIBLE_DEVICES" not in passed
    assert "canary" not in passed.values()
    assert passed["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


# --- the whole host ----------------------------------------------------------------------------

NEEDS_CONFIG = {"gpu-count", "memory", "pidfd", "nccl-environment", "checkpoint", "ports"}
NEEDS_STACK = {
    "ptxas",
    "torch-cuda",
    "cuda-packages",
    "nvrtc",
    "flashinfer",
    "kernel-package",
    "patches",
}
OF_THIS_MACHINE = {"shm", "jit-cache", "limits", "toolkit", "build-tools"}
"""Checks whose reading is of the machine the tests run on, or of the empty tree."""


def test_a_healthy_host_is_ok_but_for_what_was_not_named(driver: FakeDriver, tree: Tree) -> None:
    found = by_id(run(sources=tree.sources()))
    assert list(found) == [one.id for one in CHECKS]
    for name in found.keys() - NEEDS_CONFIG - NEEDS_STACK - OF_THIS_MACHINE:
        assert found[name].status == "ok", found[name]
    for name in NEEDS_CONFIG | NEEDS_STACK:
        assert found[name].status == "unknown", found[name]
        assert "there is no configuration" in found[name].why
    assert found["p2p"].value == "28 pairs; native atomics: 56x no"
    assert found["topology"].value == "nodes 0 0 0 0 1 1 1 1 (28x NODE)"


@pytest.mark.parametrize(
    ("name", "values", "status"),
    [
        ("bar1", {"bar1_total": 256 << 20}, "warn"),
        ("power-limit", {"power_limit": 450.0}, "warn"),
        ("ecc", {"uncorrected": 1}, "warn"),
        ("memory-rows", {"rows_pending": True}, "warn"),
        ("memory-rows", {"rows_failed": True}, "fail"),
        ("compute-mode", {"compute_mode": 2}, "fail"),
        ("throttling", {"clock_reasons": 0x40}, "warn"),
        ("pcie-errors", {"replays": 1000}, "warn"),
    ],
)
def test_what_nvml_says_of_one_gpu_reaches_the_verdict(
    driver: FakeDriver, tree: Tree, name: str, values: dict[str, Any], status: str
) -> None:
    driver.change(3, **values)
    [result] = run([name], sources=tree.sources())
    assert result.status == status, result


def test_acs_of_a_bridge_above_a_gpu_is_read(driver: FakeDriver, tree: Tree) -> None:
    tree.put(f"sys/devices/pci0000:02/{PORTS[2]}/config", acs_space(0x1D))
    [result] = run(["acs"], sources=tree.sources())
    assert (result.status, result.value) == ("warn", f"{PORTS[2]}: ReqRedir, CmpltRedir")


def test_a_configuration_space_cut_short_for_plain_users_is_unknown(tree: Tree) -> None:
    tree.put(f"sys/devices/pci0000:02/{PORTS[2]}/config", acs_space(0x1D)[:64])
    [result] = run(["acs"], sources=tree.sources())
    assert (result.status, PORTS[2] in result.why) == ("unknown", True)


@pytest.mark.parametrize(
    ("name", "file", "content", "status"),
    [
        ("iommu", "sys/kernel/iommu_groups/3/type", "DMA-FQ\n", "warn"),
        ("pcie-errors", "{3}/aer_dev_nonfatal", "TOTAL_ERR_NONFATAL 2\n", "warn"),
        ("topology", "{0}/numa_node", "1\n", "warn"),
        ("topology", "{0}/numa_node", "-1\n", "unknown"),
        ("open-kernel-module", "proc/driver/nvidia/version", "?\n", "unknown"),
        ("p2p-direct", "proc/driver/nvidia/params", 'RegistryDwords: ""\n', "warn"),
        ("numa-balancing", "proc/sys/kernel/numa_balancing", "1\n", "warn"),
        ("swappiness", "proc/sys/vm/swappiness", "60\n", "warn"),
        (
            "cpu-governor",
            "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor",
            "powersave\n",
            "warn",
        ),
        ("limits", "proc/self/limits", "Max open files 1 1 files\n", "unknown"),
        ("hugepages", "proc/meminfo", "MemAvailable: 1 kB\n", "unknown"),
    ],
)
def test_what_a_file_says_reaches_the_verdict(  # noqa: PLR0917
    driver: FakeDriver, tree: Tree, name: str, file: str, content: str, status: str
) -> None:
    for number in range(8):
        file = file.replace(f"{{{number}}}", tree.device(number))
    tree.put(file, content)
    [result] = run([name], sources=tree.sources())
    assert result.status == status, result


def test_xids_of_the_kernel_log_reach_the_verdict(driver: FakeDriver, tree: Tree) -> None:
    line = f"4,100,5000000,-;NVRM: Xid (PCI:{GPUS[0]}): 79, GPU has fallen off the bus.\n"
    found = by_id(run(["xid", "aspm"], sources=tree.sources(xids=lambda: parse([line]))))
    assert found["xid"].status == "fail"
    assert found["aspm"].status == "ok", "the kernel line has pcie_aspm=off"
    tree.put("proc/cmdline", "ro\n")
    found = by_id(run(["aspm"], sources=tree.sources(xids=lambda: parse([line]))))
    assert found["aspm"].status == "warn"


def test_a_kernel_log_that_may_not_be_read_is_unknown(driver: FakeDriver, tree: Tree) -> None:
    [result] = run(["xid"], sources=tree.sources(xids=lambda: None))
    assert (result.status, result.why) == (
        "unknown",
        "the kernel log may not be read; ask as root",
    )


def test_a_driver_that_hangs_is_a_failure_and_is_asked_nothing_more(
    driver: FakeDriver, tree: Tree
) -> None:
    hung = Census(Snapshot("unresponsive", "the call nvmlInit_v2 did not return"), ())
    driver.nvml.log = True
    driver.write()
    found = by_id(run(sources=tree.sources(look=lambda _: hung)))
    assert found["driver-loaded"].status == "fail"
    assert found["p2p"].why == "the call nvmlInit_v2 did not return"
    assert driver.nvml.calls() == []
    assert driver.cuda_calls() == set()


def test_libcuda_is_not_asked_after_nvml_hung(driver: FakeDriver, tree: Tree) -> None:
    driver.nvml.block("nvmlDeviceGetBAR1MemoryInfo")
    found = by_id(run(["bar1", "memory-handles"], sources=tree.sources()))
    assert "no answer at nvmlDeviceGetBAR1MemoryInfo" in found["bar1"].why
    assert found["memory-handles"].status == "unknown"
    assert driver.cuda_calls() == set()


def test_libcuda_that_hangs_leaves_the_rest_known(driver: FakeDriver, tree: Tree) -> None:
    driver.block = "cuDeviceGetAttribute"
    driver.write()
    found = by_id(run(["memory-handles", "bar1", "p2p"], sources=tree.sources()))
    assert found["memory-handles"].why == "no answer at cuDeviceGetAttribute"
    assert found["bar1"].status == "ok"
    assert found["p2p"].value == "28 pairs"


def test_gpus_without_a_driver_are_a_failure_no_gpus_are_unknown(tmp_path: Path) -> None:
    gone = Census(Snapshot("absent", "the NVIDIA kernel module is not loaded"), ())
    tree = Tree(tmp_path / "with")
    [result] = run(["driver-loaded"], sources=tree.sources(look=lambda _: gone))
    assert (result.status, result.value) == (
        "fail",
        "the NVIDIA kernel module is not loaded; GPUs on the bus: 8",
    )
    for number in range(8):
        tree.put(f"{tree.device(number)}/vendor", "0x1002\n")
    [result] = run(["driver-loaded"], sources=tree.sources(look=lambda _: gone))
    assert result.status == "unknown"


def test_only_what_a_check_looks_at_is_read(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    monkeypatch.setattr("opsctl.doctor.read_pci.gpus", read.append)
    monkeypatch.setattr("opsctl.doctor.read_host.memory", read.append)

    def look(_: object) -> Census:
        read.append("the driver")
        return Census(Snapshot("absent"), ())

    [result] = run(["swappiness"], sources=tree.sources(look=look))
    assert (result.status, read) == ("ok", [])


# --- what the configuration names --------------------------------------------------------------


def configured(tmp_path: Path, **profile: object) -> Config:
    keys = {"model": "/nowhere", "python": "/nowhere/bin/python", **profile}
    text = json.dumps(
        {
            "serve": {"listen": "127.0.0.1:0", "profile": "one"},
            "profiles": {"one": keys},
            "state_dir": str(tmp_path / "state"),
        }
    )
    return load_text(text, name="opsctl.yaml", environment={}).config


def checkpoint(folder: Path, size: int, written: int) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["X"]}')
    index = {"metadata": {"total_size": size}, "weight_map": {"a": "a.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "a.safetensors").write_bytes(b"x" * written)
    return folder


@pytest.mark.parametrize(("written", "status"), [(100, "ok"), (99, "fail"), (0, "fail")])
def test_a_checkpoint_is_complete_when_all_bytes_are_there(
    tmp_path: Path, tree: Tree, written: int, status: str
) -> None:
    model = checkpoint(tmp_path / "model", 100, written)
    config = configured(tmp_path, model=str(model))
    [result] = run(["checkpoint"], config, sources=tree.sources())
    assert result.status == status, result


def test_a_checkpoint_on_a_network_disk_is_a_warning(tmp_path: Path, tree: Tree) -> None:
    model = checkpoint(tmp_path / "model", 100, 100)
    tree.put("proc/self/mountinfo", f"40 22 0:50 / {tmp_path} rw - nfs4 nas:/ rw\n")
    [result] = run(["checkpoint"], configured(tmp_path, model=str(model)), sources=tree.sources())
    assert (result.status, result.value) == ("warn", f"{model} on nfs4")


def test_a_profile_that_needs_more_gpus_than_there_are_fails(
    driver: FakeDriver, tmp_path: Path, tree: Tree
) -> None:
    driver.only(4)
    config = configured(tmp_path, flags={"tp-size": 8})
    [result] = run(["gpu-count"], config, sources=tree.sources())
    assert (result.status, result.value) == ("fail", "4; one needs 8")


def test_nccl_files_that_are_not_there_fail(tmp_path: Path, tree: Tree) -> None:
    config = configured(tmp_path, environment={"NCCL_GRAPH_FILE": str(tmp_path / "absent.xml")})
    [result] = run(["nccl-environment"], config, sources=tree.sources())
    assert (result.status, "NCCL_GRAPH_FILE" in (result.value or "")) == ("fail", True)


def test_a_port_that_somebody_holds_fails(tmp_path: Path, tree: Tree) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        config = configured(tmp_path)
        config = config.model_copy(
            update={"serve": config.serve.model_copy(update={"listen": f"127.0.0.1:{number}"})}
        )
        [result] = run(["ports"], config, sources=tree.sources())
    assert result.status == "fail", result
    [result] = run(["ports"], config, sources=tree.sources())
    assert result.status == "ok", result


def test_the_service_user_must_be_able_to_write_the_caches(tmp_path: Path, tree: Tree) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root looks after another user's caches")
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o755)
    variables = ("TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "FLASHINFER_WORKSPACE_BASE")
    config = configured(tmp_path, environment=dict.fromkeys(variables, str(cache)))
    service = config.provision.opsctl_service.model_copy(update={"user": "nobody"})
    provision = config.provision.model_copy(update={"opsctl_service": service})
    config = config.model_copy(update={"provision": provision})
    [result] = run(["jit-cache"], config, sources=tree.sources())
    assert result.status == "fail", result
    assert f"{cache}: nobody may not write (owned by root)" in (result.value or "")


def test_a_lock_of_a_dead_builder_is_found(tmp_path: Path, tree: Tree) -> None:
    lock = tmp_path / "extensions/some_kernel/lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("")
    environment = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions"), "HOME": str(tmp_path)}
    config = configured(tmp_path, environment=environment)
    [result] = run(["jit-cache"], config, sources=tree.sources())
    assert (result.status, result.value) == ("fail", f"stale lock {lock}")


def test_the_limits_of_a_recorded_engine_come_before_those_of_this_process(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive = KnownEngine("n" * 32, 4711, 1, 4711, None, True, "/state", main_alive=True)
    monkeypatch.setattr("opsctl.gpu.engines.known", lambda _: (alive, replace(alive, pid=9)))
    limits = "Max open files  1024 4096 files\nMax locked memory  unlimited unlimited bytes\n"
    tree.put("proc/4711/limits", limits)
    [result] = run(["limits"], sources=tree.sources())
    assert (result.status, result.value) == (
        "fail",
        "engine (pid 4711): memlock unlimited, nofile 1024",
    )


def test_a_cgroups_limit_counts_as_memory(tmp_path: Path, tree: Tree) -> None:
    model = checkpoint(tmp_path / "model", 1 << 30, 1 << 10)
    tree.put("sys/fs/cgroup/system.slice/memory.max", f"{1 << 29}\n")
    tree.put("sys/fs/cgroup/system.slice/x.service/memory.max", "max\n")
    config = configured(tmp_path, model=str(model))
    [result] = run(["memory"], config, sources=tree.sources())
    assert result.status == "warn", result
    tree.remove("sys/fs/cgroup/system.slice/memory.max")
    [result] = run(["memory"], config, sources=tree.sources())
    assert result.status == "ok", result


def test_a_disk_that_does_not_answer_costs_its_checks_only(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = threading.Event()
    monkeypatch.setattr(facts, "SECONDS", 0.2)
    monkeypatch.setattr("opsctl.doctor.read_pci.gpus", lambda _: silent.wait())
    found = by_id(run(["acs", "swappiness"], sources=tree.sources()))
    silent.set()
    assert found["acs"].why == "a disk or program did not answer within 0.2 s"
    assert found["swappiness"].status == "ok"


def test_a_reader_that_stumbles_costs_its_checks_only(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(_: object) -> None:
        raise ValueError("odd content")

    monkeypatch.setattr("opsctl.doctor.read_pci.gpus", stumble)
    found = by_id(run(["acs", "swappiness"], sources=tree.sources()))
    assert found["acs"].why == "reading it failed with ValueError: odd content"
    assert found["swappiness"].status == "ok"


# --- the toolkit -------------------------------------------------------------------------------


def program(path: Path, output: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{output}'\n")
    path.chmod(0o755)
    return path


def test_the_toolkit_is_found_as_an_engine_would_find_it(tmp_path: Path, tree: Tree) -> None:
    program(tmp_path / "tree/local/cuda-13.0/bin/nvcc", "release 13.0, V13.0.88")
    (tmp_path / "tree/local/cuda").symlink_to("cuda-13.0")
    [result] = run(["toolkit"], sources=tree.sources())
    assert result.status == "ok", result
    assert "13.0" in (result.value or "")
    program(tmp_path / "tree/bin/nvcc", "release 12.8, V12.8.61")
    [result] = run(["toolkit"], sources=tree.sources())
    assert result.status == "fail", "nvcc of PATH comes before the usual place"
    config = configured(tmp_path, environment={"CUDA_HOME": str(tmp_path / "tree/local/cuda-13.0")})
    [result] = run(["toolkit"], config, sources=tree.sources())
    assert result.status == "warn", result
    assert "(12.8)" in (result.value or "")


def test_cuda_home_of_the_shell_is_not_that_of_an_engine(tmp_path: Path, tree: Tree) -> None:
    """`serve` does not hand it on, so with profiles it does not count."""
    program(tmp_path / "tree/bin/nvcc", "release 13.0, V13.0.88")
    program(tmp_path / "old/bin/nvcc", "release 12.8, V12.8.61")
    shell = {"PATH": str(tmp_path / "tree/bin"), "CUDA_HOME": str(tmp_path / "old")}
    sources = tree.sources(environment=shell)
    assert run(["toolkit"], configured(tmp_path), sources=sources)[0].status == "ok"
    assert run(["toolkit"], sources=sources)[0].status == "fail"


def test_a_compiler_that_says_nothing_is_unknown(tmp_path: Path, tree: Tree) -> None:
    program(tmp_path / "tree/bin/nvcc", "hello")
    [result] = run(["toolkit"], sources=tree.sources())
    assert result.status == "unknown", result


@pytest.mark.parametrize(("name", "status"), [("libcuda.so.570.26.1", "fail"), ("none", "ok")])
def test_an_old_libcuda_on_the_loaders_path_fails(
    driver: FakeDriver, tree: Tree, name: str, status: str
) -> None:
    tree.put("local/cuda-12.8/compat/libcuda.so.570.26.1", "")
    path = tree.root / "local/cuda-12.8/compat" / name
    cache = f"\tlibcuda.so.1 (libc6,x86-64) => {path}\n"
    [result] = run(["cuda-compat"], sources=tree.sources(loader_cache=lambda: cache))
    assert result.status == status, result


# --- the engine's environment ------------------------------------------------------------------


def stack(folder: Path, versions: dict[str, str], cuda: str) -> Path:
    site = folder / "lib/python3.11/site-packages"
    for name, version in versions.items():
        info = site / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n\n")
    (site / "torch").mkdir(parents=True)
    (site / "torch/version.py").write_text(f"cuda: Optional[str] = '{cuda}'\n")
    (folder / "pyvenv.cfg").write_text("")
    (folder / "bin").mkdir()
    (folder / "bin/python").symlink_to(sys.executable)
    for name in ("libnvrtc.so.13", "libnvrtc-builtins.so.13.0"):
        library = site / "nvidia/cu13/lib" / name
        library.parent.mkdir(parents=True, exist_ok=True)
        library.write_text("")
    program(site / "triton/backends/nvidia/bin/ptxas", "release 13.0, V13.0.88")
    return folder / "bin/python"


def test_an_environment_that_holds_no_sglang_is_unknown_not_ok(tmp_path: Path, tree: Tree) -> None:
    python = stack(tmp_path / "env", {"torch": "2.9.1"}, "13.0")
    for result in run(sorted(NEEDS_STACK - {"ptxas"}), python=str(python), sources=tree.sources()):
        assert result.status == "unknown", result
        assert "no SGLang" in result.why


def test_an_interpreter_that_is_not_there_is_unknown(tmp_path: Path, tree: Tree) -> None:
    [result] = run(["torch-cuda"], python=str(tmp_path / "no/python"), sources=tree.sources())
    assert result.status == "unknown"
    assert "no Python environment" in result.why


RELEASES = (("sglang", "0.5.23"), ("flashinfer-python", "0.7.2"))


def serving_stack(tmp_path: Path, **versions: str) -> Path:
    """An environment with released SGLang and FlashInfer, and what belongs to them by name."""
    python = stack(
        tmp_path / "engine",
        {
            "torch": "2.9.1+cu130",
            "sglang_kernel": "0.4.10",
            "nvidia_nccl_cu13": "2.28.3",
            **versions,
        },
        "13.0",
    )
    site = tmp_path / "engine/lib/python3.11/site-packages"
    for package, version in RELEASES:
        release = released_or_skip(package, version)
        shutil.copytree(release, site, copy_function=os.link, dirs_exist_ok=True)
    return python


def test_an_engine_environment_in_order_is_ok(tmp_path: Path, tree: Tree) -> None:
    python = serving_stack(tmp_path)
    found = by_id(run(sorted(NEEDS_STACK), python=str(python), sources=tree.sources()))
    assert {name: result.status for name, result in found.items()} == dict.fromkeys(
        NEEDS_STACK, "ok"
    ), found
    assert found["flashinfer"].value == "flashinfer-python 0.7.2"
    assert found["patches"].value == "applied: none"


def test_packages_out_of_step_in_a_real_environment_are_seen(tmp_path: Path, tree: Tree) -> None:
    python = serving_stack(
        tmp_path,
        flashinfer_jit_cache="0.7.20+cu130",
        nvidia_nccl_cu12="2.26",
        sglang_kernel="0.4.9",
    )
    names = ["flashinfer", "cuda-packages", "kernel-package"]
    found = by_id(run(names, python=str(python), sources=tree.sources()))
    assert {name: result.status for name, result in found.items()} == dict.fromkeys(names, "fail")


def test_a_patch_that_a_profile_requires_is_missed(tmp_path: Path, tree: Tree) -> None:
    python = serving_stack(tmp_path)
    config = configured(tmp_path, python=str(python), requires_patches=["allreduce-fusion"])
    [result] = run(["patches"], config, sources=tree.sources())
    assert (result.status, result.value) == (
        "fail",
        "required, but allreduce-fusion: applicable",
    )


def test_a_model_that_this_sglang_does_not_know_fails(tmp_path: Path, tree: Tree) -> None:
    python = serving_stack(tmp_path)
    model = checkpoint(tmp_path / "model", 100, 100)
    config = configured(tmp_path, python=str(python), model=str(model))
    names = ["checkpoint", "patches"]
    [_, result] = run(names, config, sources=tree.sources())
    assert (result.status, result.value) == ("fail", f"{model}: X is not a model of this SGLang")
    (model / "config.json").write_text('{"architectures": ["KimiK25ForConditionalGeneration"]}')
    assert run(names, config, sources=tree.sources())[1].status == "ok"


# --- the command line --------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "required": ["schema", "checks"],
    "properties": {
        "schema": {"const": "opsctl/doctor/v1"},
        "checks": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["id", "status", "severity", "value", "wanted", "why", "fix"],
                "additionalProperties": False,
                "properties": {
                    "id": {"enum": [one.id for one in CHECKS]},
                    "status": {"enum": ["ok", "warn", "fail", "unknown"]},
                    "severity": {"enum": ["fail", "warn"]},
                    "value": {"type": ["string", "null"]},
                    "wanted": {"type": "string"},
                    "why": {"type": "string"},
                    "fix": {"type": ["string", "null"]},
                },
            },
        },
    },
}


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nowhere near a configuration."""
    for name in ("OPSCTL_CONFIG", "XDG_CONFIG_HOME", "OPSCTL_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("opsctl.config.locate.candidates", lambda *_: (tmp_path / "opsctl.yaml",))


@pytest.mark.usefixtures("away")
def test_json_keeps_its_contract(driver: FakeDriver, capsys: pytest.CaptureFixture[str]) -> None:
    opsctl(["doctor", "-o", "json"])
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMA)
    assert len(document["checks"]) == len(CHECKS)


@pytest.mark.usefixtures("away")
def test_exit_code_4_when_a_check_fails_and_0_otherwise(driver: FakeDriver) -> None:
    arguments = ["doctor", "--only", "memory-rows", "--only", "bar1"]
    assert opsctl(arguments) == 0
    driver.change(1, bar1_total=1)
    assert opsctl(arguments) == 0, "a warning is no failure"
    driver.change(1, rows_failed=True)
    assert opsctl(arguments) == 4


@pytest.mark.usefixtures("away")
def test_the_table_says_what_to_do_and_what_is_not_known(
    driver: FakeDriver, capsys: pytest.CaptureFixture[str]
) -> None:
    driver.change(1, rows_failed=True)
    opsctl(["doctor", "--only", "memory-rows", "--only", "ports", "--only", "mig"])
    output = capsys.readouterr()
    lines = [" ".join(line.split()) for line in output.out.splitlines() if line]
    assert lines == [
        "ok mig off",
        "fail memory-rows failed: GPU 1",
        "wanted: no remapping pending or failed",
        "why: a row that could not be remapped keeps failing; a pending one needs a reset",
        "fix: manual: have the GPU replaced",
        "unknown ports",
        "not known: there is no configuration",
    ]
    assert "3 checks: 1 fail, 1 unknown, 1 ok" in output.err


@pytest.mark.usefixtures("away")
def test_without_a_gpu_it_runs_and_says_what_it_does_not_know(tmp_path: Path) -> None:
    environment = {**os.environ, "LD_LIBRARY_PATH": "", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "opsctl", "doctor", "-o", "json", "--only", "p2p"],
        env={**environment, "PYTHONPATH": str(Path(__file__).parents[2])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    if "libnvidia-ml" not in done.stdout:
        pytest.skip("this machine has an NVIDIA driver")
    assert done.returncode == 0, done.stderr
    [result] = json.loads(done.stdout)["checks"]
    assert (result["status"], result["value"]) == ("unknown", None)


@pytest.mark.usefixtures("away")
def test_a_configuration_that_is_named_must_be_there() -> None:
    assert opsctl(["doctor", "--only", "shm", "--config", "nowhere.yaml"]) == 78


@pytest.mark.usefixtures("away")
def test_a_check_that_is_none_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert opsctl(["doctor", "--only", "p2"]) == 2
    assert "did you mean 'p2p'?" in capsys.readouterr().err
    assert opsctl(["doctor", "explain", "nonsense"]) == 2


@pytest.mark.parametrize("name", [one.id for one in CHECKS])
def test_every_check_is_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert opsctl(["doctor", "explain", name, "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "opsctl/doctor-check/v1"
    assert document["id"] == name
    assert document["source"]
