"""Faults: what can be made to go wrong, at start (`--sim-fault`) and at run time (`/sim/fault`)."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

STAGES = ("imports", "distributed", "weights", "kv_cache", "graphs", "warmup")

WITHOUT_VALUE = frozenset(
    {
        "bad_weights", "crash_now", "hang", "ignore_sigterm", "escaped_child", "port_squatter",
        "abort_done", "freeze_gauges", "not_in_models", "early_orphan",
        "adaptive_static", "adaptive_oom",
    }
)  # fmt: skip
COUNTS = frozenset({"crash_after", "hang_after"})
SECONDS = frozenset({"slow_start", "slow_stop", "memory_lingers"})
RUN_TIME_ONLY = frozenset({"abort_done"})
AT_START_ONLY = frozenset(
    {
        "slow_start", "stuck_stage", "start_failure", "bad_weights", "memory_lingers",
        "early_orphan", "adaptive_static", "adaptive_oom",
    }
)  # fmt: skip
NAMES = WITHOUT_VALUE | COUNTS | SECONDS | {"stuck_stage", "start_failure", "kill_child"}


@dataclass(frozen=True)
class Fault:
    """One fault and its value, already checked."""

    name: str
    value: str = ""


@dataclass(frozen=True)
class StartFailure:
    """How a start fails: the exit code (negative: a signal), and whether memory ran out."""

    code: int
    out_of_memory: bool


def parse(text: str) -> Fault:
    """Read NAME[=VALUE]; raises argparse.ArgumentTypeError."""
    name, _, value = text.partition("=")
    try:
        fault = make(name, value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if fault.name in RUN_TIME_ONLY:
        raise argparse.ArgumentTypeError(f"{name} works only at run time, over POST /sim/fault")
    return fault


def make(name: str, value: object = "") -> Fault:
    """Check one fault; raises ValueError that says what would be right."""
    text = "" if value is None or value is True else str(value)
    if name not in NAMES:
        raise ValueError(f"unknown fault {name!r} (choose from {', '.join(sorted(NAMES))})")
    if name in COUNTS and not text.isdecimal():
        raise ValueError(f"{name} needs a number of requests, not {text!r}")
    if name in SECONDS and not (name == "memory_lingers" and text == "never"):
        _seconds(name, text)
    if name == "stuck_stage" and text not in STAGES:
        raise ValueError(f"stuck_stage needs one of {', '.join(STAGES)}, not {text!r}")
    if name == "start_failure":
        start_failure(text)
    if name == "kill_child" and not text:
        raise ValueError("kill_child needs scheduler, detokenizer or scheduler_TPn")
    return Fault(name, text)


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e6:
        raise ValueError(f"{name} needs a number of seconds, not {text!r}")
    return seconds


def start_failure(text: str) -> StartFailure:
    """Read EXITCODE[:oom]; raises ValueError."""
    code, _, kind = text.partition(":")
    try:
        number = int(code)
    except ValueError:
        number = 0
    if number == 0 or kind not in {"", "oom"}:
        raise ValueError(f"start_failure needs EXITCODE[:oom], not {text!r}")
    return StartFailure(number, kind == "oom")


class Faults:
    """The faults in force."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._values: dict[str, str] = {fault.name: fault.value for fault in faults}

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def add(self, fault: Fault) -> None:
        """Put a fault in force."""
        self._values[fault.name] = fault.value

    def text(self, name: str) -> str | None:
        """Return a fault's value as given, None when it is not in force."""
        return self._values.get(name)

    def seconds(self, name: str) -> float:
        """Return a fault's value in seconds, 0 when it is not in force."""
        return float(self._values.get(name) or 0.0)

    def count(self, name: str) -> int | None:
        """Return a fault's value as a count, None when it is not in force."""
        value = self._values.get(name)
        return None if value is None else int(value)

    def as_mapping(self) -> Mapping[str, str]:
        """Return the faults in force, for display."""
        return dict(self._values)
