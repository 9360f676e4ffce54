"""Real processes that look to a census like holders of GPU memory, and a guard that none survives.

    with Holders(tmp_path, fake) as holders:
        orphan = holders.start("sglang::scheduler_TP0", gpus=[0], nonce="...", ignore_term=True)

Each is double-forked into a session of its own, so that its parent is gone, and has then become
`sleep` under another title, which wipes its name and (without a nonce) its environment, as
setproctitle does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from opsctl.gpu import processes, survey
from opsctl.gpu.model import HostProcess
from opsctl.system import pidfd, procfs
from tests.support.fake_nvml import GIB, FakeNvml

_START = """
import json, os, signal, socket, sys

def become(spec, report):
    if spec["leader"]:
        os.setpgid(0, 0)
    if spec["uid"]:
        os.setgroups([]); os.setgid(spec["uid"]); os.setuid(spec["uid"])
    family = []
    for child in spec["children"]:
        reader, writer = os.pipe()
        if os.fork() == 0:
            become(child, writer)
        os.close(writer)
        family += json.loads(os.fdopen(reader).read())
    for path in spec["files"]:
        os.set_inheritable(os.open(path, os.O_RDWR | os.O_CREAT), True)
    if spec["cgroup"]:
        open(spec["cgroup"] + "/cgroup.procs", "w").write(str(os.getpid()))
    ports = []
    if spec["port"]:
        server = socket.socket(); server.bind(("127.0.0.1", 0)); server.listen()
        server.set_inheritable(True); ports.append(server.getsockname()[1])
    if spec["socket"]:
        local = socket.socket(socket.AF_UNIX); local.bind(spec["socket"]); local.listen()
        local.set_inheritable(True)
    if spec["ignore_term"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(report, json.dumps([[os.getpid(), ports], *family]).encode())
    os.close(report)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    if spec["dies"]:
        os._exit(0)
    os.execve("/bin/sleep", [spec["title"], "600"], spec["environment"])

spec = json.loads(sys.argv[1])
if os.fork():
    os.wait(); os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
os.setsid()
become(spec, os.dup(1))
"""


@dataclass(frozen=True)
class Started:
    """A process of the test's own."""

    pid: int
    start_time: int
    ports: tuple[int, ...] = ()

    @property
    def state(self) -> str:
        """Its state letter; `gone` when the process is no more."""
        entry = procfs.stat(self.pid)
        return entry.state if entry and entry.start_time == self.start_time else "gone"

    @property
    def alive(self) -> bool:
        return self.state not in {"gone", "Z", "X"}


class Holders:
    """Starts processes with device files below `folder`, and ends them, by number, at the end."""

    def __init__(self, folder: Path, fake: FakeNvml) -> None:
        self.fake = fake
        self._devices = folder / "dev"
        self._devices.mkdir(exist_ok=True)
        self._devices.chmod(0o777)
        self.started: list[Started] = []

    @property
    def device_prefix(self) -> str:
        """What stands for /dev/nvidia."""
        return str(self._devices / "nvidia")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.started:
            pidfd.signal_process(one.pid, one.start_time, signal.SIGKILL)

    def spec(
        self,
        title: str,
        *,
        gpus: Sequence[int] = (),
        nonce: str | None = None,
        port: bool = False,
        files: Sequence[Path] = (),
        socket: Path | None = None,
        ignore_term: bool = False,
        uid: int = 0,
        cgroup: Path | None = None,
        dies: bool = False,
        leader: bool = False,
        environment: dict[str, str] | None = None,
        children: Sequence[dict[str, object]] = (),
    ) -> dict[str, object]:
        """What a process is to be; `children` are specs too."""
        devices = [Path(f"{self.device_prefix}{number}") for number in gpus]
        for device in devices:
            device.touch()
            device.chmod(0o666)
        return {
            "title": title,
            "gpus": list(gpus),
            "files": [str(path) for path in (*devices, *files)],
            "environment": {**(environment or {}), **({"OPSCTL_NONCE": nonce} if nonce else {})},
            "port": port,
            "socket": str(socket) if socket else None,
            "ignore_term": ignore_term,
            "uid": uid,
            "cgroup": str(cgroup) if cgroup else None,
            "dies": dies,
            "leader": leader,
            "children": list(children),
        }

    def start(self, title: str, **wishes: object) -> Started:
        """Start one process and let the fake NVML list it on its GPUs."""
        return self.family(self.spec(title, **wishes))[0]  # type: ignore[arg-type]

    def family(self, spec: dict[str, object]) -> list[Started]:
        """Start a process with its children; itself first."""
        done = subprocess.run(
            [sys.executable, "-c", _START, json.dumps(spec)],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        assert done.stdout, done.stderr
        found = []
        for (pid, ports), one in zip(json.loads(done.stdout), _flat(spec), strict=True):
            entry = procfs.stat(pid)
            assert entry is not None
            found.append(Started(pid, entry.start_time, tuple(ports)))
            self.started.append(found[-1])
            if not one["dies"]:
                wait_until(lambda pid=pid: _has_become_sleep(pid))  # type: ignore[misc]
            if one["gpus"]:
                self.fake.set_process(pid, gpus=one["gpus"], memory=GIB)  # type: ignore[arg-type]
        return found


def _flat(spec: dict[str, object]) -> list[dict[str, object]]:
    children: list[dict[str, object]] = spec["children"]  # type: ignore[assignment]
    return [spec, *(one for child in children for one in _flat(child))]


def _has_become_sleep(pid: int) -> bool:
    entry = procfs.stat(pid)
    return entry is None or entry.comm == "sleep"


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for a condition; fails when it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not come true in time"
        time.sleep(0.02)


def record_engine(
    state_dir: Path, main: Started, nonce: str, *, supervisor: int, cgroup: Path | None = None
) -> None:
    """Write the state file that `opsctl serve` leaves behind."""
    state_dir.mkdir(parents=True, exist_ok=True)
    identity = {
        "nonce": nonce,
        "pid": main.pid,
        "start_time": main.start_time,
        "session": os.getsid(main.pid) if main.alive else main.pid,
        "cgroup": str(cgroup) if cgroup else None,
        "boot_id": procfs.boot_id(),
    }
    document = {
        "schema": "opsctl/state/v1",
        "boot_id": procfs.boot_id(),
        "pid": supervisor,
        "engine": {"identity": json.dumps(identity), "profile": "p", "port": 1, "ready": True},
    }
    (state_dir / "state.json").write_text(json.dumps(document))


_READ = processes.read


def look_only_at(pids: Iterable[int], device_prefix: str) -> None:
    """Let this process's censuses see the test's own processes and no others of the host.

    What a developer has running, or another test, must not be ended by this one.
    """
    own = frozenset(pids)

    def read(listed: Iterable[int] | None = None, **_: object) -> dict[int, HostProcess]:
        found = _READ(listed, device_prefix=device_prefix)
        wanted = own | procfs.ancestors(os.getpid()) | {1}
        return {
            pid: process
            for pid, process in found.items()
            if pid in wanted or procfs.ancestors(pid) & own
        }

    survey.processes.read = read  # type: ignore[assignment]


_OPSCTL = """
import json, sys
from tests.support.gpu_holders import look_only_at
look_only_at(json.loads(sys.argv.pop(1)), sys.argv.pop(1))
from opsctl.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


def opsctl_argv(holders: Holders, *words: str) -> list[str]:
    """A command line of opsctl that sees the test's processes and device files only."""
    seen = json.dumps([one.pid for one in holders.started])
    return [sys.executable, "-c", _OPSCTL, seen, holders.device_prefix, *words]
