"""Every error opsctl raises on purpose, with the exit code each one ends in.

    OpsctlError                  1   failed
    ├── UsageError               2   the command line asks for something that does not exist
    ├── PreconditionError        4   the host is not ready: port taken, GPU busy, doctor failed
    │   └── ReleaseError         4   a stopped engine still holds processes, ports or memory
    ├── PartlyAppliedError       5   some of it was done
    ├── StartError               1   an engine did not become ready (stage and reason inside)
    ├── GaveUpError             69   the engine cannot be kept running; a person must look
    ├── TemporaryError          75   try again later: locked, not running yet
    └── ConfigError             78   the configuration is wrong; carries every problem found

The codes are a contract: the systemd unit's RestartPreventExitStatus uses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class OpsctlError(Exception):
    """Base of all errors opsctl raises on purpose.

    `message` says what and where, `hint` what to do next.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(OpsctlError):
    """The command line asks for something that does not exist."""

    exit_code = 2


class PreconditionError(OpsctlError):
    """The host is not in the state the action needs."""

    exit_code = 4


class ReleaseError(PreconditionError):
    """A stopped engine still holds processes, ports or memory."""


class PartlyAppliedError(OpsctlError):
    """Some of a change was applied, the rest was not."""

    exit_code = 5


class StartError(OpsctlError):
    """An engine did not become ready.

    `stage` is the last stage its log reached, `kind` a short class of the reason
    (`exited`, `stage_timeout`, `start_timeout`, `probe_failed`, `port_in_use`, `out_of_memory`,
    or another kind of `engine.markers`).
    """

    def __init__(self, message: str, *, stage: str, kind: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.stage = stage
        self.kind = kind


class GaveUpError(OpsctlError):
    """The engine cannot be kept running; restarting again would only make it worse."""

    exit_code = 69


class TemporaryError(OpsctlError):
    """The same command may succeed later."""

    exit_code = 75


@dataclass(frozen=True)
class Problem:
    """One complaint about a configuration file; `line` and `column` count from 1."""

    file: str
    line: int
    column: int
    key: str
    what: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}"
        return f"{where}: {self.key}: {self.what}" if self.key else f"{where}: {self.what}"


class ConfigError(OpsctlError):
    """The configuration is wrong; `problems` holds everything that was found, in file order."""

    exit_code = 78

    def __init__(self, problems: Sequence[Problem], *, hint: str | None = None) -> None:
        super().__init__("\n".join(str(problem) for problem in problems), hint=hint)
        self.problems = tuple(problems)
