"""The series that ships: whole, unambiguous, and damaged ones told."""

from __future__ import annotations

import json
import shutil
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from opsctl.errors import OpsctlError, UsageError
from opsctl.patching.series import load, public, read_series

PATCHES = Path(__file__).resolve().parents[3] / "patches"
RELEASES = [(package, version) for package, known in load().releases.items() for version in known]


@pytest.mark.parametrize(("package", "version"), RELEASES)
def test_every_patch_has_exactly_one_word_for_every_release(package: str, version: str) -> None:
    for patch in load().patches:
        if patch.package == package:
            files = [x for x in patch.files if x.covers(version)]
            words = [x for x in patch.entry.otherwise if patch.otherwise(version) == x]
            assert len(files) + len(words) == 1, patch.name


@pytest.mark.parametrize(("package", "version"), RELEASES)
def test_no_two_patches_touch_the_same_file_of_a_release(package: str, version: str) -> None:
    touched = [
        {change.path for change in file.changes}
        for patch in load().patches
        if patch.package == package and (file := patch.file_for(version)) is not None
    ]
    assert all(not one & other for one, other in combinations(touched, 2))


def test_every_file_is_in_a_series_and_every_name_is_one_of_a_kind() -> None:
    named = {x.name for patch in load().patches for x in patch.files}
    assert named == {x.name for x in PATCHES.glob("*/*.patch")}
    names = [x.name for x in load().patches]
    assert len(set(names)) == len(names)


def test_what_a_patch_needs_comes_before_it() -> None:
    assert load().with_needs(["allreduce-fusion"]) == ("allreduce-fusion-jit", "allreduce-fusion")
    assert load().with_needs(["torch-symm-mem", "torch-symm-mem"]) == ("torch-symm-mem",)


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.5.14+cu130", "0.5.14"),
        ("0.5.14", "0.5.14"),
        ("0.6.11.post1+x", "0.6.11.post1"),
        ("0.5.14.dev3+g1234", "0.5.14.dev3"),
        ("not a version", "not a version"),
    ],
)
def test_a_local_version_counts_as_its_release(version: str, release: str) -> None:
    assert public(version) == release


def test_a_name_that_is_none_tells_those_there_are() -> None:
    with pytest.raises(UsageError, match="no patch 'nothing'") as raised:
        load().patch("nothing")
    assert "torch-symm-mem" in str(raised.value.hint)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(PATCHES, tmp_path / "patches")
    return tmp_path / "patches"


def test_a_copy_reads_the_same(copy: Path) -> None:
    assert [x.name for x in read_series(copy).patches] == [x.name for x in load().patches]


def test_a_damaged_series_says_so(copy: Path) -> None:
    def empty() -> None:
        (copy / "sglang/series.yaml").write_text("")

    def no_digests() -> None:
        (copy / "sglang/digests.json").unlink()

    def other_digests() -> None:
        (copy / "sglang/digests.json").write_text("[]")

    def no_patch() -> None:
        next((copy / "sglang").glob("*.patch")).unlink()

    def no_range() -> None:
        _edit(copy, lambda x: x["patches"][2]["otherwise"][0].update(releases="later"))

    def contradicts() -> None:
        _edit(copy, lambda x: x["patches"][0].update(optional=False))

    for damage in (empty, no_digests, other_digests, no_patch, no_range, contradicts):
        shutil.rmtree(copy)
        shutil.copytree(PATCHES, copy)
        damage()
        with pytest.raises(OpsctlError, match="cannot be read"):
            read_series(copy)


def _edit(copy: Path, change: object) -> None:
    path = copy / "sglang/series.yaml"
    document = yaml.safe_load(path.read_text())
    assert callable(change)
    change(document)
    path.write_text(yaml.safe_dump(document))


def test_digests_are_sorted_out_by_patch_release_and_file() -> None:
    known = json.loads((PATCHES / "sglang/digests.json").read_text())
    patch = load().patch("torch-symm-mem")
    for version, files in known["torch-symm-mem"].items():
        for path, (before, after) in files.items():
            assert patch.digests[version][path].released == before
            assert patch.digests[version][path].patched == after
            assert before != after
