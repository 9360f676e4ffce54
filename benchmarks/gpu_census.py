"""A census of 8 GPUs and 2,000 processes, beside psutil reading the same attributes.

The processes are a tree of files that reads like /proc, in memory where that can be had (/dev/shm):
real process files cost the kernel more, for both sides alike. None is a kernel thread, which the
census knows by its parent and reads no further. psutil is asked for what the census
reads of every process (state, parent, start time, command line, environment, open files) and for
nothing else. Both run alternately, in one process, so that a busy moment hits both. The library
of NVML is left out: its answer is a value here, of 8 GPUs with 8 schedulers on them.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from opsctl.gpu import processes
from opsctl.gpu.census import census
from opsctl.gpu.model import Snapshot, Verdict
from opsctl.system import procfs
from tests.support.proc_tree import GIB, NONCE, ProcTree, engine, gpu, snapshot

PROCESSES = 2000
FILES = 12
GPUS = 8
ROUNDS = 7
TARGET = 1.0
"""Census time divided by psutil's: not slower than only reading the same."""


def build(root: Path) -> Snapshot:
    """A host that serves on 8 GPUs, among services."""
    tree = ProcTree(root)
    main = 1000
    devices = ["/dev/nvidiactl", "/dev/nvidia-uvm", *(f"/dev/nvidia{n}" for n in range(GPUS))]
    environment = " ".join(f"VARIABLE_{n}=value-{n}" for n in range(30))
    ours = f"{environment} OPSCTL_NONCE={NONCE}"
    tree.add(main, "python", "python -m sglang.launch_server", environment=ours, start_time=10_000)
    for number in range(GPUS):
        tree.add(
            main + 1 + number,
            "sglang::schedul",
            f"sglang::scheduler_TP{number}",
            ppid=main,
            session=main,
            start_time=10_001,
            files=[*devices, *(f"socket:[{n}]" for n in range(60))],
        )
    others = PROCESSES - GPUS - 2
    for number in range(others):
        tree.add(
            10_000 + number,
            "service",
            f"/usr/bin/service --number {number} --config /etc/service.conf",
            environment=environment,
            cgroup=f"/system.slice/service-{number}.service",
            files=[f"/var/log/service/{n}" for n in range(FILES)],
        )
    (root / "stat").write_text("cpu 0 0 0 0\nbtime 1700000000\n")  # psutil asks for it
    rows = [(main + 1 + number, number, 80 * GIB) for number in range(GPUS)]
    return snapshot(*rows, gpus=[gpu(n, used=81 * GIB) for n in range(GPUS)])


def ours(nvml: Snapshot) -> None:
    """The census as `opsctl gpu ps` takes it."""
    table = processes.read(use.pid for use in nvml.uses)
    found = census(nvml, table, [engine(1000)], me=1, host_pids=True)
    managed = [h for h in found.holders if h.verdict is Verdict.MANAGED]
    if len(table) != PROCESSES or len(managed) != GPUS + 1:
        raise SystemExit(f"wrong census: {len(table)} processes, {len(managed)} managed")


def theirs() -> None:
    """Read the same attributes of every process with psutil."""
    names = ["pid", "name", "status", "ppid", "create_time", "cmdline", "environ", "open_files"]
    count = sum(1 for _ in psutil.process_iter(names))
    if count != PROCESSES:
        raise SystemExit(f"psutil sees {count} processes")


def cost(action: Callable[[], None]) -> tuple[float, float]:
    """Wall and CPU seconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> int:
    """Print medians of both, their ratio with its spread, and whether the target is met."""
    memory = Path("/dev/shm")  # in memory, where there is such a folder
    folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    try:
        nvml = build(folder / "proc")
        procfs.PROC = folder / "proc"
        psutil.PROCFS_PATH = str(folder / "proc")
        rounds = [(cost(lambda: ours(nvml)), cost(theirs)) for _ in range(ROUNDS + 1)][1:]
    finally:
        shutil.rmtree(folder)
    for what, index in (("wall", 0), ("CPU", 1)):
        mine, other = ([pair[side][index] for pair in rounds] for side in (0, 1))
        ratios = sorted(a / b for a, b in zip(mine, other, strict=True))
        print(
            f"{what:4}  census {statistics.median(mine) * 1000:6.1f} ms   "
            f"psutil {statistics.median(other) * 1000:6.1f} ms   "
            f"ratio {statistics.median(ratios):.2f} (from {ratios[0]:.2f} to {ratios[-1]:.2f})"
        )
    median = statistics.median(a[1] / b[1] for a, b in rounds)
    print(f"target: CPU ratio {TARGET:g} or less: {'met' if median <= TARGET else 'MISSED'}")
    return 0 if median <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
