"""Shared memory an engine leaves in /dev/shm: whose it is, and when it may be removed.

SGLang is torn down by SIGKILL, which skips every unlink, so segments pile up until the tmpfs is
full and the next scheduler dies of SIGBUS. But people also keep model weights in /dev/shm: only
known families are looked at, and of those only files that a member had open or mapped.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from opsctl.system import procfs

Segment = tuple[str, int]
"""Path and inode: a file made later under the same name is another one."""

# sglang 0.5.13+ load snapshots; 0.5.2x tagged segments; torch tensors shared between processes;
# Python's multiprocessing.shared_memory and its semaphores; NCCL; CUDA IPC.
_FAMILIES = (
    "sglang_loads_",
    "sgl_shm_",
    "multi_tokenizer_args_",
    "torch_",
    "psm_",
    "sem.mp-",
    "nccl-",
    "cuda.shm.",
)


def used_by(pids: Iterable[int]) -> frozenset[Segment]:
    """Segments of known families that these processes have open or mapped."""
    return frozenset(
        segment
        for pid in pids
        for segment in procfs.shared_memory(pid)
        if Path(segment[0]).name.startswith(_FAMILIES)
    )


def remaining(segments: Iterable[Segment]) -> frozenset[Segment]:
    """Those that still exist as the same file."""
    return frozenset(segment for segment in segments if _inode(segment[0]) == segment[1])


def remove_unused(
    segments: Collection[Segment], owners: Collection[int] | None = None
) -> frozenset[Segment]:
    """Unlink segments of dead processes that no living process has; what was removed.

    Only files of `owners` (user ids; default: the calling user) are touched. A process that
    cannot be looked into belongs to another user; so would its segment.
    """
    left = remaining(segments)
    if not left:
        return frozenset()
    allowed = {os.geteuid()} if owners is None else owners
    in_use = {inode for pid in procfs.pids() for _, inode in procfs.shared_memory(pid)}
    return frozenset(
        (path, inode)
        for path, inode in left
        if inode not in in_use and _owner(path) in allowed and _unlink(path)
    )


def _unlink(path: str) -> bool:
    try:
        Path(path).unlink()
    except OSError:
        return False
    return True


def _inode(path: str) -> int | None:
    try:
        return Path(path).lstat().st_ino
    except OSError:
        return None


def _owner(path: str) -> int | None:
    try:
        return Path(path).lstat().st_uid
    except OSError:
        return None
