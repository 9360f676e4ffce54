"""Memory taken by the simulated engine, written down where opsctl's reader can find it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from opsctl.engine.simulated.faults import Faults
from opsctl.engine.simulated.flags import Options

VARIABLE = "OPSCTL_SIMULATED_GPU"


def take(options: Options, main_pid: int, faults: Faults) -> None:
    """Append what this engine holds, and for how long after its death, to the ledger.

    Does nothing when the environment names no ledger. One line is one write, so that engines
    sharing a ledger cannot mix theirs.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return
    linger = options.linger
    if (text := faults.text("memory_lingers")) is not None:
        linger = None if text == "never" else float(text)
    entry = {
        "nonce": os.environ.get("OPSCTL_NONCE", ""),
        "pid": main_pid,
        "start_time": _start_time(main_pid),
        "bytes": options.memory,
        "linger_s": linger,
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, (json.dumps(entry) + "\n").encode())
    finally:
        os.close(descriptor)


def _start_time(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return int(stat[stat.rindex(")") + 2 :].split()[19])
