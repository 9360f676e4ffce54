"""One rank of `opsctl doctor collective`: sums a tensor with the other rank, and checks it.

Run by path in the engine's interpreter, from a folder of its own, so that nothing of opsctl can
be imported by accident: `python collective.py RANK BACKEND RENDEZVOUS SECONDS PARENT`. Says how far
it got, a line each on stdout. It ends when its parent does, and by itself after SECONDS.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
from typing import Any

RANKS = 2
SIZES = (1 << 10, 1 << 24)
"""Elements of 4 bytes: one that NCCL sends by its latency protocol, one by its bandwidth one."""
NO_TORCH, NO_DEVICE, NO_BACKEND, WRONG_SUM = 10, 11, 12, 20
_PR_SET_PDEATHSIG = 1


def stage(name: str, detail: str = "") -> None:
    """Say how far this rank got."""
    os.write(1, f"opsctl-stage {name} {detail}".rstrip().encode() + b"\n")


def _die_with(parent: int, seconds: int) -> None:
    """End with opsctl, also when that is killed; and in time, whatever code hangs."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signal.alarm(seconds)


def _torch() -> Any:
    stage("importing")
    try:
        torch = importlib.import_module("torch")
        importlib.import_module("torch.distributed")
    except Exception as error:
        _give_up(NO_TORCH, f"torch cannot be imported: {error}")
    stage("imported", str(torch.__version__))
    return torch


def _give_up(code: int, why: str) -> None:
    stage("impossible", " ".join(why.split()))
    os._exit(code)


def _device(torch: Any, rank: int, backend: str) -> str:
    if backend != "nccl":
        return "cpu"
    if torch.version.cuda is None or not torch.distributed.is_nccl_available():
        _give_up(NO_BACKEND, "torch is built without CUDA or NCCL")
    if not torch.cuda.is_available() or torch.cuda.device_count() < RANKS:
        _give_up(NO_DEVICE, f"CUDA shows torch {torch.cuda.device_count()} of {RANKS} GPUs")
    torch.cuda.set_device(rank)
    return f"cuda:{rank}"


def _reduce(torch: Any, device: str, size: int) -> None:
    """Sum different values per rank and place, so that a stale or shifted buffer is seen."""
    rank = torch.distributed.get_rank()
    places = torch.arange(size, device=device) % 1000
    values = (places + rank).to(torch.float32)
    torch.distributed.all_reduce(values)
    wrong = int((values != (2 * places + 1).to(torch.float32)).sum().item())
    if wrong:
        stage("wrong", f"{wrong} of {size} sums")
        os._exit(WRONG_SUM)


def main(rank: int, backend: str, rendezvous: str, seconds: int, parent: int) -> None:
    """Run one rank."""
    _die_with(parent, seconds)
    torch = _torch()
    device = _device(torch, rank, backend)
    stage("device", device)
    torch.distributed.init_process_group(
        backend, init_method=f"file://{rendezvous}", rank=rank, world_size=RANKS
    )
    stage("joined")
    for size in SIZES:
        _reduce(torch, device, size)
        stage("reduced", str(4 * size))
    stage("done")
    os._exit(0)  # leaving the group can hang as well, and is not what is asked


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
