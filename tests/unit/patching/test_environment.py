"""Environments: found by interpreter or folder, and what is installed there."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.errors import UsageError
from opsctl.patching.environment import Package, locate


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty environment whose interpreter is nothing but a name."""
    made = tmp_path / "env/lib/python3.12/site-packages"
    made.mkdir(parents=True)
    for name in ("python", "python3.12"):
        path = tmp_path / "env/bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\nexit 1\n")
        path.chmod(0o755)
    (tmp_path / "env/pyvenv.cfg").touch()
    return made


def install(root: Path, package: str, version: str, *, metadata: str | None = None) -> Path:
    info = root / f"{package}-{version}.dist-info"
    info.mkdir()
    (info / "RECORD").touch()
    if metadata is not None:
        (info / "METADATA").write_text(f"Name: {package}\nVersion: {metadata}\n\nVersion: 9\n")
    module = root / package.partition("_")[0]
    module.mkdir(exist_ok=True)
    return info


def sglang(root: Path) -> Package | None:
    return locate(site_packages=root).packages.get("sglang")


def test_it_is_found_by_its_interpreter_its_folder_or_its_site_packages(root: Path) -> None:
    install(root, "sglang", "0.5.14")
    folder = root.parents[2]
    for found in (locate(str(folder / "bin/python")), locate(str(folder))):
        assert found.root == root.resolve()
    assert locate(str(folder / "bin/python")).python == folder / "bin/python"
    assert locate(site_packages=root).python == root.resolve().parents[2] / "bin/python3.12"
    assert locate(str(folder)).journal == root.resolve() / ".opsctl-patch.json"


def test_a_folder_that_is_no_environment_of_python_has_no_interpreter(tmp_path: Path) -> None:
    install(tmp_path, "sglang", "0.5.14")
    found = locate(site_packages=tmp_path)
    assert found.python is None
    assert found.named == f"--site-packages {tmp_path.resolve()}"


def test_a_symbolic_link_to_it_leads_to_it(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    assert locate(site_packages=tmp_path / "link").root == root.resolve()


def test_an_interpreter_that_may_not_be_run_is_none(root: Path) -> None:
    (root.parents[2] / "bin/python3.12").unlink()
    (root.parents[2] / "bin/python3.12").symlink_to("/nonexistent/python")
    assert locate(site_packages=root).python is None


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    for options in ({"python": "/nonexistent"}, {"site_packages": tmp_path / "x"}, {"python": ""}):
        with pytest.raises(UsageError, match="no Python environment there"):
            locate(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "metadata", "told"),
    [
        ("0.5.14", "0.5.14", "0.5.14"),
        ("0.5.14", None, "0.5.14"),
        ("0.5.14+cu130", "0.5.14+cu130", "0.5.14+cu130"),
        ("0.5.14", "0.5.15", "0.5.15"),
    ],
)
def test_the_version_is_that_of_the_metadata(
    root: Path, version: str, metadata: str | None, told: str
) -> None:
    install(root, "sglang", version, metadata=metadata)
    found = sglang(root)
    assert found is not None
    assert (found.version, found.trouble) == (told, None)


def test_names_are_normalized_and_what_pip_left_over_is_nothing(root: Path) -> None:
    install(root, "flashinfer_python", "0.6.12")
    (root / "~lashinfer_python-0.6.11.dist-info").mkdir()
    (root / "sglang_router-0.1.dist-info").mkdir()
    (root / "sglang.libs").mkdir()
    found = locate(site_packages=root).packages
    assert set(found) == {"flashinfer-python"}
    assert found["flashinfer-python"].trouble is None


def test_two_claims_name_both(root: Path) -> None:
    install(root, "sglang", "0.5.13")
    install(root, "sglang", "0.5.14")
    found = sglang(root)
    assert found is not None
    assert found.version is None
    assert "sglang-0.5.13.dist-info, sglang-0.5.14.dist-info" in str(found.trouble)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"url": "file:///x"}', '{"dir_info": 1}'])
def test_a_direct_url_that_is_not_editable_is_a_plain_install(root: Path, text: str) -> None:
    (install(root, "sglang", "0.5.14") / "direct_url.json").write_text(text)
    found = sglang(root)
    assert found is not None
    assert found.trouble is None
