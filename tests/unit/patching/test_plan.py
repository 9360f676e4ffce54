"""The plan: made from the wanted end, and nothing when that is there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from opsctl.errors import PreconditionError
from opsctl.patching import plan
from opsctl.patching.environment import Package
from opsctl.patching.headers import read
from opsctl.patching.installed import File, Installed, Manifest
from opsctl.patching.record import digest, digests, paths, rewritten
from opsctl.patching.selection import wanted_names
from opsctl.patching.series import Digests, Entry, Patch
from opsctl.patching.states import PatchState, State

INFO = "sglang-1.0.dist-info"
HEAD = """\
Description: one file
Origin: vendor
Forwarded: no
Last-Update: 2026-11-29
License: Apache-2.0
X-Opsctl-Requires: sglang>=1.0,<2.0
X-Opsctl-Symbols: {0}: x
---
--- a/{0}
+++ b/{0}
@@ -1 +1 @@
-x = 1
+x = 2
"""
A, B = "sglang/a.py", "sglang/b.py"
OLD, NEW = b"x = 1\n", b"x = 2\n"
CODE = {A: "sglang/__pycache__/a.cpython-311.pyc", B: "sglang/__pycache__/b.cpython-311.pyc"}
NOW, THEN = 2_000_000_000, 1_000_000_007


def patch(name: str, path: str, needs: tuple[str, ...] = ()) -> Patch:
    entry = Entry(
        name=name,
        purpose="",
        optional=False,
        caution=None,
        enables=None,
        needs=needs,
        instead=None,
        files=(),
        otherwise=(),
    )
    file = read(f"{name}.patch", HEAD.format(path))
    return Patch("sglang", entry, (file,), {"1.0": {path: Digests(digest(OLD), digest(NEW))}})


PATCHES = (patch("one", A), patch("two", B, needs=("one",)))


def released() -> Installed:
    record = rewritten(b"", {}, {A: OLD, B: OLD, **dict.fromkeys(CODE.values())}, ())
    return Installed(
        package=Package("sglang", "1.0", Path(f"/e/{INFO}")),
        files={A: File(OLD, THEN), B: File(OLD, THEN)},
        compiled={x: {y: File(b"old code", THEN)} for x, y in CODE.items()},
        kept={A: File(None), B: File(None)},
        record=record + f"{INFO}/RECORD,,\n".encode(),
    )


def carried_out(
    installed: Installed, wanted: Iterable[str], alone: Iterable[str] = ()
) -> tuple[Installed, list[plan.Write]]:
    """The package as it is when all has been written."""
    sources = plan.sources(installed, PATCHES, set(wanted), set(alone))
    code = {x.path: {CODE[x.path]: b"new code"} for x in sources if x.patch}
    writes = plan.writes(installed, sources, code, NOW, set(alone))
    now = {x.path: File(x.content, NOW if x.mtime_ns is None else x.mtime_ns) for x in writes}
    start = f"{INFO}/opsctl/original/"
    kept = dict(installed.kept)
    kept |= {x.removeprefix(start): y for x, y in now.items() if x.startswith(start)}
    compiled = {}
    for path, name in CODE.items():
        file = now.get(name, installed.compiled[path].get(name))
        compiled[path] = {name: file} if file is not None and file.content is not None else {}
    manifest = now.get(f"{INFO}/opsctl/manifest.json")
    own = now.get(f"{INFO}/opsctl/RECORD", File(installed.own_record))
    after = replace(
        installed,
        files={x: now.get(x, y) for x, y in installed.files.items()},
        compiled=compiled,
        kept=kept,
        record=now.get(f"{INFO}/RECORD", File(installed.record)).content or b"",
        own_record=own.content,
        manifest=_read(manifest) if manifest else installed.manifest,
    )
    return after, writes


def _read(file: File) -> Manifest | None:
    return Manifest.model_validate_json(file.content) if file.content is not None else None


def same(one: Installed, other: Installed) -> bool:
    """Whether all is as it was; whether a place was looked at where nothing is does not count."""
    kept = [{x: y for x, y in z.kept.items() if y.content is not None} for z in (one, other)]
    parts = ("files", "compiled", "record", "own_record", "manifest")
    return kept[0] == kept[1] and all(getattr(one, x) == getattr(other, x) for x in parts)


@pytest.mark.parametrize(
    "path_taken",
    [
        ["one"],
        ["one two"],
        ["one", "one two", "one"],
        ["one two", "two", "one"],
        ["two", "one two", "one", "two"],
    ],
)
def test_whatever_the_way_the_end_is_the_same(path_taken: list[str]) -> None:
    before = released()
    here = before
    for names in path_taken:
        here, _ = carried_out(here, names.split())
        _is_consistent(here, names.split())
        assert carried_out(here, names.split())[1] == [], "nothing when it is there"
    direct, _ = carried_out(before, path_taken[-1].split())
    assert same(here, direct)
    back, _ = carried_out(here, [])
    assert same(back, before)


def _is_consistent(installed: Installed, names: list[str]) -> None:
    patched = {x for x, name in ((A, "one"), (B, "two")) if name in names}
    assert {x for x, y in installed.files.items() if y.content == NEW} == patched
    assert installed.manifest is not None
    assert set(installed.manifest.files) == patched
    told = digests(installed.record)
    assert all(told[x] == digest(installed.files[x].content or b"") for x in (A, B))
    listed = paths(installed.record)
    assert len(listed) == len(set(listed))
    kept = {x for x, y in installed.kept.items() if y.content is not None}
    assert kept == patched | {CODE[x] for x in patched}
    assert {installed.kept_at(x) for x in kept} <= set(listed)
    assert set(CODE.values()) <= set(listed)


def test_files_of_a_patch_that_is_left_alone_keep_all_that_was_kept_for_them() -> None:
    both, _ = carried_out(released(), ["one", "two"])
    drifted = replace(both, files=both.files | {B: File(b"x = 9\n", NOW)})
    without, writes = carried_out(drifted, [], alone=["two"])
    assert B not in {x.path for x in writes}
    assert without.files[A].content == OLD
    assert without.kept[B].content == OLD
    assert without.manifest is not None
    assert set(without.manifest.files) == {B}
    assert without.kept_at(B) in paths(without.record)
    mended = replace(without, files=without.files | {B: both.files[B]})
    back, _ = carried_out(mended, [])
    assert same(back, released())


def test_an_original_is_had_by_taking_the_patch_back_where_none_was_kept() -> None:
    one, _ = carried_out(released(), ["one"])
    bare = replace(one, manifest=None, kept={A: File(None), B: File(None)}, own_record=None)
    back, _ = carried_out(bare, [])
    assert back.files[A].content == OLD
    assert digests(back.record) == digests(released().record)
    assert not [x for x in paths(back.record) if "/opsctl/" in x]


def test_an_original_that_cannot_be_had_is_said() -> None:
    odd = replace(released(), files={A: File(b"x = 9\n"), B: File(OLD)})
    with pytest.raises(PreconditionError, match="its released content can be had neither"):
        plan.sources(odd, PATCHES, {"one"})


def test_a_patch_that_gives_something_else_than_is_recorded_is_refused() -> None:
    lies = replace(PATCHES[0], digests={"1.0": {A: Digests(digest(OLD), digest(b"x = 3\n"))}})
    with pytest.raises(PreconditionError, match="would not become what is recorded for it"):
        plan.sources(released(), [lies], {"one"})


def test_another_opsctls_files_are_given_back() -> None:
    one, _ = carried_out(released(), ["one", "two"])
    found = plan.sources(one, [PATCHES[0]], {"one"})
    assert [(x.path, x.patch, x.content) for x in found] == [(A, "one", NEW), (B, None, OLD)]


def found(*states: State) -> list[PatchState]:
    return [PatchState(x, y, "why") for x, y in zip(PATCHES, states, strict=True)]


def test_what_is_applied_stays_and_what_can_be_is_added() -> None:
    assert wanted_names(found("applied", "applicable"), {"two"}, apply=True) == ["one", "two"]
    assert wanted_names(found("applied", "applicable"), {"one"}, apply=True) == ["one"]
    assert wanted_names(found("superseded", "not needed"), {"one", "two"}, apply=True) == []
    assert wanted_names(found("applied", "drifted"), {"one"}, apply=True) == ["one"]


@pytest.mark.parametrize("apply", [True, False])
def test_drift_in_the_selection_is_refused_and_every_one_is_named(apply: bool) -> None:
    with pytest.raises(PreconditionError) as raised:
        wanted_names(found("drifted", "drifted"), {"one", "two"}, apply)
    assert "one is drifted: why" in str(raised.value)
    assert "two is drifted: why" in str(raised.value)


def test_what_is_blocked_is_in_the_way_of_applying_only_unless_nothing_is_known_of_it() -> None:
    with pytest.raises(PreconditionError, match="two is blocked"):
        wanted_names(found("applied", "blocked"), {"one", "two"}, apply=True)
    assert wanted_names(found("applied", "blocked"), {"one", "two"}, apply=False) == []
    unknown = [replace(x, unknown=True) for x in found("blocked", "blocked")]
    with pytest.raises(PreconditionError, match="one is blocked"):
        wanted_names(unknown, {"one"}, apply=False)


def test_what_another_needs_is_not_taken_back_alone() -> None:
    with pytest.raises(PreconditionError, match="two needs one"):
        wanted_names(found("applied", "applied"), {"one"}, apply=False)
    assert wanted_names(found("applied", "applied"), {"two"}, apply=False) == ["one"]
    assert wanted_names(found("applied", "applied"), {"one", "two"}, apply=False) == []


def test_an_older_edition_stays_while_others_are_taken_back() -> None:
    one, two = found("applicable", "applied")
    assert wanted_names([replace(one, outdated=True), two], {"two"}, apply=False) == ["one"]
