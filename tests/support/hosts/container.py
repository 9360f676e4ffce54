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
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class _Place:
    """What one host is made in."""

    name: str
    group: Cgroup
    folder: Path
    tree: Path
    ssh_port: int
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)


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
    port = _free_port() if wish.network else SSH_PORT
    place = _Place(name, owned_group(parent, name), folder_of(name), tree, port)
    try:
        host = _start(wish, place)
        host.wait_booted()
        yield host.reachable(port, rootfs.host_key(tree))
    finally:
        take_down(place.group, place.folder)
        for process in place.children:
            process.wait(DOWN_TIMEOUT)
        assert not (left := leftovers(name)), f"left of {name}: {left}"


def _start(wish: Wish, place: _Place) -> Host:
    place.folder.mkdir(mode=0o700)
    keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", place.name, "-f", "identity"]
    subprocess.run(keygen, check=True, cwd=place.folder)
    machine, visitors = place.group.create("machine"), place.group.create("visitors")
    with (place.folder / "console").open("wb") as console:
        leader = subprocess.Popen(
            inside(machine, _boot_command(wish, place)),
            stdin=subprocess.PIPE,
            stdout=console,
            stderr=console,
        )
    place.children.append(leader)
    assert leader.stdin is not None
    with contextlib.suppress(BrokenPipeError), leader.stdin:
        leader.stdin.write(archive({**_own_files(wish, place), **wish.files}))
    return Host(place.name, leader, machine, visitors, place.folder, wish.network, place.children)


def _boot_command(wish: Wish, place: _Place) -> list[str]:
    spaces = ["--mount", "--propagation", "private", *([] if wish.network else ["--net"])]
    loopback = "no" if wish.network else "yes"
    binding = [f"--bind-ro={source}:{target}" for target, source in wish.binds.items()]
    script = ["sh", str(BOOT), place.name, str(place.tree), loopback]
    return ["unshare", *spaces, *script, *binding]


def _own_files(wish: Wish, place: _Place) -> dict[str, bytes]:
    name, listen = place.name, f"ListenAddress 127.0.0.1:{place.ssh_port}\n"
    found = {
        "/etc/hostname": f"{name}\n".encode(),
        "/etc/hosts": f"127.0.0.1 localhost\n127.0.1.1 {name}\n".encode(),
        # Its own number: without one systemd takes this for the first boot of an image.
        "/etc/machine-id": f"{uuid.uuid4().hex}\n".encode(),
        "/root/.ssh/authorized_keys": (place.folder / "identity.pub").read_bytes(),
        "/etc/ssh/sshd_config.d/tests.conf": listen.encode(),
    }
    if wish.network:  # what it takes to find one's way on this machine's network
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
