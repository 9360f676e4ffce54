"""What is known of a host: plain data, no reading. None is always unknown, never zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from opsctl.gpu.kernel_log import Xid
from opsctl.gpu.model import Gpu, Holder, Snapshot

NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class GpuDetail:
    """What NVML says of a GPU beyond `gpu.model.Gpu`: memory in bytes, power in watts."""

    index: int
    bar1_total: int | None = None
    replays: int | None = None
    power_limit: float | None = None
    power_default: float | None = None
    ecc: bool | None = None
    ecc_pending: bool | None = None
    uncorrected: int | None = None
    """Uncorrected memory errors since the driver was loaded."""
    rows_pending: bool | None = None
    rows_failed: bool | None = None
    compute_mode: int | None = None
    clock_reasons: int | None = None


@dataclass(frozen=True)
class GpuPair:
    """What NVML says of two GPUs; statuses are NVML's numbers, 0 is well."""

    first: int
    second: int
    read: int | None = None
    write: int | None = None
    atomics: int | None = None
    ancestor: int | None = None
    """NVML's topology level: 30 one host bridge, 40 one NUMA node, 50 across nodes."""


@dataclass(frozen=True)
class GpuDetails:
    """Everything the doctor's own reading of NVML gave."""

    gpus: tuple[GpuDetail, ...] = ()
    pairs: tuple[GpuPair, ...] = ()
    confidential: bool | None = None


@dataclass(frozen=True)
class CudaDevice:
    """What libcuda says of a device without a context."""

    index: int
    multicast: int | None = None
    posix_handles: int | None = None
    gpudirect_vmm: int | None = None


@dataclass(frozen=True)
class CudaPair:
    """What libcuda says of the way from one device to another."""

    first: int
    second: int
    access: int | None = None
    native_atomics: int | None = None


@dataclass(frozen=True)
class CudaFacts:
    """Everything libcuda said. `version` is 13000 for CUDA 13.0."""

    version: int | None = None
    devices: tuple[CudaDevice, ...] = ()
    pairs: tuple[CudaPair, ...] = ()


@dataclass(frozen=True)
class Bridge:
    """A PCIe bridge above a GPU. `acs` is its ACS control register, None when it has none."""

    address: str
    acs: int | None = None
    readable: bool = True
    """Whether the extended configuration space could be read, which takes root."""


@dataclass(frozen=True)
class PciGpu:
    """An NVIDIA GPU as the kernel's PCI tree shows it, driver or not."""

    address: str
    numa_node: int | None = None
    iommu: str | None = None
    """Type of its IOMMU group: identity, DMA, DMA-FQ; None without one."""
    fatal: int | None = None
    """AER errors since boot, fatal and nonfatal ones."""
    correctable: int | None = None
    bridges: tuple[Bridge, ...] = ()


@dataclass(frozen=True)
class Toolkit:
    """The CUDA toolkit that compilers of an engine would find, and the tools beside it."""

    home: str | None = None
    origin: str = ""
    release: tuple[int, int] | None = None
    ptxas: tuple[int, int] | None = None
    first_in_path: str | None = None
    """nvcc as the shell finds it, when it is another one."""
    first_release: tuple[int, int] | None = None
    tools: Mapping[str, str | None] = field(default_factory=dict)
    """ninja, gcc, g++: where each is."""
    compat: tuple[str, ...] = ()
    """Copies of libcuda in /usr/local/cuda*/compat."""
    compat_active: tuple[str, ...] = ()
    """Those of them the loader would take."""


@dataclass(frozen=True)
class Stack:
    """An engine's environment, read from its files. `trouble`: why that was not possible."""

    python: str
    trouble: str | None = None
    sglang: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    """Installed version of each package, by pip's name."""
    pins: Mapping[str, str] = field(default_factory=dict)
    """What this SGLang requires."""
    models: frozenset[str] = frozenset()
    torch_cuda: str | None = None
    """CUDA that torch was built for, such as 13.0; empty for a build without CUDA."""
    nvrtc: tuple[str, ...] = ()
    """Files libnvrtc* of the nvidia packages."""
    ptxas: tuple[int, int] | None = None
    """CUDA release of the ptxas that Triton brings along."""
    patches: Mapping[str, str] = field(default_factory=dict)
    """State of each patch."""
    required: frozenset[str] = frozenset()
    """Patches that profiles require here."""


@dataclass(frozen=True)
class Model:
    """A checkpoint that a profile names by its path."""

    path: str
    role: Literal["model", "draft_model"]
    there: bool = False
    missing: tuple[str, ...] = ()
    bytes: int | None = None
    """Bytes of the weights that are there."""
    expected: int | None = None
    """Bytes of all tensors, as the index says."""
    file_system: str | None = None
    architectures: tuple[str, ...] = ()
    python: str = ""
    """Interpreter of the profile that loads it."""


@dataclass(frozen=True)
class ProfileFacts:
    """What the host must give to a launch profile."""

    name: str
    gpus: int | None = None
    """How many GPUs the host must have for it; None when that cannot be told."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that steer NCCL, the loader and SGLang's communication."""
    missing_files: tuple[str, ...] = ()
    """Variables that name a file which is not there."""
    torch_symm_mem: bool = False
    peer_access: str | None = None
    """The setting that cannot work without peer-to-peer access."""


@dataclass(frozen=True)
class Port:
    """A port the configuration names."""

    port: int
    use: str
    free: bool
    holder: str = ""
    ours: bool = False


@dataclass(frozen=True)
class JitCache:
    """A cache of compiled kernels."""

    path: str
    user: str
    writable: bool
    owner: str | None = None
    """Who owns it, when that is somebody else."""
    file_system: str | None = None
    stale_locks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Limits:
    """Resource limits of a process; None is unlimited."""

    of: str
    memlock: int | None
    nofile: int | None


@dataclass(frozen=True)
class Memory:
    """Memory of the host in bytes."""

    total: int
    available: int
    cgroup_limit: int | None = None
    huge: int = 0
    """Set aside as static huge pages."""


@dataclass(frozen=True)
class Shm:
    """The file system at /dev/shm; None fields when it is not there."""

    size: int | None = None
    free: int | None = None


@dataclass(frozen=True)
class Facts:
    """All that was gathered. `unread` says for each field that could not be read why."""

    unread: Mapping[str, str] = field(default_factory=dict)
    driver: Snapshot = field(default_factory=lambda: Snapshot("absent"))
    gpus: tuple[Gpu, ...] = ()
    holders: tuple[Holder, ...] = ()
    details: GpuDetails = GpuDetails()
    cuda: CudaFacts = CudaFacts()
    pci: tuple[PciGpu, ...] = ()
    xids: tuple[Xid, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    """Small files of the kernel, by absolute path; one that is not there is not in it."""
    limits: tuple[Limits, ...] = ()
    memory: Memory = Memory(0, 0)
    shm: Shm = Shm()
    governors: Mapping[str, int] = field(default_factory=dict)
    """Number of CPUs with each frequency governor."""
    toolkit: Toolkit = Toolkit()
    stacks: tuple[Stack, ...] = ()
    profiles: tuple[ProfileFacts, ...] = ()
    models: tuple[Model, ...] = ()
    ports: tuple[Port, ...] = ()
    caches: tuple[JitCache, ...] = ()

    def text(self, path: str) -> str | None:
        """The content of a small file without the blanks around it; None when unknown."""
        found = self.texts.get(path)
        return None if found is None else found.strip()
