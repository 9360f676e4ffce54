"""The wheel carries everything opsctl needs at run time, and finds it there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "opsctl", "playbooks", "templates", "patches")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("checkout")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
            )
        else:
            shutil.copy(ROOT / name, copy / name)
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel"],
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (path,) = (copy / "dist").glob("*.whl")
    return path


@pytest.mark.parametrize(
    "wanted",
    [
        "opsctl/_data/playbooks/README.md",
        "opsctl/_data/templates/README.md",
        "opsctl/_data/patches/README.md",
        "opsctl/config/demo.yaml",
        "opsctl/engine/simulated/surfaces.yaml",
        "opsctl/py.typed",
    ],
)
def test_wheel_contains(wheel: Path, wanted: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert wanted in archive.namelist()


def test_every_module_of_the_checkout_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.endswith(".py")}
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "opsctl").rglob("*.py")}
    # Ansible's modules travel with the playbooks.
    modules = {f"opsctl/_data/{path.relative_to(ROOT)}" for path in ROOT.glob("playbooks/**/*.py")}
    assert packed == sources | modules


def test_installed_wheel_finds_its_data_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target)]
        + ["--no-deps", "--no-index", str(wheel)],
        check=True,
    )
    program = (
        "import opsctl; from opsctl.system.resources import tree\n"
        "print(opsctl.__file__)\n"
        "for name in ('playbooks', 'templates', 'patches'):\n"
        "    print(tree(name), tree(name).joinpath('README.md').is_file())\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert shown[0] == str(target / "opsctl" / "__init__.py")
    for name, line in zip(("playbooks", "templates", "patches"), shown[1:], strict=True):
        assert line == f"{target / 'opsctl' / '_data' / name} True"


def test_checkout_finds_its_data_beside_the_package() -> None:
    from opsctl.system.resources import tree

    for name in ("playbooks", "templates", "patches"):
        assert tree(name).joinpath("README.md").read_text().startswith(f"# {name}")  # type: ignore[arg-type]


def test_a_missing_tree_is_named() -> None:
    from opsctl.system.resources import tree

    with pytest.raises(FileNotFoundError, match="nowhere"):
        tree("nowhere")  # type: ignore[arg-type]
