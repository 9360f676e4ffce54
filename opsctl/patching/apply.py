"""Applies patches to an environment and takes them back: all that is asked for, or nothing."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from opsctl.errors import PreconditionError, TemporaryError
from opsctl.patching import jit_cache, occupants, plan, selection, verify
from opsctl.patching.compile import compiled
from opsctl.patching.environment import Environment
from opsctl.patching.headers import PatchFile
from opsctl.patching.installed import KEPT, Installed, read
from opsctl.patching.series import Patch, Series
from opsctl.patching.states import PatchState, Situation, states
from opsctl.system import transaction
from opsctl.system.transaction_files import strays

FLASHINFER = "flashinfer-python"
Running = Callable[[Environment], str | None]


@dataclass(frozen=True)
class Edit:
    """A source file before and after."""

    path: str
    before: bytes
    after: bytes


@dataclass(frozen=True)
class Outcome:
    """What became of an environment, or would."""

    states: tuple[PatchState, ...]
    edits: tuple[Edit, ...] = ()
    wiped: tuple[Path, ...] = ()
    taken_back: bool = False
    """A change that had been interrupted was taken back first."""


@dataclass(frozen=True)
class _Aim:
    """Which patches shall be applied in the end, and how all were found."""

    wanted: Collection[str]
    found: Sequence[PatchState]

    @property
    def alone(self) -> frozenset[str]:
        return frozenset(x.patch.name for x in self.found if x.left_alone)


@dataclass(frozen=True)
class _Planned:
    edits: tuple[Edit, ...]
    writes: tuple[plan.Write, ...]
    stale: tuple[Path, ...]


def look(
    series: Series, environment: Environment, running: Running = occupants.running
) -> tuple[PatchState, ...]:
    """Return the state of every patch; changes nothing."""
    return _states(series, environment, read(environment, series), running(environment))


def check(
    series: Series, environment: Environment, running: Running = occupants.running
) -> tuple[tuple[PatchState, ...], tuple[verify.Finding, ...]]:
    """Return the state of every patch, and what is wrong with those that are applied."""
    installed = read(environment, series)
    found = _states(series, environment, installed, running(environment))
    return found, verify.findings(found, installed)


def preview(series: Series, environment: Environment, names: Collection[str]) -> tuple[Edit, ...]:
    """Return what applying those of the named patches that can be applied would change."""
    installed = read(environment, series)
    found = _states(series, environment, installed, None)
    ready = {x.patch.name for x in found if x.patch.name in names and x.state == "applicable"}
    wanted = selection.wanted_names(found, ready, apply=True)
    return _planned(series, environment, installed, _Aim(wanted, found), ()).edits


def change(
    series: Series,
    environment: Environment,
    names: Collection[str],
    *,
    apply: bool,
    dry_run: bool = False,
    caches: Sequence[Path] = (),
    running: Running = occupants.running,
) -> Outcome:
    """Apply patches, or take them back. `caches` are FlashInfer's JIT caches.

    Raises PreconditionError, with everything as before, for a patch of the selection that has
    drifted or is blocked, while an engine runs from the environment, and when a file cannot be
    written; TemporaryError while another opsctl is at work there.
    """
    with _locked(environment):
        user = running(environment)
        taken_back = _taken_back(environment, user, dry_run)
        installed = read(environment, series)
        before = _states(series, environment, installed, user)
        aim = _Aim(selection.wanted_names(before, names, apply), before)
        planned = _planned(series, environment, installed, aim, caches)
        if dry_run:
            return Outcome(before, planned.edits, planned.stale)
        if not planned.writes:
            _tidy(environment, installed)
            return Outcome(before, (), (), taken_back)
        _refuse_in_use(environment, user)
        _carry_out(series, environment, planned, aim)
        _tidy(environment, installed)
        after = _states(series, environment, read(environment, series), None)
        return Outcome(after, planned.edits, planned.stale, taken_back)


def _taken_back(environment: Environment, user: str | None, dry_run: bool) -> bool:
    """Take back an interrupted change, if there is one."""
    if os.path.lexists(environment.journal):
        if dry_run:
            raise PreconditionError(
                f"a change of {environment.root} was interrupted: what is there is neither old nor "
                "new",
                hint="without --dry-run it is taken back first",
            )
        _refuse_in_use(environment, user)
    return not dry_run and transaction.recover(environment.journal, root=environment.root)


def _refuse_in_use(environment: Environment, user: str | None) -> None:
    if user is not None:
        raise PreconditionError(
            f"nothing was changed: an engine runs from {environment.root}: {user}",
            hint="ranks load modules late, so that some would get other code: stop it first",
        )


def _states(
    series: Series,
    environment: Environment,
    installed: Mapping[str, Installed],
    running: str | None,
) -> tuple[PatchState, ...]:
    situation = Situation(os.path.lexists(environment.journal), running)
    return states(series, environment, installed, situation)


def _planned(
    series: Series,
    environment: Environment,
    installed: Mapping[str, Installed],
    aim: _Aim,
    caches: Sequence[Path],
) -> _Planned:
    edits: list[Edit] = []
    writes: list[plan.Write] = []
    globs: set[str] = set()
    now = time.time_ns()
    for name, package in installed.items():
        patches = [x for x in series.patches if x.package == name]
        goals = plan.sources(package, patches, aim.wanted, aim.alone)
        new = [x for x in goals if x.content != package.files[x.path].content]
        patched = {x.path: x.content for x in new if x.patch is not None}
        code = compiled(environment.python, environment.root, patched, now)
        writes += plan.writes(package, goals, code, now, aim.alone)
        edits += [Edit(x.path, package.files[x.path].content or b"", x.content) for x in new]
        for file in _files(package, patches):
            own = [x for x in new if x.path in file.symbols]
            globs |= {file.wipe} if own and file.wipe else set()
            for source in own:
                _refuse_other_symbols(source, file)
    flashinfer = environment.packages.get(FLASHINFER)
    version = flashinfer.version if flashinfer is not None else None
    stale = jit_cache.builds(caches, version, globs) if version else []
    return _Planned(tuple(edits), tuple(writes), tuple(stale))


def _files(package: Installed, patches: Sequence[Patch]) -> list[PatchFile]:
    version = package.package.version or ""
    return [file for patch in patches if (file := patch.file_for(version)) is not None]


def _refuse_other_symbols(source: plan.Source, file: PatchFile) -> None:
    """Raise PreconditionError when a patch would change more, or other things, than it says."""
    if source.patch is None:
        return
    for what in verify.wrong_symbols(source.original, source.content, file.symbols[source.path]):
        raise PreconditionError(f"nothing was changed: {file.name}: {source.path}: {what}")


def _carry_out(series: Series, environment: Environment, planned: _Planned, aim: _Aim) -> None:
    root = environment.root
    changes = [transaction.FileChange(root / x.path, x.content, x.mtime_ns) for x in planned.writes]
    with jit_cache.put_aside(planned.stale):
        transaction.apply(
            changes,
            environment.journal,
            root=root,
            check=lambda: _whole(series, environment, aim),
        )


def _whole(series: Series, environment: Environment, aim: _Aim) -> None:
    """Raise PreconditionError unless what is on disk now is what was meant."""
    installed = read(environment, series)
    now = states(series, environment, installed)
    told = [
        f"{x.patch}: {x.path} {x.what}"
        for x in verify.findings(now, installed)
        if x.patch not in aim.alone
    ]
    told += [
        f"{x.patch.name} is {x.state}"
        for x in now
        if x.patch.name not in aim.alone and (x.state == "applied") != (x.patch.name in aim.wanted)
    ]
    if told:
        raise PreconditionError(f"nothing was changed: the result was not whole: {'; '.join(told)}")


def _tidy(environment: Environment, installed: Mapping[str, Installed]) -> None:
    """Remove what a killed run left beside the files, and folders that have become empty."""
    root, emptied = environment.root, list[Path]()
    folders = {root}
    for package in installed.values():
        kept = root / package.info / KEPT
        emptied += [Path(place) for place, _, _ in os.walk(kept, topdown=False)]
        caches = {(root / path).parent / "__pycache__" for path in package.files}
        emptied += sorted(caches)
        folders |= {kept.parent, *emptied, *caches, *(x.parent for x in caches)}
    with contextlib.suppress(OSError):
        for stray in strays(folders, environment.journal):
            stray.unlink()
    for folder in emptied:
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextmanager
def _locked(environment: Environment) -> Iterator[None]:
    """Hold the folder itself locked: that leaves no file behind, and needs no right to write."""
    descriptor = os.open(environment.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TemporaryError(
                f"another opsctl is patching {environment.root}", hint="try again when it is done"
            ) from error
        yield
    finally:
        with contextlib.suppress(OSError):
            os.close(descriptor)
