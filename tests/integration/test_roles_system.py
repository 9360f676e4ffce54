"""The roles that make a host ready for an engine, by real Ansible on real systemd hosts."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl.config.load import load
from opsctl.provision.inventory import Request
from opsctl.provision.inventory import hosts as hosts_of
from opsctl.provision.provision import Options, Watcher, provision
from opsctl.provision.report import HostReport
from tests.support.hosts import (
    Distribution,
    Host,
    Package,
    Repository,
    standin_repository,
    systemd_host,
)
from tests.support.hosts.debs import DKMS_FAILS

# Programs that a host without network cannot install; what they do is of no matter here.
PROGRAMS = {"/usr/bin/g++": b"#!/bin/sh\n"}
PROFILE = {"engine": "simulated", "model": "/models/tiny", "served_name": "demo"}
ROLES = ("check_host", "nvidia_repo", "nvidia_driver", "cuda_toolkit", "gpu_tuning")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass
class Operator:
    """Runs `opsctl provision` on one host that sees a stand-in repository."""

    host: Host
    repository: Repository
    folder: Path

    def provision(
        self,
        *,
        tags: tuple[str, ...] = ROLES,
        check: bool = False,
        state: str = "present",
        **changes: dict[str, Any],
    ) -> HostReport:
        """Provision with a configuration; `changes` are sections of `provision`."""
        sections: dict[str, dict[str, Any]] = {
            "hosts": {"host": self.host.configuration()},
            "check_host": {"require_gpu": False, "free_disk": 0},
            "nvidia_repo": {"url": self.repository.url, "key": str(self.repository.key)},
        }
        for name, section in changes.items():
            sections[name] = {**sections.get(name, {}), **section}
        text = yaml.safe_dump({"profiles": {"only": PROFILE}, "provision": sections})
        file = self.folder / "opsctl.yaml"
        file.write_text(text)
        config = load((file,), environment={}).config
        watcher = Watcher(lambda _: None, lambda _: None, lambda _: False)
        report = provision(
            Request(config, text, state),
            hosts_of(config),
            Options(tags=tags, check=check, diff=True),
            self.folder / "state",
            watcher,
        )
        sys.stdout.write(f"{report.document()}\n{Path(report.log).read_text()}")
        return report.hosts["host"]

    def output(self, *argv: str) -> str:
        return self.host.run(list(argv), check=False).stdout.strip()

    def packages(self) -> dict[str, str]:
        """Installed packages and their versions."""
        ran = self.output("dpkg-query", "-W", "-f=${db:Status-Abbrev} ${Package} ${Version}\n")
        rows = [line.split() for line in ran.splitlines()]
        return {name: version for status, name, version in rows if status[1] == "i"}

    def driver(self) -> dict[str, str]:
        """Installed packages of a driver, and their versions."""
        return {n: v for n, v in self.packages().items() if "nvidia" in n or n == "libcuda1"}

    def held(self) -> set[str]:
        return set(self.output("apt-mark", "showhold").split())

    def shm(self) -> int:
        """Size of /dev/shm in bytes."""
        return int(self.output("findmnt", "-bno", "SIZE", "/dev/shm"))

    def everything(self) -> set[str]:
        """All that the roles could have changed: files with their content, links, packages."""
        folders = ["/etc", "/usr/local", "/usr/share/keyrings", "/boot", "/opt"]
        script = (
            "find $* /var/lib/opsctl-provision ! -type d ! -name '*-' ! -name 'ld.so.cache'"
            " -printf '%p %m %l ' -exec sh -c 'test -L $0 || md5sum <$0; echo' {} ';' 2>/dev/null"
        )
        files = self.output("sh", "-c", script, "sh", *folders).splitlines()
        return {*files, *map(str, self.packages().items()), *self.held()}


@contextlib.contextmanager
def operator_of(
    folder: Path, distribution: Distribution = "bookworm", **files: bytes
) -> Iterator[Operator]:
    repository = standin_repository(folder / "repository", distribution)
    given = {**PROGRAMS, **files}
    with systemd_host(distribution, binds=repository.binds, files=given) as host:
        yield Operator(host, repository, folder)


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    with operator_of(tmp_path) as found:
        yield found


@pytest.mark.extended
@pytest.mark.parametrize("distribution", ["bookworm", "trixie"])
def test_a_bare_host_is_planned_provisioned_left_alone_and_given_back(
    tmp_path: Path, distribution: Distribution
) -> None:
    with operator_of(tmp_path, distribution) as operator:
        bare = operator.everything()

        plan = operator.provision(check=True)
        assert plan.verdict == "pending"
        assert plan.unknown == (
            "nvidia_repo: unknown until the repository is added: what it holds",
            "nvidia_driver: unknown until the repository is added: which driver of 580 it is",
            "cuda_toolkit: unknown until the repository is added: cuda-toolkit-13-0",
        )
        assert operator.everything() == bare

        first = operator.provision()
        assert (first.failed, first.pending) == (0, ())
        assert set(operator.driver().values()) == {"580.105.08-1"}
        assert operator.held() == set(operator.driver())
        assert "release 13.0" in operator.output("/usr/local/cuda/bin/nvcc", "--version")
        assert operator.output("systemctl", "is-enabled", "nvidia-persistenced") == "enabled"

        assert operator.provision().changed == 0

        assert operator.provision(state="absent").failed == 0
        assert (operator.driver(), operator.held()) == ({}, set())
        left = operator.everything() - bare
        note = {item for item in left if "pending.d/gpu_tuning-reboot" in item}
        assert left - note == {"('dkms', '3.0.10-8')"}  # a dependency, which others may use too


@pytest.mark.extended
def test_what_was_there_before_opsctl_is_not_taken_away(operator: Operator) -> None:
    operator.provision(tags=("nvidia_repo",))
    operator.host.run(["apt-get", "install", "-y", "nvidia-kernel-open-dkms=580.95.05-1"])

    assert operator.provision().failed == 0
    assert set(operator.driver().values()) == {"580.95.05-1"}  # moved neither on nor back
    assert operator.provision(state="absent").failed == 0
    assert operator.driver()["nvidia-kernel-open-dkms"] == "580.95.05-1"
    assert operator.held() == set()
    assert "cuda-toolkit-13-0" not in operator.packages()


@pytest.mark.extended
def test_drift_is_repaired_and_counted(operator: Operator) -> None:
    operator.provision()
    right = operator.everything()
    script = """
        echo '# edited' >> /etc/apt/preferences.d/opsctl-nvidia-driver
        rm /etc/apt/apt.conf.d/52opsctl-nvidia-driver /etc/modprobe.d/opsctl-nouveau.conf
        apt-mark unhold libcuda1
        systemctl mask nvidia-persistenced
        ln -sfn /usr/local/cuda-12.8 /usr/local/cuda
        sed -i s/^Signed-By.*// /etc/apt/sources.list.d/opsctl-nvidia.sources
        rm /usr/share/keyrings/opsctl-nvidia.asc
        echo vm.swappiness=60 > /etc/sysctl.d/90-opsctl.conf
        chmod 666 /etc/apt/preferences.d/opsctl-nvidia-driver
    """
    operator.host.run(["sh", "-ec", script])
    drifted = operator.everything()

    found = operator.provision(check=True)
    assert (found.verdict, operator.everything()) == ("pending", drifted)
    assert found.changed >= 9

    repaired = operator.provision()
    assert (repaired.failed, repaired.changed >= 9) == (0, True)
    assert operator.everything() == right
    assert (
        operator.output("stat", "-c", "%a", "/etc/apt/preferences.d/opsctl-nvidia-driver") == "644"
    )
    assert operator.output("systemctl", "is-enabled", "nvidia-persistenced") == "enabled"
    later = operator.provision(check=True)
    assert (later.verdict, later.changed, later.unknown) == ("unchanged", 0, ())


def test_a_repository_signed_by_another_key_is_refused_until_its_own_key_is_given(
    operator: Operator,
) -> None:
    other = operator.folder / "other.asc"
    other.write_bytes(operator.repository.key.read_bytes())
    operator.repository.rotate_key()

    for _ in range(2):  # a second run must not take the first one's files for success
        wrong = operator.provision(tags=("nvidia_repo",), nvidia_repo={"key": str(other)})
        assert wrong.verdict == "failed"
        assert "does not accept file:///srv/nvidia" in wrong.why[0]
        assert "NO_PUBKEY" in wrong.why[0]

    right = operator.provision(tags=("nvidia_repo",))
    assert (right.failed, right.changed > 0) == (0, True)
    assert "580.95.05-1" in operator.output("apt-cache", "madison", "libcuda1")

    operator.repository.rotate_key()
    binary = {"key": str(operator.repository.key.with_suffix(".gpg"))}
    rotated = operator.provision(tags=("nvidia_repo",), nvidia_repo=binary)
    assert (rotated.failed, rotated.changed > 0) == (0, True)
    assert operator.provision(tags=("nvidia_repo",), nvidia_repo=binary).changed == 0

    # The lists of the old key are still there: they must not stand in for what was refused.
    again = operator.provision(tags=("nvidia_repo",), nvidia_repo={"key": str(other)})
    assert again.verdict == "failed"


def test_a_tampered_index_is_refused(operator: Operator) -> None:
    operator.repository.tamper()
    tampered = operator.provision(tags=("nvidia_repo", "nvidia_driver"))
    assert tampered.verdict == "failed"
    assert tampered.why[0].startswith("nvidia_repo:")
    assert operator.driver() == {}

    operator.repository.publish()
    assert operator.provision(tags=("nvidia_repo",)).failed == 0


@pytest.mark.extended
def test_a_repository_that_another_file_names_is_refused_before_apt_breaks(
    operator: Operator,
) -> None:
    line = f"deb [signed-by=/usr/share/keyrings/cuda.gpg] {operator.repository.url} /\n"
    operator.host.write("/etc/apt/sources.list.d/cuda-debian12-x86_64.list", line)
    refused = operator.provision(tags=("nvidia_repo",))
    assert "cuda-debian12-x86_64.list already names this repository" in refused.why[0]
    assert "opsctl" not in operator.output("ls", "/etc/apt/sources.list.d", "/usr/share/keyrings")


def test_the_driver_moves_only_when_it_is_asked_to_and_with_all_its_packages(
    operator: Operator,
) -> None:
    tags = ("nvidia_repo", "nvidia_driver")

    def move(**section: str) -> HostReport:
        return operator.provision(tags=tags, nvidia_driver=section)

    assert move(version="580.95.05-1").failed == 0
    assert set(operator.driver().values()) == {"580.95.05-1"}
    assert move().changed == 0  # a newer one of the branch is no reason to move
    assert set(operator.driver().values()) == {"580.95.05-1"}

    for section, version in (
        ({"version": "580.105.08"}, "580.105.08-1"),
        ({"branch": "590"}, "590.44.01-1"),
        ({"branch": "580"}, "580.105.08-1"),
    ):
        assert move(**section).failed == 0
        assert set(operator.driver().values()) == {version}
        assert operator.held() == set(operator.driver())
    assert move(branch="580").changed == 0
    # Packages that others install later come from the branch, too.
    assert "Candidate: 580.105.08-1" in operator.output("apt-cache", "policy", "nvidia-open")

    missing = move(version="580.1.1-1")
    assert "apt has no driver 580.1.1-1" in missing.why[0]
    assert "580.95.05, 580.105.08, 590.44.01" in missing.why[0]
    assert missing.changed == 0


@pytest.mark.extended
def test_a_driver_is_not_installed_where_apt_would_remove_what_others_need(
    operator: Operator,
) -> None:
    tags = ("nvidia_repo", "nvidia_driver")
    operator.repository.add(Package("monitoring", "1.0-1", "libcuda1 (= 580.105.08-1)"))
    operator.provision(tags=tags)
    operator.host.run(["apt-get", "install", "-y", "monitoring"])
    before = operator.packages()

    refused = operator.provision(tags=tags, nvidia_driver={"branch": "590"})
    assert refused.verdict == "failed"
    assert "apt would remove monitoring" in refused.why[0]
    assert operator.packages() == before
    assert operator.held() == set(operator.driver())


def test_kernels_without_the_driver_are_built_for_or_named(operator: Operator) -> None:
    tags = ("nvidia_repo", "nvidia_driver")
    old, new = "6.1.0-98-amd64", "6.1.0-99-amd64"
    for kernel in (old, new):
        operator.host.run(["mkdir", "-p", f"/lib/modules/{kernel}/kernel"])
    operator.host.run(["mkdir", f"/lib/modules/{old}/build"])

    (note,) = operator.provision(tags=tags).pending
    assert f"not built for kernel {new}, which would boot without GPUs" in note
    assert f"apt-get install linux-headers-{new}" in note

    operator.host.run(["mkdir", f"/lib/modules/{new}/build"])
    operator.host.write(DKMS_FAILS, new)
    failing = operator.provision(tags=tags)
    (note,) = failing.pending
    assert failing.failed == 0
    assert f"without GPUs: dkms autoinstall -k {new}" in note

    operator.host.run(["rm", DKMS_FAILS])
    built = operator.provision(tags=tags)
    assert (built.failed, built.changed, built.pending) == (0, 1, ())
    assert operator.provision(tags=tags).changed == 0


@pytest.mark.extended
def test_a_host_that_cannot_serve_is_refused_with_all_reasons_before_anything_is_changed(
    operator: Operator,
) -> None:
    bare = operator.everything()
    refused = operator.provision(
        check_host={"require_gpu": True, "free_disk": "900000GB", "memory": "900000GB"},
        nvidia_repo={"url": ""},
    )
    assert refused.verdict == "failed"
    for reason in (
        "There is no NVIDIA GPU on PCI",
        "Set provision.nvidia_repo.url, or provision.nvidia_repo.manage to false",
        "where the engine goes; provision.check_host.free_disk asks for",
        "of memory; provision.check_host.memory asks for",
    ):
        assert reason in refused.why[0]
    assert operator.everything() == bare


TUNING = {
    "force_p2p": True,
    "disable_hmm": True,
    "iommu": "off",
    "aspm": "off",
    "disable_acs": True,
    "power_limit": 450,
    "sysctl": {"vm.swappiness": 10},
    "shm_size": "64MiB",
}
UPDATE_GRUB = b"""#!/bin/sh
# What grub-mkconfig does with the drop-ins.
GRUB_CMDLINE_LINUX=quiet
for file in /etc/default/grub.d/*.cfg; do [ ! -e "$file" ] || . "$file"; done
mkdir -p /boot/grub
echo "linux /vmlinuz root=/dev/sda1 $GRUB_CMDLINE_LINUX" >/boot/grub/grub.cfg
"""


@pytest.mark.extended
def test_tuning_that_is_asked_for_is_laid_holds_after_a_reboot_and_is_taken_away_again(
    tmp_path: Path,
) -> None:
    tags = ("gpu_tuning",)
    with operator_of(tmp_path, **{"/usr/sbin/update-grub": UPDATE_GRUB}) as operator:
        operator.provision(tags=tags, gpu_tuning={"sysctl": {}})
        bare = operator.everything()
        plan = operator.provision(tags=tags, check=True, gpu_tuning=TUNING)
        assert (plan.verdict, operator.everything()) == ("pending", bare)

        asked = operator.provision(tags=tags, gpu_tuning=TUNING)
        words = "amd_iommu=off intel_iommu=off pcie_aspm=off pcie_port_pm=off"
        assert asked.failed == 0
        assert asked.pending == (f"reboot: the kernel runs without {words}.",)
        assert words in operator.output("cat", "/boot/grub/grub.cfg")
        options = operator.output("cat", "/etc/modprobe.d/opsctl-nvidia.conf")
        assert 'NVreg_RegistryDwords="ForceP2P=0x11;RMForceP2PType=1;RMPcieP2PType=2"' in options
        assert "options nvidia_uvm uvm_disable_hmm=1" in options
        assert operator.shm() == 64 << 20
        assert operator.provision(tags=tags, gpu_tuning=TUNING).changed == 0

        operator.host.run(["mount", "-o", "remount,size=32M", "/dev/shm"])
        assert operator.provision(tags=tags, gpu_tuning=TUNING).changed == 1
        assert operator.shm() == 64 << 20

        operator.host.reboot()
        assert operator.shm() == 64 << 20
        assert operator.output("systemctl", "is-active", "opsctl-acs.service") == "active"

        less = operator.provision(tags=tags, gpu_tuning={**TUNING, "aspm": "leave"})
        assert less.failed == 0
        assert "pcie_aspm" not in operator.output("cat", "/boot/grub/grub.cfg")

        gone = operator.provision(tags=tags, gpu_tuning={"sysctl": {}})
        assert gone.failed == 0
        assert gone.pending == ("reboot: settings were taken away, and hold until then.",)
        left = operator.everything() - bare
        assert {item.split()[0] for item in left} == {
            "/boot/grub/grub.cfg",
            "/var/lib/opsctl-provision/pending.d/gpu_tuning-reboot",
        }
        operator.host.reboot()
        assert operator.provision(tags=tags, gpu_tuning={"sysctl": {}}).pending == ()


@pytest.mark.extended
def test_without_grub_the_words_for_the_kernel_line_are_left_to_a_person(
    operator: Operator,
) -> None:
    found = operator.provision(tags=("gpu_tuning",), gpu_tuning={"iommu": "pt"})
    assert [note for note in found.pending if "iommu=pt" in note] == [
        "There is no GRUB here: add iommu=pt to the kernel line of this host's boot loader; reboot."
    ]
