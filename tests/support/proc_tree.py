"""Processes as values, and a /proc tree in files for states that no test can bring about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from opsctl.gpu.model import Gpu, GpuUse, HostProcess, KnownEngine, Snapshot

GIB = 1 << 30
MIB = 1 << 20
ALL_DEVICES = frozenset({"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1"})
NONCE = "3f" * 16
INIT = HostProcess(1, 1, "S", 0, 1, 1, "systemd", "/sbin/init", uid=0, user="root")


def process(pid: int, title: str = "python train.py", **changes: object) -> HostProcess:
    """A process below init in a session of its own that has no device open."""
    plain = HostProcess(
        pid=pid,
        start_time=pid * 10,
        state="S",
        ppid=1,
        session=pid,
        group=pid,
        comm=title.partition(" ")[0].rpartition("/")[2][:15],
        title=title,
        uid=1000,
        user="alice",
        devices=frozenset(),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def engine(pid: int = 1000, *, alive: bool = True, **changes: object) -> KnownEngine:
    """A recorded engine whose main process is `pid`."""
    known = KnownEngine(
        nonce=NONCE,
        pid=pid,
        start_time=pid * 10,
        session=pid,
        cgroup=None,
        alive=alive,
        where="/var/lib/opsctl",
        gone="" if alive else "its supervisor (pid 4711)",
        main_alive=alive,
    )
    return replace(known, **changes)  # type: ignore[arg-type]


def gpu(index: int = 0, *, used: int = 0, **changes: object) -> Gpu:
    """One board of 95 GiB that is healthy."""
    plain = Gpu(
        index=index,
        uuid=f"GPU-{index}",
        name="NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        compute_capability=(12, 0),
        memory_total=95 * GIB,
        memory_used=used,
        memory_reserved=600 * MIB,
        bus_id=f"00000000:{0x11 + index:02X}:00.0",
        minor=index,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def snapshot(*uses: tuple[int, int, int | None], gpus: Iterable[Gpu] | None = None) -> Snapshot:
    """What NVML says of (pid, gpu, memory) rows; two boards that hold exactly that by default."""
    rows = tuple(GpuUse(number, pid, "compute", memory) for pid, number, memory in uses)
    if gpus is None:
        held = [sum(r.memory or 0 for r in rows if r.gpu == index) for index in (0, 1)]
        gpus = [gpu(index, used=held[index] + 600 * MIB) for index in (0, 1)]
    return Snapshot("ok", driver="580.95.05", cuda="13.0", gpus=tuple(gpus), uses=rows)


def table(*processes: HostProcess) -> dict[int, HostProcess]:
    """Processes by number, init among them."""
    return {one.pid: one for one in (INIT, *processes)}


class ProcTree:
    """A directory that reads like /proc."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "net").mkdir(parents=True)
        (root / "net/tcp").write_text("  sl  local_address rem_address   st\n")
        self.add(1, "systemd", "/sbin/init", ppid=0)

    def add(
        self,
        pid: int,
        comm: str,
        title: str = "",
        *,
        ppid: int = 1,
        state: str = "S",
        session: int | None = None,
        start_time: int = 100,
        environment: str = "",
        cgroup: str = "/",
        files: Iterable[str] = (),
        wchan: str = "0",
        stack: Iterable[str] = (),
        maps: Iterable[str] = (),
        threads: int = 1,
    ) -> Path:
        """Write one process; without `title` it has no command line, as one that ends."""
        home = self.root / str(pid)
        (home / "fd").mkdir(parents=True)
        for number in range(threads):
            (home / f"task/{pid + number}").mkdir(parents=True)
        self.set_state(pid, comm, state, ppid=ppid, session=session, start_time=start_time)
        (home / "cmdline").write_bytes(title.replace(" ", "\0").encode() + b"\0" * bool(title))
        (home / "environ").write_bytes(environment.replace(" ", "\0").encode())
        (home / "cgroup").write_text(f"0::{cgroup}\n")
        (home / "status").write_text(f"Name:\t{comm}\nUid:\t0\t0\t0\t0\n")
        (home / "wchan").write_text(wchan)
        (home / "stack").write_text("".join(f"[<0>] {function}\n" for function in stack))
        (home / "maps").write_text(
            "".join(f"7f00-7f01 rw-s 00000000 00:06 11 {path}\n" for path in maps)
        )
        for number, target in enumerate(files):
            (home / f"fd/{number}").symlink_to(target)
        return home

    def set_state(
        self,
        pid: int,
        comm: str,
        state: str,
        *,
        ppid: int = 1,
        session: int | None = None,
        start_time: int = 100,
    ) -> None:
        """Write the stat line anew."""
        rest = ["0"] * 15
        fields = [state, ppid, pid, session or pid, *rest, start_time, *["0"] * 30]
        line = f"{pid} ({comm}) " + " ".join(map(str, fields))
        (self.root / str(pid) / "stat").write_text(line)
