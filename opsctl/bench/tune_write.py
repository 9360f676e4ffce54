"""Writing what was tuned: surfaces and the adaptive file first, then `conf.d/90-tuned.yaml`.

In this order, and each file as a whole, so that a run that is killed half-way leaves a
configuration that names nothing that is not there. The drop-in is checked as part of the whole
configuration before it takes its place.
"""

from __future__ import annotations

import difflib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from opsctl.autospec import adaptive_files, surface_files
from opsctl.autospec.surface import Surface, SurfaceError, dump
from opsctl.bench.tune import Tuning
from opsctl.config.load import load
from opsctl.config.schema import Config
from opsctl.errors import OpsctlError, PartlyAppliedError, PreconditionError
from opsctl.system.files import write_atomic

DROP_IN = "90-tuned.yaml"
FIRST_LINE = "# Written by `opsctl tune`, and by its next run anew. Remove it to take it back."
ADAPTIVE = "-adaptive"
"""Ending of the name of the profile whose engine adapts by itself."""


@dataclass(frozen=True)
class Change:
    """One file: what it holds now (None: it is not there) and what it is to hold."""

    path: Path
    before: str | None
    after: str

    @property
    def state(self) -> Literal["new", "changed", "same"]:
        """What happens to it."""
        if self.before is None:
            return "new"
        return "same" if self.before == self.after else "changed"

    def diff(self) -> str:
        """Return the changed lines as a unified diff."""
        before = (self.before or "").splitlines(keepends=True)
        name = str(self.path)
        old = "/dev/null" if self.before is None else name
        return "".join(difflib.unified_diff(before, self.after.splitlines(True), old, name))


@dataclass(frozen=True)
class Places:
    """Where things go."""

    files: Sequence[Path]
    """Those of the configuration, the main file first."""
    state_dir: Path

    @property
    def drop_in(self) -> Path:
        """The file in `conf.d` beside the main file."""
        return self.files[0].parent / "conf.d" / DROP_IN


def changes(
    tuning: Tuning, config: Config, places: Places, environment: Mapping[str, str]
) -> tuple[Change, ...]:
    """Return every file to be written, in order; the drop-in is the last, where there is one.

    Raises PreconditionError when it would not come into force, or a file of that name is not
    opsctl's own; ConfigError when the configuration would not be valid with it.
    """
    found = [_surface(measured, places) for measured in tuning.surfaces.values()]
    if not tuning.decides:
        return tuple(found)
    adaptive = None
    if tuning.adaptive.slots:
        adaptive = adaptive_files.path_of(
            places.state_dir, config.auto_spec.speculative, tuning.adaptive
        )
        found.append(Change(adaptive, _text(adaptive), tuning.adaptive.text()))
    drop_in = Change(
        places.drop_in, _text(places.drop_in), drop_in_text(tuning, config, places, adaptive)
    )
    if drop_in.before is not None and not drop_in.before.startswith(FIRST_LINE):
        raise PreconditionError(
            f"{drop_in.path} was not written by `opsctl tune`", hint="give it another name"
        )
    _check(drop_in.after, tuning, config, places, environment)
    return (*found, drop_in)


def write(found: Sequence[Change]) -> None:
    """Write what is not the same.

    Raises OpsctlError when the first file cannot be written, PartlyAppliedError when a later one
    cannot.
    """
    written = 0
    for change in found:
        if change.state == "same":
            continue
        try:
            change.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(change.path, change.after, mode=0o644)
        except OSError as error:
            failed = PartlyAppliedError if written else OpsctlError
            raise failed(
                f"{change.path}: cannot be written: {error.strerror}",
                hint=f"{written} files were written before it; mend that and run it again",
            ) from error
        written += 1


def stale(tuning: Tuning, places: Places) -> bool:
    """Whether an earlier drop-in still sets what this measurement no longer bears out."""
    return not tuning.decides and places.drop_in.exists()


def drop_in_text(tuning: Tuning, config: Config, places: Places, adaptive: Path | None) -> str:
    """Return the drop-in: where its numbers come from as comments, then the keys it sets."""
    content: dict[str, Any] = {}
    if tuning.marks.found:
        marks = {"high": tuning.marks.high, "low": tuning.marks.low}
        content["auto_spec"] = {"sustained_load": marks}
    if adaptive is not None:
        name = config.auto_spec.speculative
        path = str(adaptive).replace("$", "$$")  # a lone `$` would be read as a variable
        flags = {"speculative-adaptive": True, "speculative-adaptive-config": path}
        content["profiles"] = {name + ADAPTIVE: {"extends": name, "flags": flags}}
    comments = "".join(f"# {_one_line(line)}\n" for line in _origin(tuning, places))
    return f"{FIRST_LINE}\n{comments}{yaml.safe_dump(content, sort_keys=False)}"


def _origin(tuning: Tuning, places: Places) -> Iterator[str]:
    pair = tuning.pair
    for measured in (pair.profile, pair.baseline):
        surface = tuning.surfaces[measured.profile.name]
        results = ", ".join(f"{x['name']} ({x['started']})" for x in surface.provenance.results)
        yield f"{surface.profile} {surface.fingerprint}: measured in {results}"
        yield f"  surface: {surface_files.path_of(places.state_dir, surface.profile)}"
    yield f"workload: {pair.workload}"
    yield f"finding: {pair.finding}"
    if not tuning.marks.found:
        yield f"no marks: {tuning.marks.why_not}"


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


def _surface(measured: Surface, places: Places) -> Change:
    """A surface that is there already keeps the time it was written, when nothing else differs."""
    path = surface_files.path_of(places.state_dir, measured.profile)
    before = _text(path)
    try:
        last = surface_files.load(places.state_dir, measured.profile)
    except SurfaceError:
        last = None
    if last is not None:
        written = {"written": last.provenance.written}
        same = measured.provenance.model_copy(update=written)
        if measured.model_copy(update={"provenance": same}) == last:
            return Change(path, before, before or "")
    return Change(path, before, dump(measured))


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _check(
    text: str, tuning: Tuning, config: Config, places: Places, environment: Mapping[str, str]
) -> None:
    """Load the configuration with the drop-in in its place, from a copy."""
    with tempfile.TemporaryDirectory(prefix="opsctl-tune-") as folder:
        copy = Path(folder) / DROP_IN
        copy.write_text(text, encoding="utf-8")
        main, *others = (path for path in places.files if path != places.drop_in)
        drop_ins = sorted([*others, copy], key=lambda path: path.name)
        loaded = load((main, *drop_ins), environment=environment).config
    marks = loaded.auto_spec.sustained_load
    if tuning.marks.found and (marks.low, marks.high) != (tuning.marks.low, tuning.marks.high):
        raise PreconditionError(
            f"another file in {places.drop_in.parent} sets `auto_spec.sustained_load` after "
            f"{DROP_IN}",
            hint="remove those keys there",
        )
