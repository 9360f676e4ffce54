"""A running host, as a test uses it."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL

from opsctl.system.cgroup import Cgroup

BOOT_TIMEOUT = 120.0
RUN_TIMEOUT = 120.0
POLL = 0.03
PROXY = "/lib/systemd/systemd-socket-proxyd"
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}
SSH_PORT = 22
_FIRST = re.compile(r"^NSpid:\t\d+\t1$", re.MULTILINE)


class BootError(AssertionError):
    """A host did not come up; the text has its failed units or the end of its console."""


@dataclass
class Host:
    """One booted systemd host, root on it, and its ways in.

    `run`, `read` and `write` enter its namespaces directly: root with every capability. `ssh`
    comes in as a user would, with what sshd and the container leave. The ports of `forward` and
    `ssh_port` are on this machine's loopback.
    """

    name: str
    leader: subprocess.Popen[bytes]
    machine: Cgroup
    """What belongs to the host itself."""
    visitors: Cgroup
    """What came in from outside: commands of `run`, proxies."""
    folder: Path
    network: bool
    children: list[subprocess.Popen[bytes]]
    """Processes of this one that end with the host."""
    address: str = "127.0.0.1"
    ssh_port: int = 0
    _forwards: dict[int, int] = field(default_factory=dict)
    _init: int = 0

    @property
    def identity_file(self) -> Path:
        """Private key that root on the host accepts."""
        return self.folder / "identity"

    @property
    def known_hosts(self) -> Path:
        """File with the host's key, for `UserKnownHostsFile`."""
        return self.folder / "known_hosts"

    @property
    def root(self) -> Path:
        """The host's files as seen from outside, without its /run, /tmp, /proc and /sys.

        An absolute link in it leads to this machine's files: follow links with `read`.
        """
        return Path(f"/proc/{self.leader.pid}/root/run/opsctl-host/root")

    @property
    def init(self) -> int:
        """The pid, on this machine, of the host's first process; 0 while it has none."""
        if not _is_init(self._init):
            self._init = next(filter(_is_init, self.machine.pids()), 0)
        return self._init

    @property
    def enter(self) -> list[str]:
        """Prefix of a command that is to run on the host, as root with every capability."""
        kinds = ["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]
        return ["nsenter", f"--target={self.init}", *kinds, "--"]

    def run(
        self,
        argv: Sequence[str],
        *,
        check: bool = True,
        stdin: str = "",
        timeout: float = RUN_TIMEOUT,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the host. With `check` a failure is an AssertionError that says why."""
        done = subprocess.run(
            inside(self.visitors, [*self.enter, *argv]),
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            env=ENVIRONMENT,
        )
        assert done.returncode == 0 or not check, (
            f"{self.name}: {' '.join(argv)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done

    @property
    def ssh_command(self) -> list[str]:
        """Prefix of a shell command that is to run on the host as a user would run it."""
        options = ["-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={self.known_hosts}"]
        login = ["-i", str(self.identity_file), "-p", str(self.ssh_port), f"root@{self.address}"]
        return ["ssh", *options, *login]

    def ssh(
        self, command: str, *, timeout: float = RUN_TIMEOUT
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command over ssh; the caller looks at the exit status."""
        return subprocess.run(
            [*self.ssh_command, command],
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            stdin=DEVNULL,
        )

    def read(self, path: str) -> bytes:
        """Return what a file on the host holds; an AssertionError when it cannot be read."""
        done = subprocess.run([*self.enter, "cat", path], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def write(self, path: str, content: bytes | str, *, mode: int = 0o644) -> None:
        """Put a file on the host, with the folders above it."""
        data = content.encode() if isinstance(content, str) else content
        script = 'mkdir -p "$(dirname "$1")" && cat >"$1" && chmod "$2" "$1"'
        argv = [*self.enter, "sh", "-c", script, "sh", path, f"{mode:o}"]
        done = subprocess.run(argv, input=data, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()

    def forward(self, port: int) -> int:
        """Return a port of this machine's loopback behind which `port` of the host's is."""
        if self.network:
            return port
        if port not in self._forwards:
            self._forwards[port] = self._proxy(port)
        return self._forwards[port]

    def inventory(self, name: str = "host") -> dict[str, object]:
        """Return an Ansible inventory with this host in it."""
        connection = {
            "ansible_connection": "ssh",
            "ansible_host": self.address,
            "ansible_port": self.ssh_port,
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(self.identity_file),
            "ansible_ssh_common_args": f"-o UserKnownHostsFile={self.known_hosts}",
            "ansible_python_interpreter": "/usr/bin/python3",
        }
        return {"all": {"hosts": {name: connection}}}

    def configuration(self) -> dict[str, object]:
        """Return this host as an entry of `provision.hosts` in opsctl's configuration."""
        return {
            "address": self.address,
            "port": self.ssh_port,
            "identity_file": str(self.identity_file),
            "known_hosts": str(self.known_hosts),
        }

    def reboot(self) -> None:
        """Reboot and wait until the host is up again."""
        before = self.init
        self.run(["systemctl", "reboot"], check=False)
        self.wait_booted(unlike=before)

    def wait_booted(self, *, unlike: int = 0, timeout: float = BOOT_TIMEOUT) -> None:
        """Wait until systemd says `running`; raises BootError with what failed instead.

        After a reboot `unlike` is the pid that the first process had.
        """
        self._until(lambda: self.init not in {0, unlike}, timeout, "no first process")
        # The bus comes first; before it systemctl cannot ask.
        self._until(lambda: self._state() not in {"", "offline", "unknown"}, timeout, "no systemd")
        state = self.run(
            ["systemctl", "is-system-running", "--wait"], check=False, timeout=timeout
        ).stdout.strip()
        if state != "running":
            failed = self.run(["systemctl", "--failed", "--plain", "--no-legend"], check=False)
            raise BootError(f"{self.name} is {state}: {failed.stdout}{self.console()}")

    def console(self) -> str:
        """Return the end of what the host wrote on its console."""
        text = (self.folder / "console").read_text(errors="replace")
        return text[-4000:]

    def reachable(self, port: int, host_key: str) -> Host:
        """Make the host's ssh, which listens on `port` there, reachable from this machine."""
        self.ssh_port = self.forward(port)
        self.known_hosts.write_text(f"[{self.address}]:{self.ssh_port} {host_key}\n")
        return self

    def _state(self) -> str:
        return self.run(["systemctl", "is-system-running"], check=False).stdout.strip()

    def _until(self, true: Callable[[], bool], timeout: float, otherwise: str) -> None:
        deadline = time.monotonic() + timeout
        while not true():
            if self.leader.poll() is not None:
                raise BootError(f"{self.name} ended: {self.leader.returncode}\n{self.console()}")
            if time.monotonic() > deadline:
                raise BootError(f"{self.name}: {otherwise} in {timeout:.0f} s\n{self.console()}")
            time.sleep(POLL)

    def _proxy(self, port: int) -> int:
        """Start, in the host's network, systemd's own proxy on a socket of this machine's."""
        # It takes the socket as descriptor 3, as systemd would hand it over.
        script = 'exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"'
        # Of the first process: the leader may still be on its way into the host's network.
        assert self.init, f"{self.name} has not booted"
        net = ["nsenter", f"--net=/proc/{self.init}/ns/net", "--"]
        proxy = [*net, PROXY, f"127.0.0.1:{port}"]
        with socket.create_server((self.address, 0)) as listener:
            process = subprocess.Popen(
                inside(self.visitors, ["sh", "-c", script, "sh", *proxy]),
                env=ENVIRONMENT,
                stdin=listener.fileno(),
                stdout=DEVNULL,
                stderr=DEVNULL,
            )
            self.children.append(process)
            return int(listener.getsockname()[1])


def inside(cgroup: Cgroup, argv: Sequence[str]) -> list[str]:
    """Return a command that enters a cgroup, then becomes `argv`."""
    script = 'echo $$ >"$0/cgroup.procs" && exec "$@"'
    return ["sh", "-c", script, str(cgroup.path), *argv]


def _is_init(pid: int) -> bool:
    """Whether a process is the first of a process namespace below this one."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    # Before it becomes systemd it is a part of nspawn.
    return status.startswith("Name:\tsystemd\n") and bool(_FIRST.search(status))
