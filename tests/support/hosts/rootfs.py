"""Root filesystems of test hosts: Debian, built once from the machine's own apt sources.

They lie beside the other things that tests keep, in a folder named by a hash of what is in them.
A host never writes to one: it gets an overlay of its own.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Literal

from filelock import FileLock

from tests.support.hosts import tools
from tests.support.sglang_cpu.environment import UnavailableError

Distribution = Literal["bookworm", "trixie"]

RECIPE = 1
"""Counted up when a root filesystem is made in another way from the same packages."""

INCLUDED = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "python3",
    "python3-apt",
    "python3-debian",
    "python3-venv",
    "pciutils",
    "ca-certificates",
    "openssh-server",
    "iproute2",
    "procps",
    "sudo",
    "gnupg",
    "kmod",
    "initramfs-tools",
    "unattended-upgrades",
    "curl",
)
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
LEFT_OUT = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*")
BUILD_TIMEOUT = 600.0
DISK = 2 * 2**30
FOREIGN = ("etc/apt/sources.list", "etc/apt/apt.conf.d/99mmdebstrap", "etc/hostname")
"""What mmdebstrap leaves of the machine it ran on. A host starts without any apt source."""


def root_filesystem(distribution: Distribution) -> Path:
    """Return the tree of a bare Debian; raises UnavailableError where it cannot be built."""
    tools.require(["mmdebstrap"])
    recipe = repr((RECIPE, distribution, INCLUDED, LEFT_OUT))
    name = f"host-{distribution}-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}"
    folder = tools.cache_root() / name
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            _build(distribution, folder)
    return folder


def _build(distribution: Distribution, folder: Path) -> None:
    free = shutil.disk_usage(folder.parent).free
    if free < DISK:
        raise UnavailableError(f"{folder} needs {DISK >> 30} GiB of disk, {free >> 30} are free")
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    sources = debian_sources(distribution)
    # Its own mount namespace: what mmdebstrap mounts is gone with it, even when it is killed.
    isolated = ["unshare", "--mount", "--propagation", "private", "nice"]
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as options:
        options.write(_acquire_options())
        options.flush()
        tools.checked(
            [
                *isolated,
                *["mmdebstrap", "--mode=root", "--variant=minbase", "--quiet"],
                f"--include={','.join(INCLUDED)}",
                f"--aptopt={options.name}",
                *(f"--dpkgopt=path-exclude={glob}" for glob in LEFT_OUT),
                *[distribution, str(unfinished), "-"],
            ],
            timeout=BUILD_TIMEOUT,
            stdin=sources,
        )
    for name in FOREIGN:
        (unfinished / name).unlink(missing_ok=True)
    unfinished.rename(folder)


def debian_sources(distribution: Distribution) -> str:
    """Return the machine's own Debian sources for another release, as lines for apt.

    Raises UnavailableError where the machine has none, for instance on another distribution.
    """
    listing = ["apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI) $(RELEASE)"]
    found = tools.checked(listing, timeout=60)
    if not found.strip():  # apt names only what it has fetched
        tools.checked(["apt-get", "update", "-qq"], timeout=tools.INSTALL_TIMEOUT)
        found = tools.checked(listing, timeout=60)
    lines = set()
    for line in found.splitlines():
        origin, _, place = line.partition(" ")
        address, _, suite = place.partition(" ")
        if origin == "Debian" and suite:
            _, dash, pocket = suite.partition("-")
            lines.add(f"deb [signed-by={KEYRING}] {address} {distribution}{dash}{pocket} main\n")
    if not lines or not KEYRING.exists():
        raise UnavailableError("this machine's apt has no Debian sources to build a host from")
    return "".join(sorted(lines))


def _acquire_options() -> str:
    """How this machine's apt reaches its sources: proxies, certificates, age of an index."""
    wanted = ("Acquire::http", "Acquire::https", "Acquire::Check-")
    dump = tools.checked(["apt-config", "dump"], timeout=60)
    kept = [line for line in dump.splitlines() if line.startswith(wanted)]
    return "".join(f"{line}\n" for line in kept)


def host_key(root: Path) -> str:
    """Return the public ssh host key that every host made from this tree has."""
    return (root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split(" root@", 1)[0].strip()


def require_rights() -> None:
    """Raise UnavailableError unless this process may make namespaces and mounts."""
    if os.geteuid() != 0:
        raise UnavailableError("a systemd host needs root, for its mounts and namespaces")
    effective = next(
        line.split()[1]
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("CapEff:")
    )
    if not int(effective, 16) & 1 << 21:
        raise UnavailableError("a systemd host needs CAP_SYS_ADMIN, for its mounts and namespaces")
