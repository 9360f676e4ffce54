"""What opsctl's modules see of a host, on made-up hosts: a tree of files and programs of shell."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import ansible.module_utils
import pytest

from opsctl.system import resources

PLAYBOOKS = Path(str(resources.tree("playbooks")))
KERNEL = platform.release()
GPU = "0000:41:00.0"


@pytest.fixture(autouse=True)
def shared_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ansible puts its modules' helpers below its own name; so does this."""
    path = [*ansible.module_utils.__path__, str(PLAYBOOKS / "module_utils")]
    monkeypatch.setattr(ansible.module_utils, "__path__", path)


def module(name: str) -> ModuleType:
    """One of opsctl's Ansible modules."""
    spec = importlib.util.spec_from_file_location(name, PLAYBOOKS / "library" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


class Made:
    """A host below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("/etc/os-release", 'ID=debian\nVERSION_ID="12"\n')
        self.write("/proc/meminfo", "MemTotal: 1048576 kB\n")
        self.write("/proc/cmdline", "quiet")
        self.write(f"/lib/modules/{KERNEL}/build/Makefile", "")
        for name in ("dpkg-query", "apt-cache", "apt-mark", "mokutil", "nvidia-smi", "apt-get"):
            self.program(name, "exit 0")

    def write(self, path: str, text: str | bytes) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)

    def program(self, name: str, script: str) -> None:
        self.write(f"/usr/bin/{name}", f"#!/bin/sh\n{script}\n")
        (self.root / "usr/bin" / name).chmod(0o755)

    def gpu(self, device: str = "0x2bb1", address: str = GPU, above: str = "") -> None:
        """A GPU, below a bridge where `above` names one. 10de:2bb1 is RTX PRO 6000."""
        place = self.root / "sys/devices/pci0000:40" / above / address
        for name, text in (("vendor", "0x10de"), ("class", "0x030200"), ("device", device)):
            self.write(f"/{place.relative_to(self.root)}/{name}", text)
        self.link(address, place)

    def link(self, address: str, place: Path) -> None:
        devices = self.root / "sys/bus/pci/devices"
        devices.mkdir(parents=True, exist_ok=True)
        (devices / address).symlink_to(place)

    def packages(self, **versions: str) -> None:
        rows = "".join(f"ii \t{n.replace('_', '-')}\t{v}\n" for n, v in versions.items())
        self.write("/packages", rows)
        self.program("dpkg-query", f"cat {self.root}/packages")

    def available(self, *versions: str) -> None:
        """Every package of NVIDIA's is to be had in these versions, newest first."""
        lines = "".join(f" $2 | {version} | here\n" for version in versions)
        self.program("apt-cache", f'case $2 in *nvidia*) echo "{lines}" ;; esac')

    def see(self, name: str, **wanted: Any) -> Any:
        """What a module sees of it."""
        found = module(name)
        host = sys.modules["ansible.module_utils.opsctl_system"].Host(
            self.root, {"PATH": f"{self.root}/usr/bin:/usr/bin:/bin"}
        )
        host.has = lambda program: (self.root / "usr/bin" / program).exists()
        return found.see(host, {"state": "present", "pending": "/pending.d", **wanted})


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


SUITABLE = {
    "require_gpu": True,
    "free_disk": 0,
    "memory": 2**30,
    "engine_path": "/opt/sglang",
    "driver": True,
    "repository": {"url": "file:///srv", "key": True},
}


def check(made: Made, **changes: Any) -> Any:
    return made.see("opsctl_see_host", **{**SUITABLE, **changes})


def test_a_suitable_host_has_nothing_against_it(made: Made) -> None:
    made.gpu()
    seen = check(made)
    assert (seen.facts["problems"], seen.notes) == ([], {})


@pytest.mark.parametrize(
    ("path", "text", "problem"),
    [
        ("/etc/os-release", "ID=debian\nVERSION_ID=11\n", "This is debian 11"),
        ("/etc/os-release", "ID=fedora\nVERSION_ID=42\n", "This is fedora 42"),
        ("/proc/meminfo", "MemTotal: 1048575 kB\n", "1.0 GiB of memory"),
    ],
)
def test_a_system_that_cannot_serve_is_refused(
    made: Made, path: str, text: str, problem: str
) -> None:
    made.gpu()
    made.write(path, text)
    (said,) = check(made).facts["problems"]
    assert problem in said


def test_a_gpu_that_open_kernel_modules_do_not_drive_is_refused_by_address(made: Made) -> None:
    made.gpu()
    made.gpu("0x1db6", "0000:42:00.0")  # V100
    (said,) = check(made).facts["problems"]
    assert "0000:42:00.0 (10de:1db6)" in said
    assert GPU not in said


def test_a_running_kernel_whose_headers_nobody_has_is_refused(made: Made) -> None:
    made.gpu()
    (made.root / f"lib/modules/{KERNEL}/build").rename(made.root / "elsewhere")
    (said,) = check(made).facts["problems"]
    assert KERNEL in said
    made.program("apt-cache", 'echo " $2 | 6.1 | here"')
    assert check(made).facts["problems"] == []


SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


@pytest.mark.parametrize(
    ("state", "answer", "noted"),
    [
        (b"\6\0\0\0\1", "key.der is not enrolled", True),
        (b"\6\0\0\0\1", "key.der is already enrolled", False),
        (b"\6\0\0\0\0", "key.der is not enrolled", False),
    ],
)
def test_secure_boot_is_left_to_a_person_until_the_signing_key_is_enrolled(
    made: Made, state: bytes, answer: str, noted: bool
) -> None:
    made.gpu()
    made.write(SECURE_BOOT, state)
    made.write("/var/lib/dkms/mok.pub", "key")
    made.program("mokutil", f"echo {answer}; exit 1")
    notes = check(made).notes
    assert ("mokutil --import /var/lib/dkms/mok.pub" in notes.get("secure-boot", "")) is noted


def test_nouveau_asks_for_a_reboot(made: Made) -> None:
    made.gpu()
    made.write("/sys/module/nouveau/version", "")
    assert check(made).notes["nouveau"].startswith("reboot: ")
    made.write("/run/systemd/container", "")
    assert check(made).notes == {}


DRIVER = {
    "branch": "580",
    "version": "",
    "names": ["nvidia-*", "libnvidia-*", "libcuda1"],
    "modprobe": "/etc/modprobe.d/opsctl-nouveau.conf",
}
OLD, NEW, NEXT = "580.95.05-1", "580.105.08-1", "590.44.01-1"


def driver(made: Made, **changes: Any) -> Any:
    return made.see("opsctl_see_driver", **{**DRIVER, **changes})


def test_the_newest_driver_of_the_branch_is_taken_where_there_is_none(made: Made) -> None:
    made.available(NEXT, NEW, OLD)
    assert driver(made).facts["install"] == [
        f"nvidia-driver-cuda={NEW}",
        f"nvidia-kernel-open-dkms={NEW}",
    ]


def test_half_a_driver_is_completed_in_the_version_that_it_has(made: Made) -> None:
    made.available(NEXT, NEW, OLD)
    made.packages(nvidia_kernel_open_dkms=OLD)
    assert driver(made).facts["install"] == [f"nvidia-driver-cuda={OLD}"]


def test_what_another_branch_left_behind_comes_along(made: Made) -> None:
    made.available(NEXT, NEW, OLD)
    made.packages(nvidia_driver_cuda=OLD, nvidia_kernel_open_dkms=OLD, libnvidia_ml1=NEXT)
    facts = driver(made).facts
    assert (facts["change"], facts["install"]) == (True, [f"libnvidia-ml1={OLD}"])


def test_packages_that_are_no_driver_stay_out_of_it(made: Made) -> None:
    made.available(NEW)
    made.packages(nvidia_container_toolkit="1.17.8-1", nvidia_cuda_toolkit="11.8.89~11.8.0-5")
    assert driver(made).facts["unheld"] == []


def built(made: Made) -> None:
    made.packages(nvidia_driver_cuda=NEW, nvidia_kernel_open_dkms=NEW)
    made.write(f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko.xz", "")
    made.gpu()


def test_headers_that_a_kernel_lacks_are_a_reason_to_install(made: Made) -> None:
    built(made)
    assert not driver(made).facts["change"]
    made.write("/boot/vmlinuz-6.1.0-99-amd64", "")
    made.program("apt-cache", 'echo " $2 | 6.1.99-1 | here"')
    facts = driver(made).facts
    assert (facts["change"], facts["headers"]) == (True, ["linux-headers-6.1.0-99-amd64"])


def test_another_driver_loaded_than_installed_asks_for_a_reboot(made: Made) -> None:
    built(made)
    made.write("/sys/module/nvidia/version", "580.95.05\n")
    seen = driver(made)
    assert seen.notes == {"reboot": "reboot: driver 580.95.05 is loaded, 580.105.08 is installed."}
    assert not seen.facts["startable"]
    made.write("/sys/module/nvidia/version", "580.105.08\n")
    seen = driver(made)
    assert (seen.notes, seen.facts["startable"]) == ({}, True)


def test_nouveau_keeps_the_persistence_daemon_from_being_started(made: Made) -> None:
    built(made)
    assert driver(made).facts["startable"]
    made.write("/sys/module/nouveau/version", "")
    assert not driver(made).facts["startable"]


def test_a_daemon_that_its_package_starts_without_persistence_gets_it(made: Made) -> None:
    line = "ExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced"
    made.write(
        "/lib/systemd/system/nvidia-persistenced.service",
        f"[Service]\n{line} --no-persistence-mode --verbose\n",
    )
    assert driver(made).facts["persistence_exec"] == f"{line} --verbose"


TUNING: dict[str, Any] = {
    "files": {},
    "units": {},
    "words": [],
    "sysctl": {},
    "registry": "",
    "disable_hmm": False,
    "iommu": "leave",
    "disable_acs": False,
    "power_limit": 0,
    "persistence": True,
    "shm_size": 0,
}
P2P = "ForceP2P=0x11;RMForceP2PType=1"
BRIDGE = "0000:40:01.0"


def tuning(made: Made, **changes: Any) -> Any:
    return made.see("opsctl_see_tuning", **{**TUNING, **changes})


def bridge_with_acs(made: Made, control: int) -> None:
    """A bridge above a GPU: capability list with AER first, ACS second."""
    made.gpu(above=BRIDGE)
    space = bytearray(4096)
    space[0x100:0x104] = (0x0001 | 2 << 16 | 0x148 << 20).to_bytes(4, "little")
    space[0x148:0x14C] = (0x000D | 1 << 16).to_bytes(4, "little")
    space[0x14E:0x150] = control.to_bytes(2, "little")
    place = made.root / "sys/devices/pci0000:40" / BRIDGE
    made.write(f"/{place.relative_to(made.root)}/config", bytes(space))
    made.link(BRIDGE, place)


def test_bridges_that_redirect_peer_to_peer_traffic_are_cleared(made: Made) -> None:
    units = {"opsctl-acs.service": True}
    bridge_with_acs(made, 0x1D)
    assert tuning(made, disable_acs=True, units=units).facts["units_due"] == [*units]
    assert BRIDGE in tuning(made, registry=P2P).notes["force-p2p-acs"]


def test_bridges_that_redirect_nothing_are_left(made: Made) -> None:
    bridge_with_acs(made, 0x01)
    units = {"opsctl-acs.service": True}
    assert tuning(made, disable_acs=True, units=units, registry=P2P).facts["units_due"] == []


def test_a_bridge_that_keeps_redirecting_is_noted_and_not_asked_again(made: Made) -> None:
    units = {"opsctl-acs.service": True}
    bridge_with_acs(made, 0x1D)
    made.write("/etc/systemd/system/opsctl-acs.service", "")
    made.write("/pending.d/gpu_tuning-acs", "")
    seen = tuning(made, disable_acs=True, units=units)
    assert seen.facts["units_due"] == []
    assert "BIOS" in seen.notes["acs"]


@pytest.mark.parametrize(
    ("now", "due"), [("600.00, 150.00, 600.00", True), ("450.00, 150.00, 600.00", False)]
)
def test_a_power_limit_is_set_where_a_gpu_has_another(made: Made, now: str, due: bool) -> None:
    made.program("nvidia-smi", f"echo '450.00, 150.00, 600.00'; echo '{now}'")
    units = {"opsctl-power-limit.service": True}
    facts = tuning(made, power_limit=450, units=units).facts
    assert (facts["problems"], bool(facts["units_due"])) == ([], due)


def test_a_power_limit_that_a_gpu_does_not_take_is_refused(made: Made) -> None:
    made.program("nvidia-smi", "echo '300.00, 150.00, 300.00'")
    (said,) = tuning(made, power_limit=450).facts["problems"]
    assert "150 to 300 W" in said


def test_settings_that_contradict_each_other_are_noted(made: Made) -> None:
    made.gpu()
    made.write(f"/sys/bus/pci/devices/{GPU}/iommu_group/type", "DMA-FQ")
    made.write("/sys/bus/pci/drivers/vfio-pci/0000:05:00.0/vendor", "")
    made.write("/etc/modprobe.d/other.conf", 'options nvidia NVreg_RegistryDwords="a=1"\n')
    notes = tuning(made, registry=P2P, disable_acs=True, power_limit=300, persistence=False).notes
    assert set(notes) == {"force-p2p", "vfio", "registry", "power-limit"}
    made.write(f"/sys/bus/pci/devices/{GPU}/iommu_group/type", "identity")
    assert "force-p2p" not in tuning(made, registry=P2P).notes


def test_a_driver_loaded_without_its_options_asks_for_a_reboot(made: Made) -> None:
    made.write("/proc/driver/nvidia/params", 'RegistryDwords: ""\n')
    made.write("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm", "N\n")
    said = tuning(made, registry=P2P, disable_hmm=True).notes["reboot"]
    assert said.startswith("reboot: ")
    assert "registry keys" in said
    assert "uvm_disable_hmm" in said
    made.write("/proc/driver/nvidia/params", f'RegistryDwords: "{P2P}"\n')
    made.write("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm", "Y\n")
    assert tuning(made, registry=P2P, disable_hmm=True).notes == {}


def test_a_word_that_grubs_menu_lost_is_noted(made: Made) -> None:
    made.program("update-grub", "exit 0")
    made.write("/etc/default/grub.d/opsctl.cfg", "")
    made.write("/boot/grub/grub.cfg", "linux /vmlinuz quiet")
    assert "iommu=pt" in tuning(made, words=["iommu=pt"]).notes["kernel-line"]
    made.write("/boot/grub/grub.cfg", "linux /vmlinuz quiet iommu=pt")
    assert "kernel-line" not in tuning(made, words=["iommu=pt"]).notes


def test_grubs_menu_is_written_again_where_a_run_ended_before_it_was(made: Made) -> None:
    drop_in, menu = "/etc/default/grub.d/opsctl.cfg", "/boot/grub/grub.cfg"
    gone = "/run/opsctl-gpu-tuning-taken-away"

    def stale(**times: int) -> bool:
        for path, time in times.items():
            os.utime(made.root / path, (time, time))
        found: bool = tuning(made).facts["grub_stale"]
        return found

    made.write(menu, "")
    assert not stale()
    made.write(drop_in, "")
    assert stale(**{menu[1:]: 1000, drop_in[1:]: 2000})
    assert not stale(**{menu[1:]: 2000, drop_in[1:]: 1000})

    (made.root / drop_in[1:]).unlink()
    made.write(gone, f"{drop_in} opsctl-shm.service")
    assert stale(**{menu[1:]: 1000, gone[1:]: 2000})
    assert not stale(**{menu[1:]: 2000, gone[1:]: 1000})


@pytest.mark.parametrize(("library", "noted"), [("570.86.10", True), ("590.44.01", False)])
def test_libraries_for_older_drivers_are_reported(made: Made, library: str, noted: bool) -> None:
    made.packages(libcuda1=NEW, cuda_toolkit_13_0="13.0.2-1")
    made.write(f"/usr/local/cuda-13.0/compat/libcuda.so.{library}", "")
    seen = made.see("opsctl_see_toolkit", version="13.0")
    assert ("/usr/local/cuda-13.0/compat" in seen.notes.get("compat", "")) is noted


def test_notes_of_a_role_are_exchanged_and_those_of_others_stay(made: Made) -> None:
    module("opsctl_see_host")
    leave = sys.modules["ansible.module_utils.opsctl_system"].leave_notes
    made.write("/pending.d/gpu_tuning-reboot", "old")
    made.write("/pending.d/nvidia_driver-reboot", "another role's")
    folder = made.root / "pending.d"

    leave(str(folder), "gpu_tuning", {"acs": "see the BIOS"}, check=True)
    assert {file.name for file in folder.iterdir()} == {"gpu_tuning-reboot", "nvidia_driver-reboot"}
    leave(str(folder), "gpu_tuning", {"acs": "see the BIOS"}, check=False)
    assert {file.name for file in folder.iterdir()} == {"gpu_tuning-acs", "nvidia_driver-reboot"}
    assert (folder / "gpu_tuning-acs").read_text() == "see the BIOS\n"
