"""What only a real NVIDIA GPU can show; see README.md. Prints one JSON verdict.

    python tests/device/check_gpu.py [--gpu 0] [--python PYTHON_WITH_TORCH]

Exit code 0: everything agrees, 1: something does not, 77: nothing to check here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from opsctl.engine.tree import Identity
from opsctl.gpu import kernel_log, nvml, survey
from opsctl.gpu.memory import TOLERANCE, GpuMemory
from opsctl.gpu.model import Gpu, Snapshot
from opsctl.system import procfs

SIZE = 2 << 30
MIB = 1 << 20
PATIENCE = 60.0

HOLDER = """
import ctypes, os, sys, time
size, how = int(sys.argv[1]), "torch"
if len(sys.argv) > 2 and sys.argv[2] == "orphan":
    os.setsid()
    if os.fork():
        sys.exit()
try:
    import torch
    held = torch.zeros(size, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
except ImportError:
    how, cuda = "driver", ctypes.CDLL("libcuda.so.1")
    context, held = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(held), ctypes.c_size_t(size)) == 0
print(os.getpid(), how, flush=True)
time.sleep(600)
"""


class Skipped(Exception):  # noqa: N818 - no error
    """There is nothing to check here."""


def smi(query: str) -> list[list[str]]:
    """Rows of an nvidia-smi query, numbers without units."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise Skipped("nvidia-smi is not installed")
    result = subprocess.run(
        [program, query, "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    rows = [line.split(",") for line in result.stdout.splitlines() if line.strip()]
    return [[cell.strip() for cell in row] for row in rows]


def beside_nvidia_smi(snapshot: Snapshot) -> dict[str, Any]:
    """Driver, names, memory and processes, as both tell them."""
    fields = "index,uuid,name,driver_version,memory.total,memory.used"
    differences = []
    for index, gpu_uuid, name, driver, total, used in smi(f"--query-gpu={fields}"):
        gpu = snapshot.gpus[int(index)]
        ours = ((gpu.memory_used or 0) - (gpu.memory_reserved or 0)) / MIB
        if (gpu.uuid, gpu.name, snapshot.driver) != (gpu_uuid, name, driver):
            differences.append(f"GPU {index}: {gpu.uuid} {gpu.name} {snapshot.driver}")
        if total.isdigit() and abs((gpu.memory_total or 0) / MIB - int(total)) > 1:
            differences.append(f"GPU {index}: total {gpu.memory_total} against {total} MiB")
        if used.isdigit() and abs(ours - int(used)) > TOLERANCE / MIB:
            differences.append(f"GPU {index}: used {ours:.0f} against {used} MiB")
    theirs = sorted((u, int(pid)) for u, pid in smi("--query-compute-apps=gpu_uuid,pid"))
    uuids = {gpu.index: gpu.uuid for gpu in snapshot.gpus}
    mine = sorted(
        (uuids[use.gpu] or "", use.pid) for use in snapshot.uses if use.kind != "graphics"
    )
    if theirs != mine:
        differences.append(f"processes: {mine} against {theirs}")
    return {"ok": not differences, "differences": differences}


@contextmanager
def holder(python: str, gpu: Gpu, nonce: str, *words: str) -> Iterator[tuple[int, str]]:
    """A process that holds SIZE bytes of a GPU: its pid, and how it got them."""
    environment = {
        **os.environ,
        "OPSCTL_NONCE": nonce,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": gpu.uuid or str(gpu.index),
    }
    with subprocess.Popen(
        [python, "-c", HOLDER, str(SIZE), *words],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline().split()
        if len(line) != 2:
            raise Skipped("no process can take GPU memory here: neither torch nor libcuda works")
        pid, started = int(line[0]), procfs.stat(int(line[0]))
        try:
            yield pid, line[1]
        finally:
            found = procfs.stat(pid)
            if started and found and found.start_time == started.start_time:
                os.kill(pid, signal.SIGKILL)
            process.wait(timeout=PATIENCE)


async def wait_for(condition: Callable[[], Any], what: str) -> float:
    """Seconds until an awaitable condition came true."""
    start = time.monotonic()
    while not await condition():
        if time.monotonic() - start > PATIENCE:
            raise TimeoutError(f"{what}: not within {PATIENCE:g} s")
        await asyncio.sleep(0.1)
    return round(time.monotonic() - start, 2)


async def killed_holder(python: str, gpu: Gpu, *words: str) -> dict[str, Any]:
    """A holder is seen by pid and by amount; after SIGKILL its memory is seen back."""
    memory, nonce = GpuMemory([gpu.index]), uuid.uuid4().hex
    await memory.before_start()
    with holder(python, gpu, nonce, *words) as (pid, how):
        entry = procfs.stat(pid)
        assert entry is not None
        identity = Identity(nonce, pid, entry.start_time, entry.session, None, procfs.boot_id())
        seen = sorted(await memory.observe(identity, [pid]))
        held = await memory.held(identity)
        found = (await survey.look_async()).of(pid)
        verdict = (
            None
            if found is None
            else {"verdict": str(found.verdict), "memory": found.memory, "evidence": found.evidence}
        )
        os.kill(pid, signal.SIGKILL)

        async def back() -> bool:
            return await memory.held(identity) == 0

        seconds = await wait_for(back, "memory back")
    memory.close()
    return {
        "ok": held is not None and held >= SIZE and found is not None,
        "allocated_by": how,
        "parent": entry.ppid,
        "gpus_seen": seen,
        "held_bytes": held,
        "census": verdict,
        "seconds_until_back": seconds,
    }


async def check(arguments: argparse.Namespace) -> dict[str, Any]:
    """All checks, one after the other."""
    start = time.monotonic()
    snapshot = nvml.read(deadline=30)
    took = round(time.monotonic() - start, 3)
    if snapshot.state == "absent":
        raise Skipped(snapshot.why)
    if snapshot.state != "ok":
        return {"reading": {"ok": False, "state": snapshot.state, "why": snapshot.why}}
    gpu = snapshot.gpus[arguments.gpu]
    xids = kernel_log.read()
    return {
        "reading": {
            "ok": all(gpu.memory_used is not None for gpu in snapshot.gpus),
            "seconds": took,
            "driver": snapshot.driver,
            "cuda": snapshot.cuda,
            "gpus": [
                [
                    one.name,
                    one.compute_capability,
                    one.memory_total,
                    one.memory_used,
                    one.memory_reserved,
                    one.fault,
                ]
                for one in snapshot.gpus
            ],
            "xids": None if xids is None else [[xid.code, xid.bus_id, xid.remedy] for xid in xids],
        },
        "nvidia_smi": beside_nvidia_smi(snapshot),
        "killed_holder": await killed_holder(arguments.python, gpu),
        "orphaned_holder": await killed_holder(arguments.python, gpu, "orphan"),
    }


def main() -> int:
    """Run the checks and print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", type=int, default=0, help="NVML index of the GPU to take 2 GiB of")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has torch")
    try:
        checks = asyncio.run(check(parser.parse_args()))
    except Skipped as reason:
        sys.stdout.write(json.dumps({"verdict": "skipped", "why": str(reason)}) + "\n")
        return 77
    passed = all(result["ok"] for result in checks.values())
    verdict = {"verdict": "passed" if passed else "failed", **checks}
    sys.stdout.write(json.dumps(verdict, indent=1) + "\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
