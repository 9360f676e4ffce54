"""`opsctl patch` on the files of every SGLang release, with the FlashInfer that it pins."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from opsctl.patching.record import digest, paths
from opsctl.patching.series import load
from tests.support.patch_targets import (
    NO_CACHE,
    PINS,
    byte_code,
    compile_all,
    difference,
    info,
    packages,
    patch,
    photograph,
    record_lies,
    small,
    touched,
    whole,
)
from tests.support.serving import OPSCTL


@pytest.mark.parametrize("version", PINS)
def test_every_release_is_patched_and_comes_back_to_the_byte(tmp_path: Path, version: str) -> None:
    root = whole(tmp_path, version)
    for package, release in packages(version):
        compile_all(root, package, release)
    before = photograph(root)

    first = patch("status", "--site-packages", root)
    assert first.code == 0, first.err
    assert first.document["package_versions"] == dict(packages(version))
    ready = {name for name, state in first.states.items() if state == "applicable"}
    assert ready == {name for name in first.states if _has_file(name, version)}
    assert difference(before, photograph(root)) == [], "looking changes nothing"

    applied = patch("apply", "--all", "--site-packages", root)
    assert applied.code == 0, applied.err
    assert applied.states == {
        name: "applied" if name in ready else state for name, state in first.states.items()
    }
    assert sorted(applied.document["changed"]) == sorted(_wanted(root, version))
    assert record_lies(root) == []
    verified = patch("verify", "--site-packages", root)
    assert (verified.code, verified.document["findings"]) == (0, [])

    again = patch("apply", "--all", "--site-packages", root)
    assert (again.code, again.document["changed"]) == (0, [])

    reverted = patch("revert", "--all", "--site-packages", root)
    assert reverted.code == 0, reverted.err
    assert reverted.states == first.states
    assert difference(before, photograph(root)) == []


def _has_file(name: str, version: str) -> bool:
    """Whether the series has a patch file for what is installed; read from the series itself."""
    entry = load().patch(name)
    return entry.file_for(dict(packages(version))[entry.package]) is not None


def _wanted(root: Path, version: str) -> list[str]:
    """The files to be changed; each is now what `digests.json` records for it."""
    found = []
    for package, release in packages(version):
        for entry in load().patches:
            if entry.package != package:
                continue
            for path, known in entry.digests.get(release, {}).items():
                assert digest((root / path).read_bytes()) == known.patched, path
                found.append(path)
    return found


def test_recorded_digests_cover_every_release_that_has_a_patch_file() -> None:
    for entry in load().patches:
        for release in load().releases[entry.package]:
            file = entry.file_for(release)
            known = entry.digests.get(release, {})
            assert set(known) == {x.path for x in file.changes} if file else not known


def test_the_words_and_the_shape_are_those_that_scripts_rely_on(tmp_path: Path) -> None:
    root = small(tmp_path)
    answer = patch("status", "--site-packages", root)
    assert next(iter(answer.document)) == "schema"
    assert answer.document["schema"] == "opsctl/patch/v1"
    assert all(set(x) == {"name", "package", "state", "reason"} for x in answer.document["patches"])
    assert answer.states == {
        "allreduce-fusion": "applicable",
        "allreduce-fusion-jit": "applicable",
        "deepgemm-scales": "superseded",
        "kimi-k25-eagle3": "superseded",
        "torch-symm-mem": "applicable",
    }


def test_a_real_process_applies_shows_and_takes_back(tmp_path: Path) -> None:
    root = small(tmp_path)
    before = photograph(root)

    def opsctl(*words: str) -> subprocess.CompletedProcess[str]:
        asked = [str(OPSCTL), "patch", *words, "--python", str(tmp_path / "bin/python")]
        return subprocess.run(
            asked,
            env={**os.environ, **NO_CACHE},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    tried = opsctl("apply", "--only", "torch-symm-mem", "--dry-run", "--diff", "-o", "json")
    assert tried.returncode == 3, tried.stderr
    assert json.loads(tried.stdout)["dry_run"] is True
    assert "+++ b/sglang/srt/distributed/device_communicators/torch_symm_mem.py" in tried.stderr
    assert difference(before, photograph(root)) == []

    done = opsctl("apply", "--only", "torch-symm-mem", "-o", "json")
    assert done.returncode == 0, done.stderr
    states = {x["name"]: x["state"] for x in json.loads(done.stdout)["patches"]}
    assert states["torch-symm-mem"] == "applied"
    assert states["allreduce-fusion"] == "applicable", "only what was asked for"
    assert "Measure before trusting" in done.stderr
    assert opsctl("apply", "--only", "torch-symm-mem", "--dry-run").returncode == 0
    assert opsctl("revert", "--all", "--dry-run").returncode == 3

    back = opsctl("revert", "--all")
    assert back.returncode == 0, back.stderr
    assert difference(before, photograph(root)) == []
    assert opsctl("revert", "--all", "--dry-run").returncode == 0


def test_what_a_patch_needs_comes_with_it_and_stays_while_it_is_needed(tmp_path: Path) -> None:
    root = small(tmp_path)
    before = photograph(root)
    done = patch("apply", "--only", "allreduce-fusion", "--site-packages", root)
    assert done.states["allreduce-fusion-jit"] == "applied"
    refused = patch("revert", "--only", "allreduce-fusion-jit", "--site-packages", root)
    assert refused.code == 4
    assert "allreduce-fusion needs allreduce-fusion-jit" in refused.err
    both = ("--only", "allreduce-fusion", "--only", "allreduce-fusion-jit")
    assert patch("revert", *both, "--site-packages", root).code == 0
    assert difference(before, photograph(root)) == []


def test_one_of_two_patches_can_be_taken_back_alone(tmp_path: Path) -> None:
    root = small(tmp_path)
    alone = photograph(root)
    assert patch("apply", "--only", "torch-symm-mem", "--site-packages", root).code == 0
    one = patch("revert", "--all", "--site-packages", root)
    assert one.code == 0
    assert patch("apply", "--all", "--site-packages", root).code == 0
    assert patch("revert", "--only", "torch-symm-mem", "--site-packages", root).code == 0
    assert record_lies(root) == []
    left = [x for x in paths((info(root) / "RECORD").read_bytes()) if "torch_symm_mem" in x]
    name = "sglang/srt/distributed/device_communicators/torch_symm_mem.py"
    assert sorted(left) == sorted([name, byte_code(name)])
    assert patch("verify", "--site-packages", root).document["findings"] == []
    assert patch("revert", "--all", "--site-packages", root).code == 0
    assert difference(alone, photograph(root)) == []


def test_every_kept_file_and_the_manifest_are_listed_in_record(tmp_path: Path) -> None:
    root = small(tmp_path)
    assert patch("apply", "--all", "--site-packages", root).code == 0
    for package, version in packages("0.5.14"):
        folder = info(root, package)
        listed = set(paths((folder / "RECORD").read_bytes()))
        kept = {str(x.relative_to(root)) for x in folder.rglob("*") if x.is_file()}
        assert kept <= listed
        for path in touched(package, version):
            assert f"{folder.name}/opsctl/original/{path}" in kept
            assert f"{folder.name}/opsctl/original/{byte_code(path)}" in kept
            assert (root / byte_code(path)).is_file()
