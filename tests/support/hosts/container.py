"""From a root filesystem to a booted host.

Everything of a host is in one cgroup and in a mount namespace of its own, so that killing the
cgroup takes the processes, and with the last of them the mounts, whatever the test has done.
"""

from __future__ import annotations

import contextlib
import io
import socket
import subprocess
import tarfile
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from opsctl.system.cgroup import Cgroup, writable_parent
from tests.support.hosts import rootfs, tools
from tests.support.hosts.host import SSH_PORT, Host, inside
from tests.support.hosts.rootfs import Distribution
from tests.support.hosts.teardown import (
    DOWN_TIMEOUT,
    NAME,
    folder_of,
    leftovers,
    owned_group,
    sweep,
    take_down,
)
from tests.support.sglang_cpu.environment import UnavailableError

BOOT = Path(__file__).with_name("boot.sh")
PROGRAMS = ("systemd-nspawn", "mmdebstrap", "ssh-keygen", "ip", "nsenter")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
RESOLVER = Path("/etc/resolv.conf")


@dataclass(frozen=True)
class Wish:
    """What a host shall be; see `systemd_host`."""

    distribution: Distribution
    files: Mapping[str, bytes]
    binds: Mapping[str, Path]
    network: bool


@contextlib.contextmanager
def booted(wish: Wish) -> Iterator[Host]:
    """Boot a host and take it down at the end; raises UnavailableError where that cannot be.

    AssertionError when something of it is left afterwards.
    """
    rootfs.require_rights()
    tools.require(PROGRAMS)
    tree = rootfs.root_filesystem(wish.distribution)
    parent = writable_parent()
    if parent is None:
        raise UnavailableError("a systemd host needs a cgroup2 tree that can be written to")
    sweep(parent)
    name = f"{NAME}-{uuid.uuid4().hex[:12]}"
    group = owned_group(parent, name)
    folder = folder_of(name)
    folder.mkdir(mode=0o700)
    children: list[subprocess.Popen[bytes]] = []
    try:
        host = _start(name, wish, tree, group, children)
        host.wait_booted()
        yield host
    finally:
        take_down(group, folder)
        for process in children:
            process.wait(DOWN_TIMEOUT)
        assert not (left := leftovers(name)), f"left of {name}: {left}"


def _start(
    name: str, wish: Wish, tree: Path, group: Cgroup, children: list[subprocess.Popen[bytes]]
) -> Host:
    folder = folder_of(name)
    keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", "identity"]
    subprocess.run(keygen, check=True, cwd=folder)
    port = _free_port() if wish.network else SSH_PORT
    machine, visitors = group.create("machine"), group.create("visitors")
    with (folder / "console").open("wb") as console:
        leader = subprocess.Popen(
            inside(machine, _boot_command(name, wish, tree)),
            stdin=subprocess.PIPE,
            stdout=console,
            stderr=console,
        )
    children.append(leader)
    host = Host(name, leader, machine, visitors, folder, wish.network, children)
    assert leader.stdin is not None
    with contextlib.suppress(BrokenPipeError), leader.stdin:
        leader.stdin.write(archive({**_own_files(name, port, network=wish.network), **wish.files}))
    return host.reachable(port, rootfs.host_key(tree))


def _boot_command(name: str, wish: Wish, tree: Path) -> list[str]:
    spaces = ["--mount", "--propagation", "private", *([] if wish.network else ["--net"])]
    loopback = "no" if wish.network else "yes"
    binding = [f"--bind-ro={source}:{target}" for target, source in wish.binds.items()]
    return ["unshare", *spaces, "sh", str(BOOT), name, str(tree), loopback, *binding]


def _own_files(name: str, port: int, *, network: bool) -> dict[str, bytes]:
    found = {
        "/etc/hostname": f"{name}\n".encode(),
        "/etc/hosts": f"127.0.0.1 localhost\n127.0.1.1 {name}\n".encode(),
        # Its own number: without one systemd takes this for the first boot of an image.
        "/etc/machine-id": f"{uuid.uuid4().hex}\n".encode(),
        "/root/.ssh/authorized_keys": (folder_of(name) / "identity.pub").read_bytes(),
        "/etc/ssh/sshd_config.d/tests.conf": f"ListenAddress 127.0.0.1:{port}\n".encode(),
    }
    if network:  # what it takes to find one's way on this machine's network
        found["/etc/resolv.conf"] = RESOLVER.read_bytes()
        if CERTIFICATES.exists():
            found[str(CERTIFICATES)] = CERTIFICATES.read_bytes()
    return found


def archive(files: Mapping[str, bytes]) -> bytes:
    """Return a tar of files by absolute path, owned by root; scripts and programs can be run."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size = len(content)
            entry.mode = 0o755 if content.startswith((b"#!", b"\x7fELF")) else 0o644
            entry.mtime = int(time.time())
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
