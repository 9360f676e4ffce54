"""What opsctl's modules read of a host: system, kernels, GPUs, packages. Standard library only.

Also read by Python 3.10, which Ubuntu 22.04 has.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.opsctl_host import note

NVIDIA = "0x10de"
DISPLAY_CLASS = "0x03"  # VGA and 3D controllers; a GPU's audio function is 0x04


class Ran(NamedTuple):
    """How a command ended. A missing program is code 127, one that took too long is 124."""

    code: int
    out: str


class Gpu(NamedTuple):
    """An NVIDIA display device: its PCI address and device id."""

    address: str
    device: int


@dataclass(frozen=True)
class Seen:
    """What a module saw: facts for the tasks after it, and what a person must do, by name."""

    facts: dict[str, Any]
    notes: dict[str, str] = field(default_factory=dict)


@dataclass
class Host:
    """A host, read through its file system and its commands; `root` is for tests."""

    root: Path = Path("/")
    environment: dict[str, str] = field(
        default_factory=lambda: {
            **os.environ,
            "LC_ALL": "C",
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        }
    )

    def path(self, path: str | Path) -> Path:
        """Where an absolute path of the host is."""
        return self.root / str(path).lstrip("/")

    def read(self, path: str | Path) -> str:
        """The text of a file without white space around it; empty when it cannot be read."""
        try:
            return self.path(path).read_text(errors="replace").strip()
        except OSError:
            return ""

    def run(self, *argv: str, timeout: float = 60) -> Ran:
        """Run a command that changes nothing; its two streams come as one text."""
        try:
            done = subprocess.run(
                argv,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self.environment,
                timeout=timeout,
                check=False,
                text=True,
                errors="replace",
            )
        except FileNotFoundError:
            return Ran(127, argv[0] + ": not found")
        except subprocess.TimeoutExpired:
            return Ran(124, argv[0] + ": no answer within " + str(int(timeout)) + " s")
        return Ran(done.returncode, done.stdout.strip())

    def has(self, program: str) -> bool:
        """Whether a program is on the system's path."""
        folders = self.environment["PATH"].split(":")
        return any(os.access(self.path(folder) / program, os.X_OK) for folder in folders)

    def release(self) -> tuple[str, str]:
        """Distribution and its version, as in `("debian", "12")`."""
        lines = self.read("/etc/os-release").splitlines()
        pairs = dict(line.split("=", 1) for line in lines if "=" in line)
        return pairs.get("ID", "").strip('"'), pairs.get("VERSION_ID", "").strip('"')

    def container(self) -> bool:
        """Whether this is a container: its kernel, modules and kernel line are another host's."""
        return any(self.path(sign).exists() for sign in ("/run/systemd/container", "/.dockerenv"))

    def gpus(self) -> list[Gpu]:
        """NVIDIA GPUs on PCI, with or without a driver."""
        found = []
        for device in sorted(self.path("/sys/bus/pci/devices").glob("*")):
            name = "/sys/bus/pci/devices/" + device.name
            if self.read(name + "/vendor") != NVIDIA:
                continue
            if self.read(name + "/class").startswith(DISPLAY_CLASS):
                found.append(Gpu(device.name, int(self.read(name + "/device") or "0", 16)))
        return found

    def running_kernel(self) -> str:
        """Release of the running kernel; empty in a container, whose kernel is not its own."""
        return "" if self.container() else platform.release()

    def kernels(self) -> list[str]:
        """Kernels that can boot or run, oldest first.

        Folders that DKMS leaves behind below /lib/modules when a kernel is removed do not count.
        """
        images = self.path("/boot").glob("vmlinuz-*")
        found = {image.name.removeprefix("vmlinuz-") for image in images}
        found |= {tree.parent.name for tree in self.path("/lib/modules").glob("*/kernel")}
        found |= {self.running_kernel()} - {""}
        return sorted(found, key=natural)

    def headers(self, kernel: str) -> bool:
        """Whether modules can be built for a kernel."""
        return self.path("/lib/modules/" + kernel + "/build").exists()

    def installed(self) -> dict[str, str]:
        """Installed packages and their versions."""
        ran = self.run("dpkg-query", "-W", "-f=${db:Status-Abbrev}\t${Package}\t${Version}\n")
        rows = (line.split("\t") for line in ran.out.splitlines() if line[1:2] == "i")
        return {row[1]: row[2] for row in rows if len(row) == 3}

    def available(self, package: str) -> list[str]:
        """Versions of a package that apt could install now, newest first."""
        rows = (
            line.split("|") for line in self.run("apt-cache", "madison", package).out.splitlines()
        )
        return list(dict.fromkeys(row[1].strip() for row in rows if len(row) == 3))


def natural(text: str) -> list[tuple[int, str]]:
    """A key that sorts versions as people read them: 6.1.0-9 before 6.1.0-13."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]


def leave_notes(folder: str, role: str, notes: dict[str, str], *, check: bool) -> None:
    """Make the folder say of a role just `notes`: what a person must do, one line each."""
    there = {file.name for file in Path(folder).glob(role + "-*")}
    wanted = {role + "-" + name: text for name, text in notes.items()}
    for name in sorted(there | set(wanted)):
        note(folder + "/" + name, wanted.get(name, ""), check=check)


def answer(role: str, options: dict[str, Any], see: Callable[[Host, dict[str, Any]], Seen]) -> None:
    """Be the module: read its options, look, leave the notes, answer with what was seen."""
    options = {
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        "pending": {"type": "path", "required": True},
        **options,
    }
    module = AnsibleModule(options, supports_check_mode=True)
    seen = see(Host(), module.params)
    leave_notes(module.params["pending"], role, seen.notes, check=module.check_mode)
    module.exit_json(changed=False, **seen.facts)
