"""Start a program that shall outlive opsctl: own session, own log, nothing inherited by accident.

posix_spawn runs no Python between fork and exec (opsctl has threads), and unlike subprocess it
can reset signals that opsctl's own parent had set to be ignored. A one-line shell does what
posix_spawn cannot: change the directory and join a cgroup, then it becomes the program itself.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from opsctl.system import procfs
from opsctl.system.cgroup import Cgroup

_SHELL = "/bin/sh"
_JOIN = '{ echo $$ > "$0/cgroup.procs"; } 2>/dev/null || echo "could not join cgroup $0" >&2\n'
_SHELL_VARIABLES = ("PWD", "OLDPWD", "SHLVL")  # some shells export them on their own
_CANNOT_RESET = {signal.SIGKILL, signal.SIGSTOP}


def spawn(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    log_path: Path,
    cgroup: Cgroup | None = None,
) -> int:
    """Start `argv` and return its process number; the caller reaps it (`exit_code`).

    Output goes to `log_path`, appended. Raises OSError when the program does not exist or the
    log cannot be opened. A cgroup that cannot be joined is reported in the log, not fatal.
    """
    program = shutil.which(argv[0], path=environment.get("PATH", os.defpath))
    if program is None:
        raise FileNotFoundError(errno.ENOENT, "no such program", argv[0])
    own = " ".join(name for name in _SHELL_VARIABLES if name not in environment)
    script = f'cd / && unset {own}; exec "$@"'
    shell = [script, "opsctl"] if cgroup is None else [_JOIN + script, str(cgroup.path)]
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    log = os.open(log_path, flags, 0o600)
    try:
        return os.posix_spawn(
            _SHELL,
            [_SHELL, "-c", *shell, program, *argv[1:]],
            environment,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                *((os.POSIX_SPAWN_CLOSE, number) for number in _inheritable()),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=signal.valid_signals() - _CANNOT_RESET,
        )
    finally:
        os.close(log)


def has_become_program(pid: int) -> bool:
    """Whether the shell has made way for the program, so that all it was to do is done."""
    entry = procfs.stat(pid)
    return entry is None or entry.state in "ZX" or entry.comm != Path(_SHELL).name


def exit_code(pid: int) -> int | None:
    """Reap an ended child: its exit code, negative for a signal; None if somebody else did."""
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if done else None


def _inheritable() -> Iterator[int]:
    """Descriptors above stderr that would leak, such as sockets passed in by systemd."""
    for link in procfs.descriptors(os.getpid()):
        number = int(link.name)
        try:
            if number > 2 and os.get_inheritable(number):
                yield number
        except OSError:  # the one that listed the directory
            continue
