"""`opsctl patch` where somebody else was there first, or the disk is not as it should be."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.patching.record import digest, digests, paths, rewritten
from opsctl.patching.series import load
from tests.support.patch_targets import (
    NO_CACHE,
    TAG,
    Answer,
    Photograph,
    all_touched,
    byte_code,
    difference,
    info,
    patch,
    photograph,
    record_lies,
    small,
)

ROOT = Path(__file__).resolve().parents[2]
SYMM_MEM = "sglang/srt/distributed/device_communicators/torch_symm_mem.py"
UTILS = "sglang/srt/distributed/device_communicators/all_reduce_utils.py"
NOBODY = 65534


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """SGLang 0.5.14 and its FlashInfer, as far as patches reach, with byte code."""
    return small(tmp_path)


def status(root: Path) -> Answer:
    answer = patch("status", "--site-packages", root)
    assert answer.code == 0, answer.err
    return answer


def apply(root: Path, *words: object) -> Answer:
    return patch("apply", *(words or ("--all",)), "--site-packages", root)


def revert(root: Path, *words: object) -> Answer:
    return patch("revert", *(words or ("--all",)), "--site-packages", root)


def refuses(root: Path, change: Callable[[Path], Answer], said: str) -> None:
    """It is refused with exit code 4 and these words, and nothing is touched."""
    before = photograph(root)
    answer = change(root)
    assert answer.code == 4, answer.err
    assert said in answer.err
    assert "unexpected" not in answer.err
    assert difference(before, photograph(root)) == []


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) >= 1
    path.write_text(text.replace(old, new, 1))


def test_a_changed_line_is_drift_and_is_refused(root: Path) -> None:
    edit(root / SYMM_MEM, "import logging\n", "import logging  # mine\n")
    told = status(root)
    assert told.states["torch-symm-mem"] == "drifted"
    assert "the patch is not in, and something else was changed" in told.reasons["torch-symm-mem"]
    refuses(root, apply, "torch-symm-mem is drifted")
    refuses(root, revert, "torch-symm-mem is drifted")


def test_a_changed_line_after_patching_is_drift_and_is_refused(root: Path) -> None:
    assert apply(root).code == 0
    edit(root / SYMM_MEM, "import logging\n", "import logging  # mine\n")
    told = status(root)
    assert told.states["torch-symm-mem"] == "drifted"
    assert "the patch is in, and something else was changed" in told.reasons["torch-symm-mem"]
    refuses(root, apply, "torch-symm-mem is drifted")
    refuses(root, revert, "torch-symm-mem is drifted")
    assert patch("verify", "--site-packages", root).code == 4


def test_a_drifted_file_keeps_no_other_patch_from_being_applied_and_taken_back(root: Path) -> None:
    edit(root / SYMM_MEM, "import logging\n", "import logging  # mine\n")
    before = photograph(root)
    assert patch("status", "--diff", "--site-packages", root).code == 0
    done = apply(root, "--only", "allreduce-fusion")
    assert done.code == 0, done.err
    assert done.states["allreduce-fusion"] == "applied"
    assert done.states["torch-symm-mem"] == "drifted"
    back = revert(root, "--only", "allreduce-fusion", "--only", "allreduce-fusion-jit")
    assert back.code == 0, back.err
    assert difference(before, photograph(root)) == []


def test_what_drifted_after_patching_keeps_no_other_patch_and_loses_nothing(root: Path) -> None:
    before = photograph(root)
    assert apply(root).code == 0
    patched = (root / SYMM_MEM).read_bytes()
    edit(root / SYMM_MEM, "import logging\n", "import logging  # mine\n")
    back = revert(root, "--only", "allreduce-fusion", "--only", "allreduce-fusion-jit")
    assert back.code == 0, back.err
    assert back.states["torch-symm-mem"] == "drifted"
    assert b"# mine" in (root / SYMM_MEM).read_bytes()
    kept = info(root) / "opsctl/original" / SYMM_MEM
    assert str(kept.relative_to(root)) in paths((info(root) / "RECORD").read_bytes())
    (root / SYMM_MEM).write_bytes(patched)
    assert status(root).states["torch-symm-mem"] == "applied"
    assert revert(root).code == 0
    assert difference(before, photograph(root)) == []


def test_a_patch_done_by_hand_in_one_of_two_files_is_drift(root: Path) -> None:
    assert apply(root).code == 0
    by_hand = (root / UTILS).read_bytes()
    assert revert(root).code == 0
    (root / UTILS).write_bytes(by_hand)
    told = status(root)
    assert told.states["torch-symm-mem"] == "drifted"
    assert f"{UTILS} is patched" in told.reasons["torch-symm-mem"]
    assert f"{SYMM_MEM} is as released" in told.reasons["torch-symm-mem"]
    refuses(root, apply, "torch-symm-mem is drifted")


def test_a_patch_done_by_hand_in_every_file_is_applied_and_can_be_taken_back(root: Path) -> None:
    before = photograph(root)
    names = all_touched()
    assert apply(root).code == 0
    by_hand = {name: (root / name).read_bytes() for name in names}
    assert revert(root).code == 0
    for name, content in by_hand.items():
        (root / name).write_bytes(content)
    assert set(status(root).states.values()) == {"applied", "superseded"}
    verified = patch("verify", "--site-packages", root)
    assert verified.code == 4
    assert "its original is not kept" in verified.err
    assert revert(root).code == 0
    _as_released(root, before)


def test_a_missing_file_is_drift(root: Path) -> None:
    (root / SYMM_MEM).unlink()
    assert f"{SYMM_MEM} is missing" in status(root).reasons["torch-symm-mem"]
    refuses(root, apply, "is missing")


def test_a_symbolic_link_in_place_of_a_file_is_drift_and_is_not_followed(
    root: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere.py"
    (root / SYMM_MEM).rename(elsewhere)
    (root / SYMM_MEM).symlink_to(elsewhere)
    content = elsewhere.read_bytes()
    assert "is not a regular file" in status(root).reasons["torch-symm-mem"]
    refuses(root, apply, "is not a regular file")
    assert elsewhere.read_bytes() == content


def test_a_folder_that_leads_out_of_site_packages_is_refused(root: Path, tmp_path: Path) -> None:
    folder = root / "sglang/srt/distributed"
    folder.rename(tmp_path / "shared")
    folder.symlink_to(tmp_path / "shared")
    outside = photograph(tmp_path / "shared")
    refuses(root, apply, "is no file below")
    assert difference(outside, photograph(tmp_path / "shared")) == []


def test_a_fork_whose_record_agrees_is_drift_and_is_told_as_a_fork(root: Path) -> None:
    edit(root / SYMM_MEM, "import logging\n", "import logging  # our fork\n")
    record = info(root) / "RECORD"
    content = (root / SYMM_MEM).read_bytes()
    record.write_bytes(rewritten(record.read_bytes(), {SYMM_MEM: content}, {}, ()))
    assert "a rebuilt or forked package" in status(root).reasons["torch-symm-mem"]
    refuses(root, apply, "torch-symm-mem is drifted")


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ("{", "cut off"),
        ("", "empty"),
        ("[]", "another shape"),
        ('{"format": 2}', "of a later opsctl"),
        ('{"version": "0.5.14", "files": {"../../x.py": {}}, "written": []}', "leads out"),
        (None, "gone"),
    ],
)
def test_whatever_became_of_the_manifest_the_digests_decide(
    root: Path, damage: str | None, why: str
) -> None:
    before = photograph(root)
    assert apply(root).code == 0
    manifest = info(root) / "opsctl/manifest.json"
    if damage is None:
        manifest.unlink()
    else:
        manifest.write_text(damage)
    assert status(root).states["torch-symm-mem"] == "applied", why
    assert revert(root).code == 0
    _as_released(root, before)


def _as_released(root: Path, before: Photograph) -> None:
    """Every file as before, but for times and byte code that nobody knows any more."""
    now = photograph(root)
    assert not list(root.rglob("opsctl")), sorted(map(str, root.rglob("opsctl/**")))
    assert record_lies(root) == []
    names = all_touched()
    caches = {*map(byte_code, names), *(str(Path(byte_code(name)).parent) for name in names)}
    assert set(difference(before, now)) <= names | caches
    assert {x: now[x][-1] for x in names} == {x: before[x][-1] for x in names}


def test_a_lying_manifest_makes_nothing_applied_and_writes_nowhere_else(root: Path) -> None:
    assert apply(root).code == 0
    edit(root / SYMM_MEM, "import logging\n", "import logging  # mine\n")
    manifest = info(root) / "opsctl/manifest.json"
    text = manifest.read_text()
    shas = re.findall(r"[0-9a-f]{64}", text)
    mine = digest((root / SYMM_MEM).read_bytes())
    for sha in set(shas):
        text = text.replace(sha, mine)
    manifest.write_text(text)
    assert status(root).states["torch-symm-mem"] != "applied"


def test_a_manifest_of_other_original_contents_is_not_believed(root: Path) -> None:
    before = photograph(root)
    assert apply(root).code == 0
    kept = info(root) / "opsctl/original" / SYMM_MEM
    kept.write_bytes(b"# not what was released\n")
    assert status(root).states["torch-symm-mem"] == "applied"
    assert patch("verify", "--site-packages", root).code == 4
    assert revert(root).code == 0
    assert difference(before, photograph(root)) == []


def test_kept_originals_that_are_gone_are_had_from_the_patched_files(root: Path) -> None:
    before = photograph(root)
    assert apply(root).code == 0
    for package in ("sglang", "flashinfer-python"):
        shutil.rmtree(info(root, package) / "opsctl/original")
    assert patch("verify", "--site-packages", root).code == 4
    assert revert(root).code == 0
    now = photograph(root)
    changed = {x for x in difference(before, now) if "__pycache__" not in x}
    assert changed == set()
    assert not list(root.rglob("opsctl"))


def test_a_kept_record_that_is_gone_is_made_from_the_other(root: Path) -> None:
    before = {x: (info(root, x) / "RECORD").read_bytes() for x in ("sglang", "flashinfer-python")}
    assert apply(root).code == 0
    for package in before:
        (info(root, package) / "opsctl/RECORD").unlink()
    assert revert(root).code == 0
    assert record_lies(root) == []
    for package, record in before.items():
        now = (info(root, package) / "RECORD").read_bytes()
        assert digests(now) == digests(record)


def test_nothing_kept_at_all_still_comes_back(root: Path) -> None:
    before = photograph(root)
    assert apply(root).code == 0
    for package in ("sglang", "flashinfer-python"):
        shutil.rmtree(info(root, package) / "opsctl")
    assert status(root).states["torch-symm-mem"] == "applied"
    assert revert(root).code == 0
    _as_released(root, before)
    record = paths((info(root) / "RECORD").read_bytes())
    assert [x for x in record if "/opsctl/" in x] == []


@pytest.mark.parametrize("record", [b"", b"\xff\xfe\0garbage\r\n", b"x,sha256=A,1\n", b'"x\n,"'])
def test_a_damaged_record_is_no_reason_to_fail_without_words(root: Path, record: bytes) -> None:
    (info(root) / "RECORD").write_bytes(record)
    assert status(root).states["torch-symm-mem"] == "applicable"
    answer = apply(root)
    assert "unexpected" not in answer.err
    assert answer.code in {0, 4}


def test_a_hard_linked_file_keeps_the_old_bytes_elsewhere(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.hardlink_to(root / SYMM_MEM)
    record = tmp_path / "other.record"
    record.hardlink_to(info(root) / "RECORD")
    before = other.read_bytes(), record.read_bytes()
    assert apply(root).code == 0
    assert (root / SYMM_MEM).read_bytes() != before[0]
    assert revert(root).code == 0
    assert (other.read_bytes(), record.read_bytes()) == before


def test_a_stale_byte_code_of_another_python_goes_and_comes_back(root: Path) -> None:
    foreign = root / byte_code(SYMM_MEM, "cpython-310")
    optimized = root / byte_code(SYMM_MEM, "cpython-311.opt-1")
    for path in (foreign, optimized):
        path.write_bytes(b"byte code of another interpreter")
        os.utime(path, ns=(1, 1_000_000_007))
    before = photograph(root)
    assert apply(root).code == 0
    assert not foreign.exists()
    assert not optimized.exists()
    assert revert(root).code == 0
    assert difference(before, photograph(root)) == []


def test_without_byte_code_none_is_left_behind(tmp_path: Path) -> None:
    root = small(tmp_path, byte_code=False)
    before = photograph(root)
    assert apply(root).code == 0
    assert (root / byte_code(SYMM_MEM)).is_file()
    assert revert(root).code == 0
    assert difference(before, photograph(root)) == []


def test_a_file_that_python_would_not_parse_is_refused(root: Path, tmp_path: Path) -> None:
    """The interpreter of the environment is the judge: here it is one that fails."""
    python = tmp_path / "bin/python"
    python.unlink()
    python.write_text("#!/bin/sh\necho 'SyntaxError: invalid syntax' >&2\nexit 1\n")
    python.chmod(0o755)
    before = photograph(root)
    answer = patch("apply", "--all", "--python", python)
    assert answer.code == 4
    assert "SyntaxError: invalid syntax" in answer.err
    assert difference(before, photograph(root)) == []


def rename_version(root: Path, version: str) -> None:
    folder = info(root)
    text = (folder / "METADATA").read_text()
    (folder / "METADATA").write_text(
        re.sub(r"(?m)^Version: .*$", f"Version: {version}", text, count=1)
    )
    record = (folder / "RECORD").read_text()
    new = f"sglang-{version}.dist-info"
    (folder / "RECORD").write_text(record.replace(folder.name, new))
    folder.rename(root / new)


@pytest.mark.parametrize("version", ["0.5.24", "0.5.15.dev3", "0.5.14rc1", "0.5.14.post1", "1.0"])
def test_a_release_that_nobody_looked_at_is_blocked(root: Path, version: str) -> None:
    rename_version(root, version)
    told = status(root)
    assert told.document["package_versions"]["sglang"] == version
    assert told.states["torch-symm-mem"] == "blocked"
    assert told.reasons["torch-symm-mem"] == f"opsctl knows sglang 0.5.9 to 0.5.23, not {version}"
    refuses(root, apply, "torch-symm-mem is blocked")


@pytest.mark.parametrize("version", ["0.5.24", "0.5.15.dev3"])
def test_an_unknown_sglang_does_not_block_a_patch_of_flashinfer(root: Path, version: str) -> None:
    rename_version(root, version)
    before = photograph(root)
    done = apply(root, "--only", "allreduce-fusion-jit")
    assert done.code == 0, done.err
    assert done.states["allreduce-fusion-jit"] == "applied"
    assert revert(root, "--only", "allreduce-fusion-jit").code == 0
    assert difference(before, photograph(root)) == []


def test_a_local_version_counts_as_its_release(root: Path) -> None:
    rename_version(root, "0.5.14+cu130")
    before = photograph(root)
    done = apply(root)
    assert done.code == 0, done.err
    assert done.states["torch-symm-mem"] == "applied"
    assert patch("verify", "--site-packages", root).code == 0
    assert revert(root).code == 0
    assert difference(before, photograph(root)) == []


def test_another_flashinfer_than_a_patch_needs_blocks_that_patch(root: Path) -> None:
    folder = info(root, "flashinfer-python")
    text = (folder / "METADATA").read_text()
    (folder / "METADATA").write_text(re.sub(r"(?m)^Version: .*$", "Version: 0.7.2", text, count=1))
    told = status(root)
    assert told.states["allreduce-fusion"] == "blocked"
    assert "0.7.2 is installed" in told.reasons["allreduce-fusion"]
    assert told.states["torch-symm-mem"] == "applicable"


def editable(root: Path) -> None:
    (info(root) / "direct_url.json").write_text(
        '{"url": "file:///src/sglang/python", "dir_info": {"editable": true}}'
    )


def linked(root: Path) -> None:
    (root / "sglang").rename(root.parent / "sglang")
    (root / "sglang").symlink_to(root.parent / "sglang")


def zipped(root: Path) -> None:
    shutil.rmtree(info(root))
    shutil.rmtree(root / "sglang")
    (root / "sglang-0.5.14-py3.11.egg").write_bytes(b"PK\3\4")


def egg(root: Path) -> None:
    shutil.rmtree(info(root))
    (root / "sglang-0.5.14-py3.11.egg/EGG-INFO").mkdir(parents=True)


def egg_info(root: Path) -> None:
    folder = info(root)
    folder.rename(folder.with_suffix(".egg-info"))


def two(root: Path) -> None:
    shutil.copytree(info(root), root / "sglang-0.5.13.dist-info")


def none(root: Path) -> None:
    shutil.rmtree(info(root))


def no_record(root: Path) -> None:
    (info(root) / "RECORD").unlink()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (editable, "installed for development from file:///src/sglang/python"),
        (linked, "is not a folder of its own"),
        (zipped, "only wheels can be patched"),
        (egg, "only wheels can be patched"),
        (egg_info, "only wheels can be patched"),
        (two, "several versions claim this folder"),
        (none, "it has no dist-info, so its version is unknown"),
        (no_record, "has no RECORD"),
    ],
)
def test_what_is_no_installed_wheel_is_blocked_and_said(
    root: Path, make: Callable[[Path], None], said: str
) -> None:
    make(root)
    told = status(root)
    assert told.states["torch-symm-mem"] == "blocked"
    assert said in told.reasons["torch-symm-mem"]
    refuses(root, apply, said)
    done = apply(root, "--only", "allreduce-fusion-jit")
    assert done.states["allreduce-fusion-jit"] == "applied"


def test_an_environment_without_sglang_needs_no_patch(tmp_path: Path) -> None:
    folder = tmp_path / "lib/python3.11/site-packages"
    folder.mkdir(parents=True)
    assert set(status(folder).states.values()) == {"not needed"}
    assert apply(folder).code == 0
    assert list(folder.iterdir()) == []
    assert patch("status", "--site-packages", tmp_path / "nowhere").code == 2
    assert patch("status", "--python", tmp_path / "nowhere").code == 2


def mounted(tmp_path: Path, options: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `opsctl patch` with `tmp_path/lib` mounted in its own way, seen by it alone."""
    mount = f'mount {options} "$1" && shift && exec "$@"'
    python = [sys.executable, "-m", "opsctl", "patch", *words]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, "sh", str(tmp_path / "lib"), *python],
        cwd=ROOT,
        env={**os.environ, **NO_CACHE},
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare failed" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    return done


def test_a_read_only_mount_is_said_and_nothing_is_changed(root: Path, tmp_path: Path) -> None:
    before = photograph(root)
    lib = tmp_path / "lib"
    where = ("--site-packages", str(root))
    done = mounted(tmp_path, f"-o bind,ro '{lib}'", "apply", "--all", *where)
    assert done.returncode == 4
    assert "the file system is read-only; nothing was changed" in done.stderr
    looked = mounted(tmp_path, f"-o bind,ro '{lib}'", "status", *where)
    assert looked.returncode == 0, looked.stderr
    assert difference(before, photograph(root)) == []


def test_a_full_disk_is_said_and_nothing_is_changed(root: Path, tmp_path: Path) -> None:
    """The copy on a small disk of its own; `cp` fills it before, `diff` looks at it after."""
    shutil.copytree(tmp_path / "lib", tmp_path / "copy", symlinks=True)
    inner = f"""
        set -e
        cp -a '{tmp_path}/copy/.' '{tmp_path}/lib'
        (cat /dev/zero > '{tmp_path}/lib/others' || true) 2>/dev/null
        set +e
        '{sys.executable}' -m opsctl patch apply --all --site-packages '{root}'
        code=$?
        rm '{tmp_path}/lib/others'
        diff -r --no-dereference '{tmp_path}/copy' '{tmp_path}/lib' || exit 99
        exit $code
    """
    mount = f"mount -t tmpfs -o size=16m none '{tmp_path}/lib' && exec sh -c \"$1\""
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, "sh", inner],
        cwd=ROOT,
        env={**os.environ, **NO_CACHE},
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare failed" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "no space left on the disk; nothing was changed" in done.stderr


def test_a_site_packages_of_somebody_else_is_said() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory(prefix="opsctl-patch-") as name:
        Path(name).chmod(0o755)
        root = small(Path(name))
        for path in root.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        before = photograph(root)
        child = multiprocessing.get_context("fork").Process(target=_refused, args=(root,))
        child.start()
        child.join(120)
        assert child.exitcode == 0
        assert difference(before, photograph(root)) == []


def _refused(root: Path) -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    assert status(root).states["torch-symm-mem"] == "applicable"
    answer = apply(root)
    assert answer.code == 4, answer.err
    assert "permission denied; nothing was changed" in answer.err
    assert "as root" in answer.err


def stale_code(root: Path) -> None:
    os.utime(root / SYMM_MEM, ns=(1, 1_000_000_007))


def unchecked_code(root: Path) -> None:
    path = root / byte_code(SYMM_MEM)
    content = path.read_bytes()
    path.write_bytes(content[:4] + b"\1\0\0\0" + content[8:])


def lying_record(root: Path) -> None:
    record = info(root) / "RECORD"
    record.write_bytes(rewritten(record.read_bytes(), {SYMM_MEM: b"x"}, {}, ()))


def unlisted_original(root: Path) -> None:
    record = info(root) / "RECORD"
    kept = f"{info(root).name}/opsctl/original/{SYMM_MEM}"
    record.write_bytes(rewritten(record.read_bytes(), {}, {}, [kept]))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (stale_code, "torch_symm_mem.cpython-311.pyc is stale"),
        (unchecked_code, "is not checked against its source"),
        (lying_record, "RECORD names another content"),
        (unlisted_original, "RECORD does not list its kept original"),
    ],
)
def test_verify_tells_what_is_not_whole_and_it_can_still_be_taken_back(
    root: Path, damage: Callable[[Path], None], said: str
) -> None:
    before = photograph(root)
    assert apply(root).code == 0
    damage(root)
    answer = patch("verify", "--site-packages", root)
    assert answer.code == 4
    (finding,) = answer.document["findings"]
    assert (finding["name"], finding["path"]) == ("torch-symm-mem", SYMM_MEM)
    assert said.replace("cpython-311", TAG) in finding["what"]
    assert revert(root).code == 0
    assert difference(before, photograph(root)) == []


def test_a_change_after_which_the_patches_are_not_in_is_a_failure(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that forgets what was written."""

    def forgets(*_: object, check: Callable[[], None], **__: object) -> None:
        check()

    monkeypatch.setattr("opsctl.system.transaction.apply", forgets)
    refuses(root, apply, "the result was not whole: allreduce-fusion-jit is applicable")


def test_a_patch_that_would_change_other_names_than_it_says_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = load().patch("torch-symm-mem").file_for("0.5.14")
    assert file is not None
    one, *others = sorted(file.symbols[SYMM_MEM])
    monkeypatch.setitem(vars(file), "symbols", {**file.symbols, SYMM_MEM: frozenset(others)})
    refuses(root, apply, f"{SYMM_MEM}: changed although the patch is not for it: {one}")
