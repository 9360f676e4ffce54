"""States: from digests, one for each patch, whatever lies there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.patching.environment import Environment, Package
from opsctl.patching.headers import read
from opsctl.patching.installed import Applied, File, Installed, Kept, Manifest
from opsctl.patching.record import digest, rewritten
from opsctl.patching.series import Digests, Entry, Patch, Series
from opsctl.patching.states import PatchState, Situation, states

HEAD = """\
Description: two files
Origin: vendor
Forwarded: no
Last-Update: 2026-11-29
License: Apache-2.0
X-Opsctl-Requires: sglang>=1.0,<2.0
 flashinfer-python>=1.0
X-Opsctl-Symbols: sglang/a.py: x
 sglang/b.py: x
---
"""
BODY = "--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
A, B = "sglang/a.py", "sglang/b.py"
OLD, NEW, OLDER, MINE = b"x = 1\n", b"x = 2\n", b"x = 3\n", b"x = 1\n# mine\n"
FILE = read("0001.patch", HEAD + BODY.format(A) + BODY.format(B))
ENTRY = Entry(
    name="two",
    purpose="",
    optional=False,
    caution=None,
    enables=None,
    needs=(),
    instead=None,
    files=("0001.patch",),
    otherwise=(),
)
KNOWN = {x: Digests(digest(OLD), digest(NEW)) for x in (A, B)}
PATCH = Patch("sglang", ENTRY, (FILE,), {"1.0": KNOWN})
CALM = Situation()
SERIES = Series({"sglang": ("1.0",), "flashinfer-python": ("1.0",)}, (PATCH,))


@dataclass(frozen=True)
class Case:
    """What lies there. `noted`: what a manifest says of the two files, if there is one."""

    contents: Mapping[str, bytes | None]
    noted: Mapping[str, bytes] = field(default_factory=dict)
    kept: Mapping[str, bytes] = field(default_factory=dict)
    version: str = "1.0"
    flashinfer: str | None = "1.0"
    record: bytes = b""


def state(case: Case, situation: Situation = CALM) -> PatchState:
    root = Path("/e")
    package = Package("sglang", case.version, root / f"sglang-{case.version}.dist-info")
    packages = {"sglang": package}
    if case.flashinfer:
        packages["flashinfer-python"] = Package("flashinfer-python", case.flashinfer, root / "f")
    files = {
        x: Applied(
            patch="two",
            sha256=digest(y),
            original=Kept(sha256=digest(OLD), mtime_ns=1),
            compiled={},
        )
        for x, y in case.noted.items()
    }
    installed = Installed(
        package=package,
        files={x: File(y, why="" if y else "is missing") for x, y in case.contents.items()},
        compiled={},
        kept={x: File(case.kept.get(x)) for x in case.contents},
        record=case.record,
        manifest=Manifest(version="1.0", files=files, written=()) if files else None,
    )
    environment = Environment(root, None, packages)
    (found,) = states(SERIES, environment, {"sglang": installed}, situation)
    return found


CONTENTS = st.sampled_from([OLD, NEW, OLDER, MINE, None])
NOTED = st.dictionaries(st.sampled_from([A, B]), st.sampled_from([OLD, NEW, OLDER, MINE]))
KEPT = st.dictionaries(st.sampled_from([A, B]), st.sampled_from([OLD, NEW, MINE]))


@given(st.fixed_dictionaries({A: CONTENTS, B: CONTENTS}), NOTED, KEPT)
def test_there_is_one_state_and_it_is_applied_only_when_all_digests_match(
    contents: dict[str, bytes | None], noted: dict[str, bytes], kept: dict[str, bytes]
) -> None:
    found = state(Case(contents, noted, kept))
    there = set(contents.values())
    assert found.state in {"applied", "applicable", "drifted"}
    assert (found.state == "applied") == (there == {NEW})
    if there == {OLD}:
        assert found.state == "applicable"
        assert not found.outdated
    if None in there or any(x == MINE and noted.get(y) != MINE for y, x in contents.items()):
        assert found.state == "drifted"
    if found.state == "applicable" and there != {OLD}:
        assert found.outdated
        unlike = [x for x, y in contents.items() if y not in {OLD, NEW}]
        assert all(noted[x] == contents[x] and kept[x] == OLD for x in unlike)
    assert (found.state == "drifted") == found.left_alone
    assert bool(found.reason) or found.state != "drifted"


@given(st.fixed_dictionaries({A: CONTENTS, B: CONTENTS}), st.booleans(), st.booleans())
def test_nothing_is_applicable_in_a_half_changed_or_used_environment(
    contents: dict[str, bytes | None], unfinished: bool, used: bool
) -> None:
    situation = Situation(unfinished, "pid 7" if used else None)
    found = state(Case(contents), situation)
    if unfinished:
        assert found.state == "drifted"
        assert "interrupted" in found.reason
    elif used:
        assert found.state != "applicable"
        if set(contents.values()) == {OLD}:
            assert found.state == "blocked"
            assert "pid 7" in found.reason
        if set(contents.values()) == {NEW}:
            assert found.state == "applied"


def both(content: bytes) -> dict[str, bytes | None]:
    return {A: content, B: content}


@pytest.mark.parametrize("version", ["1.1", "1.0.dev1", "1.0.post1", "2.0", "odd"])
def test_a_release_that_nobody_looked_at_is_blocked_whatever_its_files_are(version: str) -> None:
    for content in (OLD, NEW, MINE):
        found = state(Case(both(content), version=version))
        assert (found.state, found.unknown) == ("blocked", True)
        assert version in found.reason


def test_what_is_in_is_told_even_without_the_package_that_it_needs() -> None:
    for flashinfer in (None, "0.9"):
        found = state(Case(both(NEW), flashinfer=flashinfer))
        assert found.state == "applied"
        assert f"it needs flashinfer-python>=1.0; {flashinfer or 'none'} is" in found.reason
        assert state(Case(both(OLD), flashinfer=flashinfer)).state == "blocked"
        assert state(Case(both(MINE), flashinfer=flashinfer)).state == "drifted"


def test_reasons_of_drift_say_what_is_where() -> None:
    assert state(Case({A: NEW, B: OLD})).reason == f"{A} is patched; {B} is as released"
    assert f"{B} is missing" in state(Case({A: OLD, B: None})).reason
    told = state(Case({A: OLD, B: MINE})).reason
    assert told.startswith(f"{B} is neither")
    assert told.endswith("the patch is not in, and something else was changed")
    fork = rewritten(f"{B},,\n".encode(), {B: MINE}, {}, ())
    assert "rebuilt or forked" in state(Case({A: OLD, B: MINE}, record=fork)).reason
