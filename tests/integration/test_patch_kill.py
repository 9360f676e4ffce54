"""`opsctl patch` killed at every step, and several at once."""

from __future__ import annotations

import fcntl
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from opsctl.patching import apply
from tests.support.patch_targets import (
    NO_CACHE,
    Photograph,
    difference,
    patch,
    photograph,
    record_lies,
    small,
)
from tests.support.serving import OPSCTL
from tests.support.transactions import Step, steps

RELEASE, PATCH = "0.5.12", "deepgemm-scales"  # one file: few steps, each of every kind
UNSEEN = ("fsync", "close", "open")
"""Steps that leave nothing on disk that the one before has not, or that only read."""


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who runs from the environment is not asked: that takes time, and it is not about that."""
    monkeypatch.setitem(apply.change.__kwdefaults__, "running", lambda _: None)


def killed(number: int, halfway: bool, root: Path, words: tuple[str, ...]) -> int:
    """Run the command line in a process of its own that dies before step `number`, or within it."""
    child = multiprocessing.get_context("fork").Process(
        target=_die, args=(number, halfway, root, words)
    )
    child.start()
    child.join(120)
    assert child.exitcode is not None
    return child.exitcode


def _die(number: int, halfway: bool, root: Path, words: tuple[str, ...]) -> None:
    seen = itertools.count(1)
    write = os.write

    def act(name: str, step: Step) -> Any:
        here = str(root) in name or name.startswith(("write", "fchmod", "utime"))
        if here and not name.startswith(UNSEEN) and next(seen) == number:
            try:
                if halfway:
                    _half(name, step, write)
            finally:
                os.kill(os.getpid(), signal.SIGKILL)
        return step()

    with steps(act):
        answer = patch(*words, "--site-packages", root)
    os._exit(answer.code)


def _half(name: str, step: Step, write: Callable[..., Any]) -> None:
    if name.startswith("write"):
        write(int(name.split()[1]), b"ha")
    else:
        step()


def content(root: Path) -> Photograph:
    """What counts of an applied tree: no times, nor what holds times."""
    timed = (".pyc", "manifest.json", "RECORD")
    return {
        path: () if path.endswith(timed) else (facts[0], facts[-1])
        for path, facts in photograph(root).items()
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("halfway", [pytest.param(False, marks=pytest.mark.extended), True])
def test_killed_while_it_applies_the_next_run_takes_everything_back(
    tmp_path: Path, halfway: bool
) -> None:
    ended = 1
    for number in itertools.count(1):
        root = small(tmp_path / str(number), RELEASE)
        before = photograph(root)
        ended = killed(number, halfway, root, ("apply", "--only", PATCH))
        assert ended in {0, -signal.SIGKILL}
        told = patch("status", "--site-packages", root)
        assert told.code == 0, told.err
        left = (root / ".opsctl-patch.json").exists()
        assert told.states[PATCH] in ({"drifted"} if left else {"applied", "applicable"})
        back = patch("revert", "--only", PATCH, "--site-packages", root)
        assert back.code == 0, back.err
        assert ("an interrupted change was taken back first" in back.err) is left
        assert difference(before, photograph(root)) == [], f"killed at step {number}"
        shutil.rmtree(tmp_path / str(number))
        if ended == 0:
            break
    assert number > 40


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_while_it_takes_back_the_next_run_applies_or_takes_back(tmp_path: Path) -> None:
    reference = small(tmp_path / "reference", RELEASE)
    assert patch("apply", "--only", PATCH, "--site-packages", reference).code == 0
    for number in itertools.count(1):
        root = small(tmp_path / str(number), RELEASE)
        before = photograph(root)
        assert patch("apply", "--only", PATCH, "--site-packages", root).code == 0
        ended = killed(number, False, root, ("revert", "--only", PATCH))
        assert ended in {0, -signal.SIGKILL}
        again = patch("apply", "--only", PATCH, "--site-packages", root)
        assert again.code == 0, again.err
        assert difference(content(reference), content(root)) == [], f"killed at step {number}"
        assert record_lies(root) == []
        assert patch("verify", "--site-packages", root).code == 0
        assert patch("revert", "--only", PATCH, "--site-packages", root).code == 0
        assert difference(before, photograph(root)) == [], f"killed at step {number}"
        shutil.rmtree(tmp_path / str(number))
        if ended == 0:
            break
    assert number > 30


def test_an_interrupted_change_is_told_and_a_dry_run_touches_nothing(tmp_path: Path) -> None:
    root = interrupted(tmp_path)
    here = photograph(root)
    told = patch("status", "--diff", "--site-packages", root)
    assert told.code == 0
    assert told.states[PATCH] == "drifted"
    assert "interrupted" in told.reasons[PATCH]
    assert patch("verify", "--site-packages", root).code == 4
    tried = patch("apply", "--only", PATCH, "--dry-run", "--site-packages", root)
    assert tried.code == 4
    assert "without --dry-run it is taken back first" in tried.err
    assert difference(here, photograph(root)) == []


def test_an_interrupted_change_is_not_taken_back_under_a_running_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = interrupted(tmp_path)
    here = photograph(root)
    engine = "pid 7 (python -m sglang.launch_server)"
    monkeypatch.setitem(apply.change.__kwdefaults__, "running", lambda _: engine)
    for verb in ("apply", "revert"):
        answer = patch(verb, "--only", PATCH, "--site-packages", root)
        assert answer.code == 4
        assert "an engine runs from" in answer.err
    assert difference(here, photograph(root)) == []


def interrupted(tmp_path: Path) -> Path:
    """A tree with a journal, some of the files switched."""
    for number in itertools.count(25):
        root = small(tmp_path / str(number), RELEASE)
        assert killed(number, False, root, ("apply", "--only", PATCH)) == -signal.SIGKILL
        if (root / ".opsctl-patch.json").exists():
            return root
    raise AssertionError


def test_a_journal_that_reaches_elsewhere_is_refused(tmp_path: Path) -> None:
    root = interrupted(tmp_path)
    journal = root / ".opsctl-patch.json"
    outside = tmp_path / "mine.py"
    outside.write_text("mine")
    document = json.loads(journal.read_text())
    document["entries"][0]["path"] = str(outside)
    journal.write_text(json.dumps(document))
    answer = patch("apply", "--only", PATCH, "--site-packages", root)
    assert answer.code == 4
    assert "cannot be used" in answer.err
    assert outside.read_text() == "mine"


def test_a_second_run_ends_with_75_and_looking_still_works(tmp_path: Path) -> None:
    root = small(tmp_path)
    before = photograph(root)
    descriptor = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        for verb in ("apply", "revert"):
            answer = patch(verb, "--all", "--site-packages", root)
            assert answer.code == 75
            assert "another opsctl is patching" in answer.err
        assert patch("status", "--site-packages", root).code == 0
    finally:
        os.close(descriptor)
    assert difference(before, photograph(root)) == []


def opsctl(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(OPSCTL), "patch", *words, "--site-packages", str(root), "-o", "json"],
        env={**os.environ, **NO_CACHE},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_while_the_first_compiles_the_second_is_turned_away_and_the_first_completes(
    tmp_path: Path,
) -> None:
    root = small(tmp_path, RELEASE)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    python = tmp_path / "bin" / root.parent.name
    real = python.readlink()
    python.unlink()
    python.write_text(f"#!/bin/sh\nread _ < '{gate}'\nexec '{real}' \"$@\"\n")
    python.chmod(0o755)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(opsctl, root, "apply", "--only", PATCH)
        with gate.open("w") as opened:  # returns when the first one waits at the other end
            second = opsctl(root, "apply", "--only", PATCH)
            opened.write("go\n")
        done = first.result(120)
    assert second.returncode == 75, second.stderr
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["changed"]


def test_of_several_at_the_same_time_exactly_one_changes_anything(tmp_path: Path) -> None:
    root = small(tmp_path, RELEASE)
    before = photograph(root)
    for verb in ("apply", "revert"):
        with ThreadPoolExecutor(4) as pool:
            done = [pool.submit(opsctl, root, verb, "--only", PATCH) for _ in range(4)]
            results = [x.result(120) for x in done]
        assert {x.returncode for x in results} <= {0, 75}, [x.stderr for x in results]
        changed = [x for x in results if x.returncode == 0 and json.loads(x.stdout)["changed"]]
        assert len(changed) == 1
        assert record_lies(root) == []
    assert difference(before, photograph(root)) == []
