"""Every check: the healthy host is ok, and each way to be otherwise is seen for what it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import pytest

from opsctl.doctor.checks import driver, links, peers, system
from opsctl.doctor.host import (
    Bridge,
    CudaDevice,
    CudaFacts,
    CudaPair,
    Facts,
    GpuDetails,
    GpuPair,
    Limits,
    Memory,
    ProfileFacts,
    Shm,
    Toolkit,
)
from opsctl.doctor.model import Result, result_of
from opsctl.doctor.registry import CHECKS, named
from opsctl.gpu.kernel_log import Xid
from opsctl.gpu.model import Holder, Snapshot, Verdict
from tests.support.doctor.healthy import CLOSED, DETAILS, GIB, GPUS, HEALTHY, MIB, PCI, STACK

Change = Callable[[Facts], Facts]


def judged(name: str, change: Change | None = None) -> Result:
    return result_of(named(name), change(HEALTHY) if change else HEALTHY)


def having(**values: Any) -> Change:
    return lambda facts: replace(facts, **values)


def text(path: str, content: str | None) -> Change:
    def change(facts: Facts) -> Facts:
        texts = {key: value for key, value in facts.texts.items() if key != path}
        return replace(facts, texts=texts if content is None else {**texts, path: content})

    return change


def gpu(index: int = 3, **values: Any) -> Change:
    gpus = tuple(replace(x, **values) if x.index == index else x for x in GPUS)
    return lambda facts: replace(facts, gpus=gpus, driver=replace(facts.driver, gpus=gpus))


def every_gpu(**values: Any) -> Change:
    return having(gpus=tuple(replace(x, **values) for x in GPUS))


def one_gpu(facts: Facts) -> Facts:
    return replace(facts, gpus=GPUS[:1], details=GpuDetails())


def detail(index: int = 3, **values: Any) -> Change:
    changed = tuple(replace(x, **values) if x.index == index else x for x in DETAILS.gpus)
    return having(details=replace(DETAILS, gpus=changed))


def pci(index: int = 3, **values: Any) -> Change:
    return having(pci=tuple(replace(x, **values) if i == index else x for i, x in enumerate(PCI)))


def pairs(change: Callable[[GpuPair], GpuPair]) -> Change:
    return having(details=replace(DETAILS, pairs=tuple(map(change, DETAILS.pairs))))


def stack(**values: Any) -> Change:
    return having(stacks=(replace(STACK, **values),))


def package(name: str, version: str | None) -> Change:
    rest = {key: value for key, value in STACK.packages.items() if key != name}
    return stack(packages=rest if version is None else {**rest, name: version})


def toolkit(**values: Any) -> Change:
    return lambda facts: replace(facts, toolkit=replace(facts.toolkit, **values))


def profile(**values: Any) -> Change:
    return having(profiles=(ProfileFacts("eagle3", **{"gpus": 8, **values}),))


def model(**values: Any) -> Change:
    return lambda facts: replace(facts, models=(replace(facts.models[0], **values),))


def cache(**values: Any) -> Change:
    return lambda facts: replace(facts, caches=(replace(facts.caches[0], **values),))


def port(**values: Any) -> Change:
    return lambda facts: replace(facts, ports=(replace(facts.ports[0], **values),))


def both(*changes: Change) -> Change:
    def change(facts: Facts) -> Facts:
        for each in changes:
            facts = each(facts)
        return facts

    return change


def snapshot(state: str, why: str = "", **values: Any) -> Change:
    return having(driver=Snapshot(state, why, **values))  # type: ignore[arg-type]


def xid(code: int, remedy: str) -> Change:
    return having(xids=(Xid(code, "0000:41:00.0", 12.0, "", remedy),))  # type: ignore[arg-type]


def holder(verdict: Verdict, memory: int | None) -> Change:
    return having(holders=(Holder(verdict, 4711, 1, (0,), memory, ()),))


def cuda(**values: Any) -> Change:
    devices = tuple(
        CudaDevice(n, **{"multicast": 0, "posix_handles": 1, "gpudirect_vmm": 1, **values})
        for n in range(8)
    )
    return having(cuda=CudaFacts(13000, devices))


NO_PEER = pairs(lambda x: replace(x, read=4, write=4) if x.first == 0 else x)
UNSET = text(peers.PARAMS, 'RegistryDwords: ""\n')

CASES: tuple[tuple[str, Change, str, str], ...] = (
    ("driver-loaded", snapshot("absent", "not loaded"), "fail", "not loaded; GPUs on the bus: 8"),
    ("driver-loaded", snapshot("fault", "mismatch"), "fail", "mismatch"),
    ("driver-loaded", snapshot("unresponsive", "call hangs"), "fail", "call hangs"),
    ("driver-loaded", gpu(fault="the GPU is lost"), "fail", "GPU 3: the GPU is lost"),
    ("driver-loaded", snapshot("ok", gpus=GPUS[:7]), "fail", "7 of 8"),
    ("driver-loaded", both(snapshot("absent", "no library"), having(pci=())), "unknown", ""),
    ("driver-branch", snapshot("ok", driver="575.57.08", cuda="12.9"), "fail", "575.57.08"),
    ("driver-branch", stack(torch_cuda="14.0"), "fail", "torch needs CUDA 14"),
    ("driver-branch", snapshot("ok"), "unknown", ""),
    ("open-kernel-module", text(driver.VERSION_FILE, CLOSED), "fail", "closed"),
    (
        "open-kernel-module",
        both(text(driver.VERSION_FILE, CLOSED), every_gpu(compute_capability=(9, 0))),
        "warn",
        "closed",
    ),
    ("open-kernel-module", text(driver.VERSION_FILE, None), "unknown", ""),
    ("open-kernel-module", text(driver.VERSION_FILE, "NVRM: ?\n"), "unknown", ""),
    ("xid", xid(79, "reboot"), "fail", "79 on 0000:41:00.0"),
    ("xid", xid(48, "reset"), "fail", "48"),
    ("xid", xid(31, "restart engine"), "warn", "31"),
    ("xid", xid(45, "none"), "ok", "45"),
    ("gpu-model", gpu(name="NVIDIA H200"), "warn", "7x NVIDIA RTX PRO 6000"),
    ("gpu-model", gpu(memory_total=48 * GIB), "warn", ""),
    ("gpu-model", every_gpu(compute_capability=(9, 0)), "warn", "9.0"),
    ("gpu-model", gpu(name=None), "unknown", ""),
    ("gpu-count", profile(gpus=9), "fail", "8; eagle3 needs 9"),
    ("gpu-count", profile(gpus=None), "unknown", "8"),
    ("gpu-free", holder(Verdict.STRAY, 90 * GIB), "fail", "stray engine pid 4711: 92160 MiB"),
    ("gpu-free", holder(Verdict.ORPHAN, 0), "fail", "orphan"),
    ("gpu-free", holder(Verdict.FOREIGN, 2 * GIB), "fail", "foreign"),
    ("gpu-free", holder(Verdict.FOREIGN, None), "fail", "foreign pid 4711"),
    ("gpu-free", holder(Verdict.FOREIGN, 40 * MIB), "warn", "40 MiB"),
    ("gpu-free", holder(Verdict.MANAGED, 90 * GIB), "ok", "supervised engine"),
    ("gpu-free", gpu(memory_used=5 * GIB), "warn", "GPU 3"),
    ("gpu-free", gpu(memory_used=None), "unknown", ""),
    ("persistence", gpu(persistence=False), "warn", "off on GPU 3"),
    ("persistence", gpu(persistence=None), "unknown", ""),
    ("mig", gpu(mig=True), "fail", "GPU 3"),
    ("mig", every_gpu(mig=None), "ok", "not supported"),
    ("compute-mode", detail(compute_mode=2), "fail", "1x prohibited"),
    ("compute-mode", detail(compute_mode=3), "warn", "1x exclusive process"),
    ("compute-mode", detail(compute_mode=None), "unknown", ""),
    ("confidential-computing", having(details=replace(DETAILS, confidential=True)), "warn", "on"),
    ("confidential-computing", having(details=replace(DETAILS, confidential=None)), "unknown", ""),
    ("power-limit", detail(power_limit=450.0), "warn", "7x 600 W, 1x 450 W"),
    ("power-limit", detail(power_limit=None), "unknown", ""),
    ("throttling", detail(clock_reasons=0x48), "warn", "GPU 3: hardware slowdown, too hot"),
    ("throttling", detail(clock_reasons=4), "ok", "none"),
    ("throttling", detail(clock_reasons=None), "unknown", ""),
    ("ecc", detail(uncorrected=2), "warn", "GPU 3: 2 uncorrected"),
    ("ecc", detail(ecc=False), "warn", "1x off"),
    ("ecc", detail(ecc_pending=False), "ok", "changes at the next reset: GPU 3"),
    ("ecc", detail(ecc=None), "unknown", ""),
    ("ecc", detail(uncorrected=None), "unknown", ""),
    ("memory-rows", detail(rows_failed=True), "fail", "failed: GPU 3"),
    ("memory-rows", detail(rows_pending=True), "warn", "pending: GPU 3"),
    ("memory-rows", detail(rows_failed=None, rows_pending=None), "unknown", ""),
    ("pcie-link", gpu(pcie_width=8), "warn", "1x Gen5 x8"),
    ("pcie-link", gpu(pcie_generation_max=4), "warn", "1x Gen4 x16"),
    ("pcie-link", gpu(pcie_width=None), "unknown", ""),
    ("pcie-errors", pci(fatal=1), "warn", "0000:41:00.0: 1 uncorrected"),
    ("pcie-errors", pci(correctable=101), "warn", "101 corrected"),
    ("pcie-errors", detail(replays=5000), "warn", "GPU 3: 5000 replays"),
    ("pcie-errors", pci(fatal=None), "unknown", ""),
    ("pcie-errors", having(pci=()), "unknown", ""),
    ("pcie-errors", having(pci=(), details=GpuDetails()), "unknown", ""),
    ("bar1", detail(bar1_total=256 * MIB), "warn", "1x 256 MiB"),
    ("bar1", detail(bar1_total=None), "unknown", ""),
    ("bar1", gpu(memory_total=None), "unknown", ""),
    ("iommu", pci(iommu="DMA-FQ"), "warn", "1x DMA-FQ"),
    ("iommu", having(pci=tuple(replace(x, iommu=None) for x in PCI)), "ok", "no IOMMU"),
    (
        "iommu",
        both(
            having(pci=tuple(replace(x, iommu=None) for x in PCI)),
            text(links.CMDLINE, "ro amd_iommu=off"),
        ),
        "ok",
        "off by the kernel line",
    ),
    ("iommu", having(pci=()), "unknown", ""),
    ("acs", pci(bridges=(Bridge("0000:40:01.0", acs=0x1D),)), "warn", "ReqRedir, CmpltRedir"),
    ("acs", pci(bridges=(Bridge("0000:40:01.0", acs=0x01),)), "ok", "SrcValid on 0000:40:01.0"),
    ("acs", pci(bridges=(Bridge("0000:40:01.0", readable=False),)), "unknown", ""),
    ("acs", having(pci=()), "unknown", ""),
    ("aspm", both(text(links.CMDLINE, "ro"), xid(79, "reboot")), "warn", "Xid 79"),
    ("aspm", text(links.CMDLINE, "ro"), "ok", "default; no link lost"),
    ("aspm", both(text(links.CMDLINE, "ro"), having(unread={"xids": "no"})), "unknown", ""),
    ("hmm", text(links.HMM, None), "unknown", ""),
    ("p2p", NO_PEER, "warn", "7 of 28 pairs not: 0-1: disabled by registry key"),
    ("p2p", both(NO_PEER, profile(peer_access="enable-torch-symm-mem")), "fail", "7 of 28"),
    ("p2p", having(cuda=CudaFacts(13000, (), (CudaPair(2, 1, 0, 0),))), "warn", "2-1: CUDA says"),
    ("p2p", pairs(lambda x: replace(x, write=None)), "unknown", ""),
    ("p2p", having(details=replace(DETAILS, pairs=DETAILS.pairs[1:])), "unknown", ""),
    ("p2p", one_gpu, "ok", "one GPU"),
    ("p2p-direct", UNSET, "warn", "not forced"),
    ("p2p-direct", both(UNSET, pairs(lambda x: replace(x, ancestor=30))), "ok", "not needed"),
    ("p2p-direct", both(UNSET, pairs(lambda x: replace(x, ancestor=None))), "unknown", ""),
    ("p2p-direct", text(peers.PARAMS, None), "unknown", ""),
    ("p2p-direct", one_gpu, "ok", "one GPU"),
    ("memory-handles", cuda(posix_handles=0), "fail", "POSIX handles 0"),
    ("memory-handles", cuda(gpudirect_vmm=0), "ok", "GPUDirect RDMA with VMM 0"),
    (
        "memory-handles",
        both(cuda(gpudirect_vmm=0), stack(patches={"allreduce-fusion": "applied"})),
        "fail",
        "VMM 0",
    ),
    ("memory-handles", cuda(posix_handles=None), "unknown", ""),
    ("memory-handles", having(cuda=CudaFacts()), "unknown", ""),
    (
        "topology",
        having(pci=tuple(replace(x, numa_node=i % 2) for i, x in enumerate(PCI))),
        "warn",
        "nodes 0 1 0 1",
    ),
    ("topology", pci(3, numa_node=1), "warn", "nodes 0 0 0 1"),
    ("topology", pci(3, numa_node=None), "unknown", ""),
    ("toolkit", toolkit(home=None), "fail", "no nvcc"),
    ("toolkit", toolkit(release=(12, 8)), "fail", "12.8"),
    ("toolkit", toolkit(release=(12, 9)), "fail", "torch is built for CUDA 13"),
    ("toolkit", toolkit(release=None), "unknown", ""),
    (
        "toolkit",
        toolkit(first_in_path="/usr/bin/nvcc", first_release=(11, 8)),
        "warn",
        "PATH finds /usr/bin/nvcc (11.8)",
    ),
    ("ptxas", stack(ptxas=(12, 8)), "fail", "Triton 12.8"),
    (
        "ptxas",
        both(stack(ptxas=(12, 8)), profile(environment={"TRITON_PTXAS_PATH": "/x"})),
        "ok",
        "TRITON_PTXAS_PATH is set",
    ),
    ("ptxas", stack(ptxas=None), "unknown", ""),
    ("build-tools", toolkit(tools={"ninja": None, "gcc": "/usr/bin/gcc"}), "fail", "ninja"),
    ("build-tools", toolkit(tools={}), "unknown", ""),
    ("cuda-compat", toolkit(compat=("/c/libcuda.so.570.1",)), "ok", "not on the loader's path"),
    ("cuda-compat", toolkit(compat_active=("/c/libcuda.so.570.26.1",)), "fail", "570.26"),
    ("cuda-compat", toolkit(compat_active=("/c/libcuda.so.590.44.01",)), "warn", "590.44"),
    ("torch-cuda", stack(torch_cuda="12.8"), "fail", "CUDA 12.8"),
    ("torch-cuda", stack(torch_cuda=""), "fail", "without CUDA"),
    ("torch-cuda", stack(torch_cuda=None), "unknown", ""),
    ("torch-cuda", stack(trouble="no Python environment there"), "unknown", ""),
    ("torch-cuda", having(stacks=()), "unknown", ""),
    ("cuda-packages", package("nvidia-nccl-cu12", "2.26"), "fail", "CUDA 12: nvidia-nccl-cu12"),
    ("cuda-packages", package("nvidia-cuda-nvrtc", "12.8.93"), "fail", "CUDA 12: nvidia-cuda"),
    ("cuda-packages", stack(packages={}, torch_cuda=None), "unknown", ""),
    ("nvrtc", stack(nvrtc=("libnvrtc.so.13",)), "fail", "no libnvrtc-builtins.so.13"),
    ("nvrtc", stack(nvrtc=("libnvrtc.so.12", "libnvrtc-builtins.so.12.8")), "fail", "no libnvrtc"),
    ("nvrtc", stack(torch_cuda=None), "unknown", ""),
    ("kernel-package", package("sglang-kernel", "0.4.9"), "fail", "SGLang 0.5.23 pins ==0.4.10"),
    ("kernel-package", package("sglang-kernel", None), "fail", "not installed"),
    ("kernel-package", stack(pins={}), "unknown", ""),
    ("kernel-package", package("sglang-kernel", "of my own"), "unknown", ""),
    ("patches", stack(required=frozenset({"allreduce-fusion"})), "fail", "applicable"),
    ("patches", stack(required=frozenset({"kimi-k25-eagle3"})), "ok", "applied: none"),
    ("patches", stack(required=frozenset({"no-such"})), "fail", "no such patch"),
    ("patches", stack(patches={"allreduce-fusion": "drifted"}), "warn", "allreduce-fusion"),
    ("patches", stack(patches={}), "unknown", ""),
    ("limits", having(limits=(Limits("engine (pid 1)", 8 << 20, 1 << 20),)), "fail", "8192 KiB"),
    ("limits", having(limits=(Limits("engine (pid 1)", None, 1024),)), "fail", "nofile 1024"),
    ("limits", having(limits=(Limits("this process", None, 1024),)), "warn", "this process"),
    ("limits", having(limits=()), "unknown", ""),
    ("shm", having(shm=Shm(64 * MIB, 64 * MIB)), "fail", "0.1 GiB"),
    ("shm", having(shm=Shm(64 * GIB, 512 * MIB)), "fail", "0.5 GiB free"),
    ("shm", having(shm=Shm(4 * GIB, 4 * GIB)), "warn", "4.0 GiB"),
    ("shm", having(shm=Shm()), "fail", "no /dev/shm"),
    ("memory", having(memory=Memory(512 * GIB, 400 * GIB)), "warn", "checkpoint 547.0 GiB"),
    ("memory", having(memory=Memory(1024 * GIB, 900 * GIB, 64 * GIB)), "warn", "64.0 GiB"),
    ("memory", having(models=()), "unknown", "900.0 GiB"),
    ("memory", having(memory=Memory(0, 0)), "unknown", ""),
    ("hugepages", having(memory=Memory(100, 50, None, 26)), "warn", ""),
    ("hugepages", having(memory=Memory(0, 0)), "unknown", ""),
    ("numa-balancing", text(system.NUMA_BALANCING, "1\n"), "warn", "1"),
    ("numa-balancing", text(system.NUMA_BALANCING, None), "unknown", ""),
    ("swappiness", text(system.SWAPPINESS, "60\n"), "warn", "60"),
    ("swappiness", text(system.SWAPPINESS, None), "unknown", ""),
    (
        "cpu-governor",
        having(governors={"performance": 1, "powersave": 63}),
        "warn",
        "63x powersave",
    ),
    ("cpu-governor", having(governors={}), "unknown", ""),
    ("pidfd", both(profile(torch_symm_mem=True), text(system.PTRACE_SCOPE, "2")), "warn", "2"),
    ("pidfd", profile(torch_symm_mem=True), "ok", "ptrace_scope 1, seccomp off"),
    (
        "pidfd",
        both(profile(torch_symm_mem=True), text(system.SELF_STATUS, "Seccomp:\t2\n")),
        "warn",
        "seccomp on",
    ),
    ("pidfd", both(profile(torch_symm_mem=True), text(system.SELF_STATUS, None)), "unknown", ""),
    ("nccl-environment", profile(missing_files=("NCCL_GRAPH_FILE",)), "fail", "NCCL_GRAPH_FILE"),
    ("nccl-environment", profile(environment={"NCCL_P2P_DISABLE": "1"}), "warn", "NCCL_P2P"),
    ("nccl-environment", profile(environment={"NCCL_P2P_DISABLE": "0"}), "ok", "nothing"),
    ("nccl-environment", profile(environment={"NCCL_PROTO": "LL"}), "warn", "NCCL_PROTO=LL"),
    ("nccl-environment", profile(environment={"LD_PRELOAD": "/x/libnccl.so.2"}), "warn", "LD_PRE"),
    ("nccl-environment", having(profiles=()), "unknown", ""),
    ("checkpoint", model(there=False), "fail", "is not there"),
    ("checkpoint", model(missing=("a.safetensors", "b.safetensors")), "fail", "2 shards missing"),
    ("checkpoint", model(bytes=500 * GIB), "fail", "500.0 GiB of 547.0 GiB"),
    ("checkpoint", model(architectures=("Strange",)), "fail", "Strange is not a model"),
    ("checkpoint", model(file_system="nfs4"), "warn", "on nfs4"),
    ("checkpoint", model(bytes=0, expected=None), "unknown", ""),
    ("checkpoint", having(models=()), "unknown", ""),
    ("ports", port(free=False, holder="port 8000 is held by pid 1"), "fail", "held by pid 1"),
    ("ports", port(free=False, ours=True), "ok", "held by opsctl"),
    ("ports", having(ports=()), "unknown", ""),
    ("jit-cache", cache(writable=False, owner="root"), "fail", "opsctl may not write (owned by"),
    ("jit-cache", cache(stale_locks=("/c/lock",)), "fail", "stale lock /c/lock"),
    ("jit-cache", cache(file_system="nfs"), "warn", "on nfs"),
    ("jit-cache", having(caches=()), "unknown", ""),
)


@pytest.mark.parametrize("name", [one.id for one in CHECKS])
def test_the_healthy_host_is_ok(name: str) -> None:
    result = judged(name)
    assert result.status == "ok", result
    assert result.value
    assert result.fix is None


@pytest.mark.parametrize(
    ("name", "change", "status", "shown"),
    CASES,
    ids=[f"{case[0]}-{case[2]}-{number}" for number, case in enumerate(CASES)],
)
def test_what_differs_is_seen(name: str, change: Change, status: str, shown: str) -> None:
    result = judged(name, change)
    assert result.status == status, result
    if status == "unknown":
        assert result.why != named(name).why, "says why it is not known"
        assert shown in (result.value or "")
    else:
        assert shown in (result.value or "")
        assert (result.fix is None) == (status == "ok")


def test_every_check_is_seen_at_its_worst() -> None:
    for one in CHECKS:
        if one.id == "hmm":  # what would be wrong with it cannot be read
            continue
        statuses = {status for name, _, status, _ in CASES if name == one.id}
        statuses |= {status for _, status in TRIPLES} if one.id == "flashinfer" else set()
        assert one.severity in statuses, f"{one.id} is never seen as {one.severity}"
        assert one.severity == "fail" or "fail" not in statuses, one.id


@pytest.mark.parametrize("one", CHECKS, ids=[one.id for one in CHECKS])
def test_what_could_not_be_read_is_unknown_with_the_reason(one: Any) -> None:
    for name in one.reads:
        result = result_of(one, replace(HEALTHY, unread={name: "because of the test"}))
        assert (result.status, result.why, result.value, result.fix) == (
            "unknown",
            "because of the test",
            None,
            None,
        )


@pytest.mark.parametrize("one", CHECKS, ids=[one.id for one in CHECKS])
def test_a_check_is_not_needlessly_without_what_it_only_uses(one: Any) -> None:
    defaults = Facts()
    for name in one.uses:
        lacking = replace(HEALTHY, unread={name: "no"}, **{name: getattr(defaults, name)})
        assert result_of(one, lacking).status == "ok"


OK_OF_GPUS_ALONE = {"gpu-model", "gpu-free", "persistence", "mig", "pcie-link"}
OK_WHERE_NOTHING_IS_FOUND = {
    "xid": "a log without an Xid",
    "aspm": "a log without a lost link",
    "gpu-count": "no profile that needs any",
    "pidfd": "no profile that uses it",
    "cuda-compat": "no old libcuda",
}


@pytest.mark.parametrize("one", CHECKS, ids=[one.id for one in CHECKS])
def test_absence_is_never_ok(one: Any) -> None:
    nothing = replace(Facts(), gpus=GPUS)
    status = result_of(one, nothing).status
    assert (status == "ok") == (one.id in OK_OF_GPUS_ALONE | OK_WHERE_NOTHING_IS_FOUND.keys())


def test_checks_read_and_use_fields_that_there_are() -> None:
    known = {field.name for field in fields(Facts)} - {"unread"}
    for one in CHECKS:
        assert {*one.reads, *one.uses} <= known
        assert not set(one.reads) & set(one.uses)


def test_ids_are_unique_and_texts_complete() -> None:
    ids = [one.id for one in CHECKS]
    assert len(ids) == len(set(ids))
    for one in CHECKS:
        for field in ("id", "title", "wanted", "why", "source", "fix"):
            value = getattr(one, field)
            assert value, f"{one.id}: {field}"
            assert value == value.strip()


TRIPLES: tuple[tuple[Mapping[str, str], str], ...] = (
    ({"flashinfer-python": "0.7.2"}, "ok"),
    ({"flashinfer-python": "0.7.2", "flashinfer-cubin": "0.7.2"}, "ok"),
    ({"flashinfer-python": "0.7.2", "flashinfer-jit-cache": "0.7.2+cu130"}, "ok"),
    ({"flashinfer-python": "0.7.2", "flashinfer-jit-cache": "0.7.20+cu130"}, "fail"),
    ({"flashinfer-python": "0.7.2", "flashinfer-jit-cache": "0.7.2+cu128"}, "fail"),
    ({"flashinfer-python": "0.7.2", "flashinfer-cubin": "0.7.1"}, "fail"),
    ({"flashinfer-python": "0.7.2.dev1"}, "fail"),
    ({"flashinfer-python": "0.7.4", "flashinfer-cubin": "0.7.4"}, "fail"),
    ({}, "fail"),
    ({"flashinfer-python": "unknown"}, "unknown"),
)


@pytest.mark.parametrize(("versions", "status"), TRIPLES)
def test_flashinfer_packages_are_compared_as_versions_not_as_text(
    versions: Mapping[str, str], status: str
) -> None:
    rest = {k: v for k, v in STACK.packages.items() if not k.startswith("flashinfer")}
    assert judged("flashinfer", stack(packages={**rest, **versions})).status == status


def test_flashinfer_0_6_1_beside_0_6_10_is_seen() -> None:
    change = stack(
        packages={"flashinfer-python": "0.6.1", "flashinfer-jit-cache": "0.6.10+cu130"},
        pins={"flashinfer-python": "==0.6.1"},
    )
    result = judged("flashinfer", change)
    assert result.status == "fail"
    assert "flashinfer-jit-cache is of another version" in (result.value or "")


def test_cubin_is_missed_where_sglang_requires_it() -> None:
    pins = {"flashinfer-python": "==0.6.3", "flashinfer-cubin": "==0.6.3"}
    found = judged("flashinfer", stack(packages={"flashinfer-python": "0.6.3"}, pins=pins))
    assert found.status == "fail"
    assert "requires flashinfer-cubin" in (found.value or "")
    both_there = {"flashinfer-python": "0.6.3", "flashinfer-cubin": "0.6.3"}
    assert judged("flashinfer", stack(packages=both_there, pins=pins)).status == "ok"


@pytest.mark.parametrize(
    ("pin", "version", "status"),
    [("==12.9", "12.9.4", "ok"), (">=13.0", "12.9.4", "fail"), (">=13.0", "13.1.0", "ok")],
)
def test_bindings_count_unless_sglang_wants_those(pin: str, version: str, status: str) -> None:
    """SGLang 0.5.9 pins cuda-python 12.9 for torch of CUDA 13, too."""
    packages = {**STACK.packages, "cuda-python": version, "cuda-bindings": version}
    pins = {**STACK.pins, "cuda-python": pin}
    assert judged("cuda-packages", stack(packages=packages, pins=pins)).status == status


def test_flashinfer_without_a_known_pin_is_unknown() -> None:
    assert judged("flashinfer", stack(pins={})).status == "unknown"


def test_several_environments_are_told_apart() -> None:
    other = replace(STACK, python="/opt/next/bin/python", torch_cuda="12.8")
    result = judged("torch-cuda", having(stacks=(STACK, other)))
    assert result.status == "fail"
    assert result.value == "/opt/sglang/bin/python: CUDA 13.0; /opt/next/bin/python: CUDA 12.8"


def test_an_environment_that_cannot_be_read_does_not_hide_one_that_is_wrong() -> None:
    blind = replace(STACK, trouble="no Python environment there")
    wrong = replace(STACK, torch_cuda="12.8")
    assert judged("torch-cuda", having(stacks=(blind, wrong))).status == "fail"
    assert judged("torch-cuda", having(stacks=(blind, STACK))).status == "unknown"


def test_the_toolkit_reads_as_the_one_that_builds() -> None:
    assert judged("toolkit").value == "13.0 in /usr/local/cuda-13.0 (PATH)"
    assert Toolkit().home is None
