"""Everything that is known about one process, for `opsctl gpu explain`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from opsctl.gpu.kinship import Kin
from opsctl.gpu.mapping import device_words
from opsctl.gpu.model import Census, Holder, HostProcess
from opsctl.gpu.reaper_plan import plan

if TYPE_CHECKING:
    from rich.console import RenderableType

Document = dict[str, Any]

_SHOWN = 20
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "uninterruptible",
    "T": "stopped",
    "t": "traced",
    "Z": "ended, not reaped",
    "I": "idle kernel thread",
}


def explanation(census: Census, pid: int) -> Document:
    """Verdict, evidence, what a reap would do, and the process with its tree."""
    process, holder = census.processes.get(pid), census.of(pid)
    return {
        "pid": pid,
        "exists": process is not None,
        "verdict": holder.verdict.value if holder else None,
        "evidence": list(holder.evidence) if holder else [_nothing(process, pid)],
        "advice": holder.advice if holder else None,
        "reap": _reap(census, holder),
        "memory_bytes_per_gpu": dict(holder.per_gpu) if holder else {},
        "process": _facts(process, holder),
        "parents": _parents(census, pid),
        "children": _children(census, pid),
    }


def _nothing(process: HostProcess | None, pid: int) -> str:
    if process is None:
        return f"no process {pid} can be seen here, and NVML lists none with that number"
    if process.devices is None:
        return "NVML does not list it; its open files may not be read without root"
    return "holds no GPU memory that NVML tells of, and has no /dev/nvidia* open"


def _reap(census: Census, holder: Holder | None) -> str:
    if holder is None:
        return "would leave it alone: it holds nothing that a census counts"
    made = plan(
        census,
        caller_uid=os.geteuid(),
        me=os.getpid(),
        spared=Kin(census.processes, (), os.getpid()).ourselves,
        processes=census.processes,
        engines=census.engines,
    )
    for target in made.targets:
        if target.holder.pid == holder.pid and holder.process is not None:
            return f"would end it ({', then '.join(target.signals)}): {target.why}"
    for left in made.left:
        if left.holder is holder:
            word = f" (would end it with {left.word})" if left.word else ""
            return f"would leave it alone: {left.why}{word}"
    return "would leave it alone"


def _facts(process: HostProcess | None, holder: Holder | None) -> Document | None:
    if process is None:
        return None
    return {
        "command": process.title,
        "start_time": process.start_time,
        "state": process.state,
        "user": process.user,
        "age_seconds": None if process.age is None else round(process.age, 1),
        "parent": process.ppid,
        "session": process.session,
        "group": process.group,
        "cgroup": process.cgroup,
        "launched_by_opsctl": bool(process.nonce),
        "devices": None if process.devices is None else sorted(process.devices),
        "gpus": list(holder.gpus) if holder and holder.process else [],
        "ports": list(process.ports),
        "kernel_function": process.wchan,
    }


def _parents(census: Census, pid: int) -> list[Document]:
    kin = Kin(census.processes, (), os.getpid())
    return [_short(parent, census) for parent in kin.ancestors(pid)]


def _children(census: Census, pid: int) -> list[Document]:
    below = Kin(census.processes, (), os.getpid()).children

    def under(number: int, above: frozenset[int]) -> list[Document]:
        return [
            {**_short(child, census), "children": under(child.pid, above | {child.pid})}
            for child in below.get(number, ())
            if child.pid not in above
        ]

    return under(pid, frozenset({pid}))


def _short(process: HostProcess, census: Census) -> Document:
    holder = census.of(process.pid)
    verdict = holder.verdict.value if holder and holder.process else None
    return {"pid": process.pid, "verdict": verdict, "command": process.title}


def explanation_table(document: Document) -> RenderableType:
    """Two columns: what, and its value in words."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(document):
        table.add_row(name, Text(value))
    return table


def _rows(document: Document) -> Iterator[tuple[str, str]]:
    yield "pid", str(document["pid"])
    yield "verdict", document["verdict"] or "none"
    for number, sentence in enumerate(document["evidence"]):
        yield ("" if number else "why"), sentence
    for gpu, memory in document["memory_bytes_per_gpu"].items():
        told = "memory not told" if memory is None else f"{memory / (1 << 30):.2f} GiB"
        yield f"GPU {gpu}", told
    yield "opsctl gpu reap", document["reap"]
    if document["advice"]:
        yield "next", document["advice"]
    if document["process"] is not None:
        yield from _process_rows(document["process"])
    yield from _tree_rows(document)


def _process_rows(facts: Document) -> Iterator[tuple[str, str]]:
    yield "command", facts["command"]
    age = "" if facts["age_seconds"] is None else f", {facts['age_seconds']:.0f} s old"
    state = _STATES.get(facts["state"], "gone")
    yield "state", f"{facts['state']} ({state}), user {facts['user'] or 'not read'}{age}"
    yield "session", f"{facts['session']}, process group {facts['group']}"
    yield "cgroup", facts["cgroup"] or "not known"
    devices = facts["devices"]
    if devices is None:
        yield "devices", "may not be read without root"
    else:
        yield "devices", device_words(frozenset(devices)) if devices else "none open"
    if facts["ports"]:
        yield "listens on", ", ".join(map(str, facts["ports"]))
    if facts["kernel_function"]:
        yield "in the kernel", facts["kernel_function"]


def _tree_rows(document: Document) -> Iterator[tuple[str, str]]:
    command = (document["process"] or {}).get("command", "cannot be seen here")
    own = {"pid": document["pid"], "verdict": document["verdict"], "command": command}
    line = list(enumerate([*reversed(document["parents"]), own]))
    lines = [*line, *_below(document["children"], len(line))]
    for number, (depth, entry) in enumerate(lines[:_SHOWN]):
        mark = f" [{entry['verdict']}]" if entry["verdict"] else ""
        text = f"{'  ' * depth}{entry['pid']} {entry['command'][:60]}{mark}"
        yield ("" if number else "tree"), text
    if len(lines) > _SHOWN:
        yield "", f"and {len(lines) - _SHOWN} more below"


def _below(children: list[Document], depth: int) -> Iterator[tuple[int, Document]]:
    for child in children:
        yield depth, child
        yield from _below(child["children"], depth + 1)
