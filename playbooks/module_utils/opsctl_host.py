"""What opsctl's own modules share on a host. Standard library only; also read by Python 3.10."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any


class HostError(Exception):
    """What a person must know; a module fails with its text."""


def note(path: str | None, text: str, *, check: bool = False) -> None:
    """Write what is left to a person into the file `path`, or remove it when `text` is empty."""
    if path is None or check:
        return
    file = Path(path)
    if not text:
        file.unlink(missing_ok=True)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    write(file, " ".join(text.split()) + "\n")


def write(file: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file as a whole: a reader sees the old text or the new one."""
    temporary = file.with_name(f".{file.name}.opsctl")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        os.fchmod(descriptor, mode)
        stream.write(text)
    temporary.replace(file)


def run(
    argv: list[str], *, timeout: float | None = None, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program in a session of its own; past `timeout` seconds all of it is killed.

    The exit code is then 124, and 127 where the program is not there.
    """
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    except OSError as error:
        return subprocess.CompletedProcess(argv, 127, "", f"{argv[0]}: {error.strerror}")
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return subprocess.CompletedProcess(argv, 124, "", f"no end within {timeout:g} s")
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def document(
    argv: list[str], *, timeout: float = 300, environment: dict[str, str] | None = None
) -> tuple[int, dict[str, Any], str]:
    """Run a program that prints a JSON document: its exit code, the document, its messages."""
    done = run(argv, timeout=timeout, environment=environment)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        found = {}
    return done.returncode, found if isinstance(found, dict) else {}, last(done.stderr)


def unit(instance: str) -> str:
    """Unit of an instance; "" is the only one."""
    return f"opsctl@{instance}.service" if instance else "opsctl.service"


def config(instance: str, folder: str) -> str:
    """Configuration file of an instance."""
    return f"{folder}/{instance or 'opsctl'}.yaml"


def properties(name: str) -> dict[str, str]:
    """What systemd says of a unit; nothing where it does not answer."""
    wanted = "ActiveState,LoadState,MainPID,Environment,Result,ExecMainStatus"
    done = run(["systemctl", "show", "-p", wanted, name], timeout=30)
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def place(found: dict[str, str]) -> dict[str, str]:
    """Variable that says where a unit of which `properties` are known keeps its state."""
    told = re.search(r"(OPSCTL_STATE_DIR)=([^\s\"]+)", found.get("Environment", ""))
    return {told[1]: told[2]} if told else {}


def status(opsctl: str, found: dict[str, str]) -> tuple[int, dict[str, Any], str]:
    """Answer of `opsctl status` for a unit of which `properties` are known."""
    argv = [opsctl, "status", "-o", "json"]
    return document(argv, timeout=60, environment=place(found))


def last(text: str, lines: int = 6) -> str:
    """The last lines of an output that say something."""
    return "\n".join([line.rstrip() for line in text.splitlines() if line.strip()][-lines:])


def users(folder: Path) -> str:
    """Pid and command of a process that runs from an environment's folder; "" where none does.

    Python imports late: a program whose environment is exchanged under it loads old and new code.
    This run's own ancestors do not count: opsctl may provision the host that it runs on.
    """
    real = os.path.realpath(folder)
    own = _ancestors()
    for entry in sorted(Path("/proc").iterdir()):
        if entry.name.isdigit() and int(entry.name) not in own and _runs_from(entry, real):
            return f"pid {entry.name} ({_title(entry)})"
    return ""


def activate(path: Path) -> bool:
    """Let an environment that was prepared take the place of the one that nothing runs from."""
    prepared = path.with_name(f"{path.name}.next")
    if not prepared.is_symlink() or users(path):
        return False
    prepared.replace(path)
    return True


def _runs_from(process: Path, real: str) -> bool:
    try:
        program = (process / "cmdline").read_bytes().split(b"\0", 1)[0].decode(errors="replace")
        if program.startswith("/") and _inside(os.path.realpath(os.path.dirname(program)), real):  # noqa: PTH120 - realpath of a text that need not be a path
            return True
        maps = (process / "maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return f" {real}/" in maps


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def _title(process: Path) -> str:
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return "?"
    return b" ".join(words).decode(errors="replace").strip()[:120]


def _ancestors() -> set[int]:
    found, pid = set(), os.getpid()
    while pid > 0:
        found.add(pid)
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            break
        pid = int(stat.rpartition(")")[2].split()[1])
    return found
