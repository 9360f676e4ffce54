"""The rules that hold for the tree as a whole."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "opsctl").rglob("*.py"))

# What would tie the project to one machine or one registry.
FOREIGN = {
    "address of a package registry": re.compile(
        r"--(extra-)?index-url|--find-links[ =]\S*://|https?://[\w.-]*(pypi|pythonhosted|files\.python)"
    ),
    "folder of somebody's machine": re.compile(
        # `/proc/PID/root` is the file system a process sees, not somebody's home.
        r"(?<![\w.])/(work|opt/(pypi|wheels))/|(?<![\d}])/(home|root)/\w+/"
    ),
}
HERE = Path(__file__).relative_to(ROOT)


def committed() -> Iterator[Path]:
    """Return every file git knows, or would know (new ones included)."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode != 0:
        pytest.skip(f"not a git checkout: {listing.stderr.strip()}")
    return (ROOT / name for name in listing.stdout.split("\0") if name)


def test_import_contracts_hold() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run(
        [str(linter), "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"Contracts: [1-9]\d* kept, 0 broken", result.stdout)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_says_what_it_is_for(path: Path) -> None:
    tree = ast.parse(path.read_text())
    if not tree.body:
        pytest.fail("empty module without a docstring")
    assert ast.get_docstring(tree)


def test_modules_stay_small() -> None:
    long = {path: len(path.read_text().splitlines()) for path in MODULES}
    assert [f"{path.relative_to(ROOT)}: {n}" for path, n in long.items() if n > 400] == []


@pytest.mark.parametrize("what", FOREIGN)
def test_no_file_holds(what: str) -> None:
    hits = []
    for path in committed():
        if path.relative_to(ROOT) == HERE or not path.is_file():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        hits += [
            f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
            for number, line in enumerate(text.splitlines(), 1)
            if FOREIGN[what].search(line)
        ]
    assert hits == []
