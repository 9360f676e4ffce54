"""TCP ports of this host: which are free, and who listens on the others."""

from __future__ import annotations

import errno
import pwd
import random
import socket
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from opsctl.system import procfs

_LISTEN = "0A"


@dataclass(frozen=True)
class Listener:
    """A listening TCP socket; `pid` is None when its owner's descriptors may not be read."""

    port: int
    address: str
    uid: int
    inode: int
    pid: int | None = None
    title: str | None = None

    def __str__(self) -> str:
        owner = f"pid {self.pid} ({self.title})" if self.pid else "a process that cannot be seen"
        return f"port {self.port} is held by {owner} of user {_user(self.uid)}"


def is_free(port: int, hosts: Iterable[str] = ("127.0.0.1",)) -> bool:
    """Whether a server could listen there, tried the way uvicorn does it (SO_REUSEADDR)."""
    return all(_can_bind(host, port) for host in hosts)


def free_port(host: str = "127.0.0.1") -> int:
    """A port that was free a moment ago, outside the range of outgoing connections if possible.

    An engine binds its port minutes after it was chosen; a port of the ephemeral range may by
    then belong to any client socket of the host.
    """
    candidates = list(_quiet_ports())
    random.shuffle(candidates)
    for port in candidates[:200]:
        if _can_bind(host, port):
            return port
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def listeners(ports: Iterable[int]) -> tuple[Listener, ...]:
    """Who listens on any of `ports`, with process and title where they can be read."""
    wanted = frozenset(ports)
    found = [entry for entry in _sockets() if entry.port in wanted]
    owners = _owners({entry.inode for entry in found})
    return tuple(
        replace(entry, pid=owners[entry.inode], title=procfs.title(owners[entry.inode]))
        if entry.inode in owners
        else entry
        for entry in found
    )


def by_inode() -> dict[int, int]:
    """Port of every listening TCP socket, by the inode its owner's descriptor names."""
    return {entry.inode: entry.port for entry in _sockets()}


def parse_listeners(text: str) -> Iterator[Listener]:
    """Listening sockets out of the text of /proc/net/tcp or tcp6."""
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN:
            address, _, port = fields[1].partition(":")
            yield Listener(int(port, 16), address, int(fields[7]), int(fields[9]))


def _sockets() -> Iterator[Listener]:
    for name in ("tcp", "tcp6"):
        try:
            text = (procfs.PROC / "net" / name).read_text()
        except OSError:
            continue
        yield from parse_listeners(text)


def _owners(inodes: Collection[int]) -> dict[int, int]:
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    owners: dict[int, int] = {}
    for pid in procfs.pids() if wanted else ():
        for link in procfs.descriptors(pid):
            try:
                inode = wanted.get(str(link.readlink()))
            except OSError:
                continue
            if inode is not None:
                owners.setdefault(inode, pid)
    return owners


def _quiet_ports() -> range:
    """Unprivileged ports the kernel does not hand to outgoing connections."""
    try:
        low, high = (procfs.PROC / "sys/net/ipv4/ip_local_port_range").read_text().split()
    except (OSError, ValueError):
        return range(0)
    below, above = range(10000, int(low)), range(int(high) + 1, 65536)
    return max(below, above, key=len)


def _can_bind(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            return error.errno in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
    return True


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
