"""A fake /proc, /sys and /usr/local of the reference host."""

from __future__ import annotations

from pathlib import Path

from opsctl.doctor.sources import Sources
from tests.support.doctor.healthy import OPEN

GPUS = tuple(f"0000:{0x11 + 0x10 * number:02x}:00.0" for number in range(8))
PORTS = tuple(f"0000:{0x10 + 0x10 * number:02x}:01.0" for number in range(8))

PROC = {
    "driver/nvidia/version": OPEN,
    "driver/nvidia/params": 'RegistryDwords: "ForceP2P=0x11"\n',
    "cmdline": "ro iommu=pt pcie_aspm=off\n",
    "meminfo": "MemTotal: 1056000000 kB\nMemAvailable: 1000000000 kB\n"
    "HugePages_Total: 0\nHugepagesize: 2048 kB\n",
    "sys/kernel/numa_balancing": "0\n",
    "sys/vm/swappiness": "10\n",
    "sys/kernel/yama/ptrace_scope": "1\n",
    "self/status": "Name:\tx\nSeccomp:\t0\n",
    "self/cgroup": "0::/system.slice/x.service\n",
    "self/mountinfo": "22 1 254:0 / / rw - ext4 /dev/vda rw\n",
    "self/limits": "Max open files  1048576 1048576 files\n"
    "Max locked memory  unlimited unlimited bytes\n",
}
SYS = {
    "module/pcie_aspm/parameters/policy": "[default] performance\n",
    "module/nvidia_uvm/parameters/uvm_disable_hmm": "N\n",
    "kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
    "devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance\n",
}


def acs_space(control: int) -> bytes:
    """The configuration space of a bridge whose first extended capability is ACS."""
    content = bytearray(4096)
    content[0x100:0x104] = (0x000D | 1 << 16).to_bytes(4, "little")
    content[0x106:0x108] = control.to_bytes(2, "little")
    return bytes(content)


class Tree:
    """The trees below `root`; every file can be changed before the doctor looks."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.shm = root / "shm"
        self.shm.mkdir(parents=True)
        for folder, files in (("proc", PROC), ("sys", SYS)):
            for name, content in files.items():
                self.put(f"{folder}/{name}", content)
        for number, (gpu, port) in enumerate(zip(GPUS, PORTS, strict=True)):
            self._add(number, gpu, port)

    def _add(self, number: int, gpu: str, port: str) -> None:
        """A GPU below a root port, with the link that /sys/bus/pci keeps."""
        bridge = f"sys/devices/pci0000:{number:02x}/{port}"
        files = {
            "vendor": "0x10de\n",
            "class": "0x030200\n",
            "numa_node": f"{number // 4}\n",
            "aer_dev_fatal": "TLP 0\nTOTAL_ERR_FATAL 0\n",
            "aer_dev_nonfatal": "TLP 0\nTOTAL_ERR_NONFATAL 0\n",
            "aer_dev_correctable": "RxErr 0\nTOTAL_ERR_COR 0\n",
        }
        for name, content in files.items():
            self.put(f"{bridge}/{gpu}/{name}", content)
        self.put(f"{bridge}/class", "0x060400\n")
        self.put(f"{bridge}/vendor", "0x8086\n")
        self.put(f"{bridge}/config", acs_space(0))
        self.put(f"sys/kernel/iommu_groups/{number}/type", "identity\n")
        group = self.root / f"{bridge}/{gpu}/iommu_group"
        group.symlink_to(self.root / f"sys/kernel/iommu_groups/{number}")
        for name in (gpu, port):
            link = self.root / "sys/bus/pci/devices" / name
            link.parent.mkdir(parents=True, exist_ok=True)
            target = f"{bridge}/{gpu}" if name == gpu else bridge
            link.symlink_to(self.root / target)

    def device(self, number: int) -> str:
        """Where the files of a GPU lie."""
        return f"sys/devices/pci0000:{number:02x}/{PORTS[number]}/{GPUS[number]}"

    def put(self, name: str, content: str | bytes) -> None:
        """Write a file."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    def remove(self, name: str) -> None:
        """Take a file away."""
        (self.root / name).unlink()

    def sources(self, **more: object) -> Sources:
        """What the doctor is given to look at."""
        values: dict[str, object] = {
            "proc": self.root / "proc",
            "sys": self.root / "sys",
            "shm": self.shm,
            "local": self.root / "local",
            "loader_cache": lambda: "",
            "environment": {"PATH": str(self.root / "bin"), "HOME": str(self.root)},
            "xids": lambda: (),
        }
        return Sources(**(values | more))  # type: ignore[arg-type]
