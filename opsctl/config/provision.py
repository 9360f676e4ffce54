"""What `opsctl provision` makes of a host, as frozen models.

Each section is the input of one Ansible role of the same name (playbooks/roles): its keys become
the role's variables `<role>_<key>`, and the role's argument specification is made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from opsctl.config.base import Model, Texts
from opsctl.config.units import Size

AbsolutePath = Annotated[str, Field(pattern=r"^/[^\x00\n]*$")]
Name = Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]*$", max_length=31)]


class HostConfig(Model):
    """One host to provision. Without an address it is this machine."""

    address: str | None = Field(None, description="Name or address for ssh; null is this machine.")
    port: Annotated[int, Field(ge=1, le=65535)] = Field(22, description="Port of ssh.")
    user: str = Field("root", description="User to log in as; another one needs sudo.")
    identity_file: str | None = Field(None, description="Private key file for ssh.")
    known_hosts: str | None = Field(
        None, description="File with the host's key; null is the user's own known_hosts."
    )
    python: AbsolutePath = Field(
        "/usr/bin/python3", description="The system's interpreter there, which Ansible runs in."
    )


class CheckHostConfig(Model):
    """What a host must have before anything is changed on it."""

    free_disk: Size = Field(50 * 2**30, description="Least free space where the engine goes.")
    memory: Size = Field(
        0, description="Least memory: the page cache should hold the checkpoint for warm restarts."
    )
    require_gpu: bool = Field(True, description="Refuse a host without an NVIDIA GPU on its PCIe.")


class NvidiaRepoConfig(Model):
    """The apt repository that driver and CUDA toolkit come from."""

    manage: bool = Field(True, description="False leaves apt's sources alone.")
    url: str = Field(
        "",
        description="Its address up to the folder with the Packages file, as NVIDIA's CUDA "
        "installation guide gives it; or file:/// of a copy.",
    )
    key: str = Field("", description="Path, on this machine, of its signing key (.asc, .gpg).")


class NvidiaDriverConfig(Model):
    """The driver: open kernel modules, pinned and held."""

    manage: bool = Field(True, description="False leaves the driver alone.")
    branch: Annotated[str, Field(pattern=r"^[0-9]{3}$")] = Field(
        "580", description="Driver branch; CUDA 13 needs 580 or later."
    )
    version: str | None = Field(
        None, description="Exact package version; null takes the newest of the branch."
    )
    persistence: bool = Field(True, description="Keep the driver loaded without clients.")


class CudaToolkitConfig(Model):
    """The CUDA toolkit, whose nvcc builds kernels when the engine starts."""

    manage: bool = Field(True, description="False leaves the toolkit alone.")
    version: Annotated[str, Field(pattern=r"^13\.[0-9]+$")] = Field(
        "13.0", description="Release of the toolkit."
    )


class GpuTuningConfig(Model):
    """Settings of kernel and driver. Off unless asked for: each has its price on some boards."""

    force_p2p: bool = Field(
        False,
        description="Driver registry keys for direct peer-to-peer over PCIe (rtx6kpro wiki); "
        "without them it may be staged through memory, with wrong IOMMU settings it corrupts.",
    )
    disable_hmm: bool = Field(
        False, description="uvm_disable_hmm=1, where NCCL locks up (rtx6kpro wiki)."
    )
    iommu: Literal["leave", "off", "pt"] = Field(
        "leave", description="Kernel line: off turns the IOMMU off, pt passes devices through."
    )
    aspm: Literal["leave", "off"] = Field(
        "leave", description="Kernel line: pcie_aspm=off pcie_port_pm=off, where links go down."
    )
    disable_acs: bool = Field(
        False, description="Clear ACS redirection on bridges above GPUs at boot (setpci)."
    )
    power_limit: Annotated[int, Field(ge=100, le=1000)] | None = Field(
        None, description="Watts, the same for every GPU; null leaves it."
    )
    sysctl: Mapping[str, int | str] = Field(
        default_factory=lambda: {"kernel.numa_balancing": 0, "vm.swappiness": 10},
        description="Kernel parameters to set.",
    )
    shm_size: Size | None = Field(
        None, description="Size of /dev/shm; null leaves the system's half of memory."
    )


class EngineEnvConfig(Model):
    """The engine's own Python environment."""

    manage: bool = Field(True, description="False leaves it alone.")
    path: AbsolutePath = Field("/opt/sglang", description="Where it is.")
    installer: Literal["uv", "pip"] = Field("pip", description="What installs packages.")
    python: AbsolutePath = Field("/usr/bin/python3", description="Interpreter it is made from.")
    sglang: str = Field("0.5.23", description="Release of SGLang.")
    cuda: Literal["cu130", "none"] = Field(
        "cu130", description="CUDA build every package must be of; none is not checked."
    )
    jit_cache: bool = Field(
        False, description="Install flashinfer-jit-cache of the very version of FlashInfer, too."
    )
    wheels: str | None = Field(
        None, description="Folder of wheels on the host; packages then come from nowhere else."
    )
    constraints: str | None = Field(
        None, description="Constraints file on this machine, for instance of a tested stack."
    )
    cache_dir: AbsolutePath = Field(
        "/var/cache/opsctl", description="Caches of compiled kernels, one folder for each stack."
    )


class Sm120PatchesConfig(Model):
    """Patches of `opsctl patch` for the engine's environment."""

    manage: bool = Field(True, description="False leaves the environment as it is.")
    names: Texts = Field((), description="Patches to apply besides those that profiles require.")


class StoredModel(Model):
    """A checkpoint that must be there."""

    source: str | None = Field(
        None, description="Name at the model hub to download it from when it is not complete."
    )
    revision: str | None = Field(None, description="Revision to download.")


class ModelStoreConfig(Model):
    """Checkpoints on the host."""

    manage: bool = Field(True, description="False does not look at models.")
    models: Mapping[AbsolutePath, StoredModel] = Field(
        default_factory=dict,
        description="Checkpoints, by folder, beside those that profiles name by path.",
    )
    download: bool = Field(False, description="Download what is missing and has a source.")


class OpsctlServiceConfig(Model):
    """opsctl itself on the host, and its systemd unit."""

    manage: bool = Field(True, description="False leaves it alone.")
    path: AbsolutePath = Field("/opt/opsctl", description="opsctl's own Python environment.")
    python: AbsolutePath = Field(
        "/usr/bin/python3",
        description="Interpreter it is made from, 3.11 or later; Ubuntu 22.04 needs another one.",
    )
    package: str = Field(
        "opsctl", description="What pip installs: a name, or the path of a wheel on this machine."
    )
    wheels: str | None = Field(
        None, description="Folder of wheels on the host; packages then come from nowhere else."
    )
    user: Name = Field("opsctl", description="User the service runs as.")
    config_dir: AbsolutePath = Field("/etc/opsctl", description="Where its configuration goes.")
    state_dir: AbsolutePath = Field("/var/lib/opsctl", description="State, logs and events.")
    instances: Mapping[Name, str] = Field(
        default_factory=dict,
        description="Configuration files, on this machine, of several engines on the host, each "
        "run as opsctl@NAME; none runs this configuration as opsctl.",
    )
    auto_spec: bool = Field(True, description="Start with --auto-spec.")
    enabled: bool = Field(True, description="Start at boot.")
    restart: Literal["if-stopped", "if-changed"] = Field(
        "if-stopped",
        description="A changed configuration: if-stopped never restarts an engine that serves, "
        "if-changed drains and restarts it.",
    )


class VerifyConfig(Model):
    """How it is proven that the host serves."""

    timeout: Annotated[int, Field(ge=1)] = Field(
        1800, description="Seconds until the service must answer."
    )
    allow: Texts = Field((), description="Doctor checks whose failure does not count.")


class ProvisionConfig(Model):
    """Hosts, and what they become."""

    hosts: Mapping[str, HostConfig] = Field(
        default_factory=dict, description="Hosts by name; none is this machine."
    )
    check_host: CheckHostConfig = Field(default_factory=CheckHostConfig)
    nvidia_repo: NvidiaRepoConfig = Field(default_factory=NvidiaRepoConfig)
    nvidia_driver: NvidiaDriverConfig = Field(default_factory=NvidiaDriverConfig)
    cuda_toolkit: CudaToolkitConfig = Field(default_factory=CudaToolkitConfig)
    gpu_tuning: GpuTuningConfig = Field(default_factory=GpuTuningConfig)
    engine_env: EngineEnvConfig = Field(default_factory=EngineEnvConfig)
    sm120_patches: Sm120PatchesConfig = Field(default_factory=Sm120PatchesConfig)
    model_store: ModelStoreConfig = Field(default_factory=ModelStoreConfig)
    opsctl_service: OpsctlServiceConfig = Field(default_factory=OpsctlServiceConfig)
    verify: VerifyConfig = Field(default_factory=VerifyConfig)
