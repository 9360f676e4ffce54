"""The folder of a run: what was measured there before, and whether it is the same measurement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opsctl.bench import results
from opsctl.bench.checks import comparable
from opsctl.bench.grid import Grid
from opsctl.bench.measure import Way
from opsctl.bench.results import Cell, Profile, Result
from opsctl.bench.workload import Workload
from opsctl.errors import OpsctlError, UsageError

_MAY_GROW = frozenset({"concurrency", "context", "repeats"})


def described(grid: Grid, way: Way, workload: Workload) -> dict[str, Any]:
    """The run as `result.json` states it."""
    return {
        "loop": "open" if way.timetable else "closed",
        "arrivals": None if way.timetable is None else way.timetable.digest,
        "mode": way.mode,
        "sampling": "greedy, ignore_eos" if way.mode == "throughput" else "greedy, natural ends",
        "output_tokens": way.output_tokens,
        "duration_s": way.extent.duration if way.extent.requests is None else None,
        "requests": way.extent.requests,
        "workload_digest": workload.digest,
        "concurrency": list(grid.concurrencies),
        "context": list(grid.contexts),
        "repeats": grid.repeats,
    }


class Folder:
    """Keeps result.json and the cells in step; every write is atomic."""

    def __init__(self, path: Path, started: Result) -> None:
        self.path = path
        self.result = started

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        environment: Mapping[str, Any],
        workload: Workload,
        salted: bool,
        profiles: Sequence[Profile],
        grid: Mapping[str, Any],
    ) -> Folder:
        """Begin a run or go on with one; raises UsageError when another was measured there."""
        fresh = Result(
            schema=results.SCHEMA,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            environment=environment,
            workload=workload.name,
            salted=salted,
            profiles=tuple(profiles),
            grid=grid,
            complete=False,
        )
        if (path / results.RESULT).exists():
            before = results.load(path)
            if difference := _difference(before, fresh):
                raise UsageError(
                    f"{path} holds another measurement: {difference}",
                    hint="name another directory with --out, or repeat the options of that run",
                )
            fresh = fresh.model_copy(
                update={"started": before.started, "profiles": _joined(before, fresh)}
            )
        folder = cls(path, fresh)
        folder.save(complete=False)
        return folder

    def cells(self) -> list[Cell]:
        """What has been measured."""
        return list(results.cells(self.path))

    def add(self, cell: Cell) -> None:
        """Keep a cell; raises OpsctlError when the disk does not take it."""
        with _told(self.path):
            results.save_cell(self.path, cell)

    def tell(self, profile: Profile) -> None:
        """Take over what a server said about itself."""
        profiles = tuple(profile if x.name == profile.name else x for x in self.result.profiles)
        self.result = self.result.model_copy(update={"profiles": profiles})

    def save(self, *, complete: bool) -> Result:
        """Write result.json. Once all is measured, answers are compared between profiles."""
        if complete:
            for cell in comparable(self.cells()):
                self.add(cell)
        order = {profile.name: place for place, profile in enumerate(self.result.profiles)}
        cells = sorted(
            (cell for cell in self.cells() if cell.profile in order),
            key=lambda c: (order[c.profile], c.context, c.concurrency, c.repeat),
        )
        result = self.result.model_copy(update={"cells": tuple(cells), "complete": complete})
        with _told(self.path):
            results.save_result(self.path, result)
        return result


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OpsctlError(
            f"cannot write to {path}: {error.strerror}",
            hint="make room; the same command goes on with what has been measured",
        ) from error


def _difference(before: Result, now: Result) -> str:
    """What makes two runs different measurements, in words; empty when they go together."""
    if before.workload != now.workload:
        return f"workload {before.workload}, not {now.workload}"
    if before.salted != now.salted:
        return "its prompts were " + ("salted" if before.salted else "not salted")
    for key in sorted((set(before.grid) | set(now.grid)) - _MAY_GROW):
        if before.grid.get(key) != now.grid.get(key):
            return f"{key} {before.grid.get(key)}, not {now.grid.get(key)}"
    known = {profile.name: profile.fingerprint for profile in before.profiles}
    for profile in now.profiles:
        if known.get(profile.name, profile.fingerprint) != profile.fingerprint:
            return f"profile {profile.name!r} has changed since"
    for key in ("host", "driver", "gpus"):
        if before.environment.get(key) != now.environment.get(key):
            return f"{key} {before.environment.get(key)}, not {now.environment.get(key)}"
    return ""


def _joined(before: Result, now: Result) -> tuple[Profile, ...]:
    """Profiles of both, those of an earlier run first, with what their servers had said."""
    known = {profile.name for profile in before.profiles}
    return (*before.profiles, *(x for x in now.profiles if x.name not in known))
