"""Facts of the reference host in perfect order: eight RTX PRO 6000, one engine environment."""

from __future__ import annotations

from itertools import combinations, permutations

from opsctl.doctor.checks import driver, links, peers, system
from opsctl.doctor.host import (
    Bridge,
    CudaDevice,
    CudaFacts,
    CudaPair,
    Facts,
    GpuDetail,
    GpuDetails,
    GpuPair,
    JitCache,
    Limits,
    Memory,
    Model,
    PciGpu,
    Port,
    ProfileFacts,
    Shm,
    Stack,
    Toolkit,
)
from opsctl.gpu.model import Gpu, Snapshot

GIB = 1 << 30
MIB = 1 << 20
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC\n"

GPUS = tuple(
    Gpu(
        index,
        name="NVIDIA RTX PRO 6000 Blackwell Server Edition",
        compute_capability=(12, 0),
        memory_total=97887 * MIB,
        memory_used=636 * MIB,
        power_limit=600.0,
        pcie_generation=1,
        pcie_width=16,
        pcie_generation_max=5,
        pcie_width_max=16,
        persistence=True,
        mig=False,
    )
    for index in range(8)
)
DETAILS = GpuDetails(
    tuple(
        GpuDetail(
            index,
            bar1_total=128 * GIB,
            replays=0,
            power_limit=600.0,
            power_default=600.0,
            ecc=True,
            ecc_pending=True,
            uncorrected=0,
            rows_pending=False,
            rows_failed=False,
            compute_mode=0,
            clock_reasons=1,
        )
        for index in range(8)
    ),
    tuple(GpuPair(a, b, 0, 0, 5, 40) for a, b in combinations(range(8), 2)),
    confidential=False,
)
CUDA = CudaFacts(
    13000,
    tuple(CudaDevice(index, multicast=0, posix_handles=1, gpudirect_vmm=1) for index in range(8)),
    tuple(CudaPair(a, b, 1, 0) for a, b in permutations(range(8), 2)),
)
PCI = tuple(
    PciGpu(
        f"0000:{0x11 + 0x10 * index:02x}:00.0",
        numa_node=index // 4,
        iommu="identity",
        fatal=0,
        correctable=3,
        bridges=(Bridge(f"0000:{0x10 + 0x10 * index:02x}:01.0", acs=0),),
    )
    for index in range(8)
)
STACK = Stack(
    "/opt/sglang/bin/python",
    sglang="0.5.23",
    packages={
        "sglang": "0.5.23",
        "torch": "2.9.1+cu130",
        "flashinfer-python": "0.7.2",
        "flashinfer-jit-cache": "0.7.2+cu130",
        "sglang-kernel": "0.4.10",
        "nvidia-cuda-nvrtc": "13.0.88",
        "nvidia-nccl-cu13": "2.28.3",
    },
    pins={"flashinfer-python": "==0.7.2", "sglang-kernel": "==0.4.10"},
    models=frozenset({"KimiK25ForConditionalGeneration", "LlamaForCausalLMEagle3"}),
    torch_cuda="13.0",
    nvrtc=("libnvrtc-builtins.so.13.0", "libnvrtc.so.13"),
    ptxas=(13, 0),
    patches={"allreduce-fusion": "applicable", "kimi-k25-eagle3": "not needed"},
)
HEALTHY = Facts(
    driver=Snapshot("ok", driver="580.95.05", cuda="13.0", gpus=GPUS),
    gpus=GPUS,
    details=DETAILS,
    cuda=CUDA,
    pci=PCI,
    texts={
        driver.VERSION_FILE: OPEN,
        peers.PARAMS: 'RegistryDwords: "ForceP2P=0x11;RMForceP2PType=1"\n',
        links.CMDLINE: "BOOT_IMAGE=/vmlinuz ro iommu=pt pcie_aspm=off\n",
        links.ASPM: "[default] performance powersave powersupersave\n",
        links.HMM: "N\n",
        system.NUMA_BALANCING: "0\n",
        system.SWAPPINESS: "10\n",
        system.PTRACE_SCOPE: "1\n",
        system.SELF_STATUS: "Name:\tpython\nSeccomp:\t0\n",
        system.THP: "always [madvise] never\n",
    },
    limits=(Limits("engine (pid 4711)", None, 1048576),),
    memory=Memory(1024 * GIB, 900 * GIB),
    shm=Shm(512 * GIB, 511 * GIB),
    governors={"performance": 64},
    toolkit=Toolkit(
        "/usr/local/cuda-13.0",
        "PATH",
        (13, 0),
        (13, 0),
        tools={"ninja": "/usr/bin/ninja", "gcc": "/usr/bin/gcc", "g++": "/usr/bin/g++"},
    ),
    stacks=(STACK,),
    profiles=(ProfileFacts("eagle3", gpus=8), ProfileFacts("baseline", gpus=8)),
    models=(
        Model(
            "/models/kimi",
            "model",
            there=True,
            bytes=547 * GIB,
            expected=547 * GIB,
            file_system="ext4",
            architectures=("KimiK25ForConditionalGeneration",),
            python="/opt/sglang/bin/python",
        ),
    ),
    ports=(Port(8000, "serve.listen", True),),
    caches=(JitCache("/var/cache/opsctl/flashinfer", "opsctl", True, file_system="ext4"),),
)
