"""Gathers the facts that the chosen checks look at, each with a deadline, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

from opsctl.doctor import disposable, read_host, read_pci, read_programs, read_serving, read_stack
from opsctl.doctor.driver_readings import cuda_facts, gpu_details
from opsctl.doctor.host import Facts
from opsctl.doctor.sources import Sources, Subject
from opsctl.errors import OpsctlError
from opsctl.gpu.model import Census

SECONDS = 60.0
"""For one reader; NVML and libcuda have their own, shorter deadlines."""
_OF_CENSUS = ("driver", "gpus", "holders")
_OF_CONFIG = ("profiles", "models", "ports")

Values = dict[str, Any]


class UnreadError(Exception):
    """A fact cannot be read; the message says why."""


def gather(wanted: Collection[str], sources: Sources, subject: Subject) -> Facts:
    """Read the wanted fields of Facts. Never raises for what is wrong with the host."""
    values: Values = {}
    unread: dict[str, str] = {}
    if {*_OF_CENSUS, "details", "cuda"} & set(wanted):
        _census(wanted, sources, subject, values, unread)
    for name, read in _readers(sources, subject).items():
        if name not in wanted:
            continue
        if name in _OF_CONFIG and subject.config is None:
            unread[name] = subject.no_config
            continue
        try:
            values[name] = in_time(read, SECONDS)
        except (UnreadError, OpsctlError, OSError) as error:
            unread[name] = str(error)
        except Exception as error:  # what one reader stumbles over must not hide all the others
            unread[name] = f"reading it failed with {type(error).__name__}: {error}"
    return Facts(unread=unread, **values)


def _readers(sources: Sources, subject: Subject) -> Mapping[str, Callable[[], Any]]:
    return {
        "pci": lambda: read_pci.gpus(sources),
        "xids": lambda: _xids(sources),
        "texts": lambda: read_host.texts(sources),
        "limits": lambda: read_host.limits(sources, subject),
        "memory": lambda: read_host.memory(sources),
        "shm": lambda: read_host.shm(sources),
        "governors": lambda: read_host.governors(sources),
        "toolkit": lambda: read_programs.toolkit(
            sources, subject, read_stack.pythons(sources, subject)
        ),
        "stacks": lambda: _stacks(sources, subject),
        "profiles": lambda: read_serving.profiles(subject),
        "models": lambda: read_serving.models(sources, subject),
        "ports": lambda: read_serving.ports(subject),
        "caches": lambda: read_serving.caches(sources, subject),
    }


def _xids(sources: Sources) -> Any:
    found = sources.xids()
    if found is None:
        raise UnreadError("the kernel log may not be read; ask as root")
    return found


def _stacks(sources: Sources, subject: Subject) -> Any:
    if subject.config is None and subject.python is None:
        raise UnreadError(f"{subject.no_config}, and no interpreter is named with --python")
    return read_stack.stacks(sources, subject)


def _census(
    wanted: Collection[str],
    sources: Sources,
    subject: Subject,
    values: Values,
    unread: dict[str, str],
) -> None:
    """Read NVML; where it does not answer well, nothing else of the driver is asked."""
    directory = subject.config.state_dir if subject.config else None
    census: Census = sources.look([directory] if directory else [])
    snapshot = census.snapshot
    values["driver"] = snapshot
    if snapshot.state != "ok":
        unread |= dict.fromkeys(("gpus", "holders", "details", "cuda"), snapshot.why)
        return
    values |= {"gpus": snapshot.gpus, "holders": census.holders}
    for name, module, make in (
        ("details", "opsctl.doctor.nvml_helper", gpu_details),
        ("cuda", "opsctl.doctor.cuda_helper", cuda_facts),
    ):
        if name in wanted:
            said = disposable.ask(module)
            if said.trouble:
                unread[name] = said.trouble
                if "no answer" in said.trouble:
                    unread.setdefault("cuda", said.trouble)
                    return
            else:
                values[name] = make(said.lines)


def in_time(read: Callable[[], Any], seconds: float) -> Any:
    """Return what a reader gives; raises UnreadError when a disk it reads does not answer.

    The thread of such a reader is left behind; it is a daemon and holds up nobody.
    """
    answer: list[Any] = []
    trouble: list[Exception] = []

    def work() -> None:
        try:
            answer.append(read())
        except Exception as error:
            trouble.append(error)

    thread = threading.Thread(target=work, name="doctor-reader", daemon=True)
    thread.start()
    thread.join(seconds)
    if trouble:
        raise trouble[0]
    if not answer:
        raise UnreadError(f"a disk or program did not answer within {seconds:g} s")
    return answer[0]
