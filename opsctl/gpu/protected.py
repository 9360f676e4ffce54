"""Processes that hold a GPU for a good reason, told by their program's name; pure.

Names prove nothing when something is to be ended; here they only spare: who gives itself one of
these names is asked about, not killed.
"""

from __future__ import annotations

from typing import Literal

from opsctl.gpu import names
from opsctl.gpu.model import HostProcess

Kind = Literal["init", "kernel", "mps", "infrastructure"]

_MPS = "nvidia-cuda-mps"


def kind_of(process: HostProcess) -> Kind | None:
    """What makes a process special; None for an ordinary one."""
    if process.pid == 1:
        return "init"
    if process.session == 0 and process.title.startswith("["):
        return "kernel"
    program = process.title.partition(" ")[0].rpartition("/")[2]
    # A client that ends with work outstanding leaves the server undefined for all its clients.
    if process.comm.startswith(_MPS) or program.startswith(_MPS):
        return "mps"
    return "infrastructure" if names.protected(process) else None


def reason(process: HostProcess) -> str:
    """What a special process is, in words."""
    return {
        "init": "process 1",
        "kernel": "a thread of the kernel",
        "mps": "the MPS server and its control daemon serve others and are never ended here",
    }.get(kind_of(process) or "", names.protected(process) or "")
