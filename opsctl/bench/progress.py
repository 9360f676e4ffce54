"""What a person sees of a run: a bar with the time left on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from opsctl.bench.grid import Spot
from opsctl.bench.results import Cell


class Shown:
    """Progress on stderr. To be entered; `tell` prints a line when there is no terminal."""

    def __init__(
        self,
        tell: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        console: Console | None = None,
    ) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._tell = self._print if self._console.is_terminal else tell
        self._clock = clock
        self._begun = clock()
        self._total = self._done = self._before = 0
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console, disable=not self._console.is_terminal, transient=True,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=None, left="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def begin(self, cells: int, done: int) -> None:
        """So many cells in all, so many of them measured before."""
        self._total, self._done, self._before = cells, done, done
        self._begun = self._clock()
        self._bar.update(self._task, total=cells, completed=done)
        if done:
            self.say(f"{done} of {cells} cells were measured before")

    def say(self, line: str) -> None:
        """Something that happened."""
        self._tell(line)

    def measuring(self, spot: Spot) -> None:
        """A cell is begun."""
        what = f"{spot.profile} x{spot.concurrency} context {spot.context}"
        self._bar.update(self._task, description=what)

    def measured(self, cell: Cell) -> None:
        """A cell is kept."""
        self._done += 1
        left = self._left()
        self._bar.update(self._task, completed=self._done, left=left)
        verdict = (
            f"{cell.throughput_tok_s:.1f} tok/s, {cell.per_user_tok_s:.1f} per stream"
            if cell.valid
            else cell.reason
        )
        self.say(
            f"{cell.profile} x{cell.concurrency} context {cell.context} "
            f"repeat {cell.repeat + 1}: {verdict}  [{self._done}/{self._total}, {left}]"
        )

    def _print(self, line: str) -> None:
        # What a server said may look like markup.
        self._console.print(line, markup=False)

    def _left(self) -> str:
        """Time left, as if the cells to come took as long as those of this run."""
        measured = self._done - self._before
        seconds = (self._clock() - self._begun) / measured * (self._total - self._done)
        return f"{_rough(seconds)} left" if self._done < self._total else "all done"


def _rough(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
