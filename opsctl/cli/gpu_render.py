"""A census as people and as programs read it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NoReturn

from opsctl.cli.options import Output
from opsctl.gpu.model import Census, Gpu, Holder, HostProcess, Verdict

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

Document = dict[str, Any]

STYLES = {
    Verdict.MANAGED: "green",
    Verdict.ORPHAN: "bold yellow",
    Verdict.STRAY: "yellow",
    Verdict.ZOMBIE: "magenta",
    Verdict.STUCK: "bold red",
    Verdict.FOREIGN: "blue",
    Verdict.UNMAPPED: "cyan",
    Verdict.PHANTOM: "bold red",
    Verdict.FAULT: "bold red",
}
_SAME = {Verdict.MANAGED, Verdict.ORPHAN, Verdict.STRAY, Verdict.ZOMBIE}
_NUMBERS_SHOWN = 8
_BOARD_WORDS = re.compile(
    r"\b(NVIDIA|GeForce|Blackwell|Workstation|Server|Max-Q|Edition|Generation)\b"
)


def document(census: Census) -> Document:
    """The contract of `opsctl gpu ps -o json`."""
    snapshot = census.snapshot
    return {
        "driver": {"state": snapshot.state, "why": snapshot.why, "version": snapshot.driver},
        "gpus": [_gpu_document(gpu, census) for gpu in snapshot.gpus],
        "processes": [holder_document(holder) for holder in census.holders],
    }


def _gpu_document(gpu: Gpu, census: Census) -> Document:
    capability = gpu.compute_capability
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "compute_capability": ".".join(map(str, capability)) if capability else None,
        "memory_total_bytes": gpu.memory_total,
        "memory_used_bytes": gpu.memory_used,
        "state": gpu_state(gpu, census),
    }


def gpu_state(gpu: Gpu, census: Census) -> str:
    """`fault` when anything speaks against using it, else `ok`."""
    faults = (h for h in census.holders if h.verdict is Verdict.FAULT)
    return "fault" if any(gpu.index in holder.gpus for holder in faults) else "ok"


def holder_document(holder: Holder) -> Document:
    """One entry of `processes`; memory without an owner and faults have no pid."""
    process = holder.process
    return {
        "pid": holder.pid,
        "start_time": holder.start_time,
        "gpus": list(holder.gpus),
        "verdict": holder.verdict.value,
        "memory_bytes": holder.memory,
        "user": process.user if process else None,
        "command": process.title if process else None,
        "evidence": list(holder.evidence),
    }


def census_table(census: Census) -> RenderableType:
    """GPUs, then holders, each with the reason below it."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(_driver(census))]
    if census.snapshot.gpus:
        parts += [_gpu_table(census), Text()]
    shown = list(_condensed(census.holders))
    if shown:
        parts.append(_row(*_HEADER, style="bold"))
    for holder, others in shown:
        parts += _holder(holder, others)
    if not shown and census.snapshot.state == "ok":
        parts.append(Text("Nothing holds a GPU."))
    return Group(*parts)


def _driver(census: Census) -> str:
    snapshot = census.snapshot
    if snapshot.state == "absent":
        return f"No GPU can be seen: {snapshot.why}."
    if snapshot.state == "ok":
        return f"driver {snapshot.driver or 'unknown'}, CUDA {snapshot.cuda or 'unknown'}"
    words = {"unresponsive": "The driver does not answer", "fault": "The driver is faulty"}
    return f"{words[snapshot.state]}: {snapshot.why}.\nWhat follows is what /proc tells."


def _gpu_table(census: Census) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("GPU", "NAME", "SM", "MEMORY GiB", "POWER W", "LINK", "STATE"):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    for gpu in census.snapshot.gpus:
        state = gpu_state(gpu, census)
        cells = (str(gpu.index), short_name(gpu.name), _sm(gpu), _memory(gpu), _power(gpu))
        table.add_row(
            *map(Text, cells),
            Text(_link(gpu), style="yellow" if _narrow(gpu) else ""),
            Text(state, style="green" if state == "ok" else "bold red"),
        )
    return table


def short_name(name: str | None) -> str:
    """A board's name without the words that all boards share."""
    return " ".join(_BOARD_WORDS.sub(" ", name).split()) if name else "-"


def _sm(gpu: Gpu) -> str:
    return ".".join(map(str, gpu.compute_capability)) if gpu.compute_capability else "-"


def _memory(gpu: Gpu) -> str:
    return f"{_gib(gpu.memory_used)}/{_gib(gpu.memory_total)}"


def _gib(count: int | None) -> str:
    if count is None:
        return "-"
    gib = count / (1 << 30)
    return f"{gib:.1f}" if count == 0 or gib >= 0.1 else f"{gib:.2f}"


def _power(gpu: Gpu) -> str:
    drawn, limit = ("-" if v is None else f"{v:.0f}" for v in (gpu.power, gpu.power_limit))
    return f"{drawn}/{limit}"


def _narrow(gpu: Gpu) -> bool:
    """Fewer lanes than the board has; a lower generation is only how an idle board saves power."""
    width, most = gpu.pcie_width, gpu.pcie_width_max
    return width is not None and most is not None and width < most


def _link(gpu: Gpu) -> str:
    if gpu.pcie_width is None:
        return "-"
    generation = "" if gpu.pcie_generation is None else f"gen{gpu.pcie_generation} "
    return f"{generation}x{gpu.pcie_width}" + (f" of x{gpu.pcie_width_max}" if _narrow(gpu) else "")


_HEADER = ("VERDICT", "PID", "USER", "AGE", "GiB", "GPUS", "COMMAND")
_WIDTHS = (12, 7, 8, 4, 6, 5)


def _row(*cells: str, style: str = "", first: str | None = None) -> Text:
    from rich.text import Text

    padded = [cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=False)]
    text = Text(no_wrap=True, overflow="ellipsis", style=style)
    text.append(padded[0], style=first)
    return text.append("  ".join(["", *padded[1:], cells[-1]]))


def _holder(holder: Holder, others: Sequence[Holder]) -> Iterator[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    process = holder.process
    yield _row(
        holder.verdict.value,
        "-" if holder.pid is None else str(holder.pid),
        (process.user if process else None) or "-",
        _age(process),
        _gib(holder.memory),
        ranges(holder.gpus),
        process.title if process else "-",
        first=STYLES[holder.verdict],
    )
    why = "; ".join(holder.evidence)
    yield Padding(Text(why), (0, 0, 0, 4))
    if others:
        numbers = ", ".join(str(other.pid) for other in others[:_NUMBERS_SHOWN])
        more = ", …" if len(others) > _NUMBERS_SHOWN else ""
        text = f"and {len(others)} more like it without GPU memory: {numbers}{more}"
        yield Padding(Text(text), (0, 0, 0, 4))
    if holder.advice:
        yield Padding(Text(f"→ {holder.advice}", style="italic"), (0, 0, 0, 4))


def _condensed(holders: Sequence[Holder]) -> Iterator[tuple[Holder, list[Holder]]]:
    """Each holder; of the ones that hold nothing, one per tree with the others behind it."""
    for key, group in groupby(sorted(holders, key=_key), key=_key):
        members = list(group)
        if key[1]:
            yield members[0], members[1:]
        else:
            yield from ((member, []) for member in members)


def _key(holder: Holder) -> tuple[int, bool, int]:
    process = holder.process
    order = list(Verdict).index(holder.verdict)
    if process is None or holder.gpus or holder.verdict not in _SAME:
        return (order, False, 0)
    return (order, True, process.ppid if holder.verdict is Verdict.ZOMBIE else process.session)


def _age(process: HostProcess | None) -> str:
    if process is None or process.age is None:
        return "-"
    for unit, seconds in (("d", 86400), ("h", 3600), ("m", 60)):
        if process.age >= seconds:
            return f"{process.age / seconds:.0f}{unit}"
    return f"{process.age:.0f}s"


def ranges(numbers: Sequence[int]) -> str:
    """`0-3,7` for 0, 1, 2, 3 and 7; `-` for none."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs) or "-"


def watch_census(read: Callable[[], Census], output: Output, schema: str, every: float) -> NoReturn:
    """Show a census again and again until interrupted; JSON and YAML print one after another."""
    from opsctl.cli.output import emit

    if output is not Output.TABLE:
        while True:
            emit(document(read()), output, schema=schema)
            time.sleep(every)
    from rich.live import Live

    with Live(census_table(read()), auto_refresh=False) as live:
        while True:
            time.sleep(every)
            live.update(census_table(read()), refresh=True)
