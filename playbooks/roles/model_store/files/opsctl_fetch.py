# Managed by opsctl provision.
"""Downloads one checkpoint with the engine's huggingface_hub, as long as somebody asks for it.

    python -I opsctl_fetch.py FOLDER

FOLDER/order.json says what; FOLDER/lease is touched by those who wait. Without a touch for two
minutes the download ends: nobody waits any more, and the next one goes on where it was. At the end
FOLDER/result holds why it failed, or nothing. The token never stands in a command line or a log.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PATIENCE = 120.0
"""Seconds without a touch of the lease."""


def main() -> int:
    """Download, and write down how it ended."""
    work = Path(sys.argv[1])
    order = json.loads((work / "order.json").read_text(encoding="utf-8"))
    said = fetch(work, order)
    result = work / ".result"
    result.write_text(said + "\n", encoding="utf-8")
    result.replace(work / "result")
    return bool(said)


def fetch(work: Path, order: dict[str, str]) -> str:
    """Run the downloader to its end: "" when all is there, else why not."""
    program = tool(Path(order["python"]).parent)
    if program is None:
        return f"huggingface_hub's command is not beside {order['python']}"
    argv = [program, "download", order["source"], "--local-dir", order["path"]]
    if order.get("revision"):
        argv += ["--revision", order["revision"]]
    process = subprocess.Popen(argv, env=environment(order), start_new_session=True)
    while process.poll() is None:
        if time.time() - (work / "lease").stat().st_mtime > PATIENCE:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            return "nobody waited for it any more"
        time.sleep(0.5)
    return f"exit code {process.returncode}" if process.returncode else ""


def tool(folder: Path) -> str | None:
    """Command of huggingface_hub: `hf`, or `huggingface-cli` before its release 0.34."""
    found = (folder / name for name in ("hf", "huggingface-cli"))
    return next((str(path) for path in found if os.access(path, os.X_OK)), None)


def environment(order: dict[str, str]) -> dict[str, str]:
    """What the downloader sees: the token only where there is a file with one."""
    found = {**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    with contextlib.suppress(OSError):
        found["HF_TOKEN"] = Path(order["token_file"]).read_text(encoding="utf-8").strip()
    return found


if __name__ == "__main__":
    sys.exit(main())
