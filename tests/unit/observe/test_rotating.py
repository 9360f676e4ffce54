from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.observe.rotating import RotatingFile, rotated


def test_each_file_begins_with_what_makes_it_readable_by_itself(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "f", max_bytes=20, keep=2, first=lambda: "head\n")
    for _ in range(9):
        file.append("a line\n")
    files = [file.path, rotated(file.path, 1), rotated(file.path, 2)]
    assert [path.read_text().splitlines()[0] for path in files] == ["head"] * 3
    assert sorted(tmp_path.iterdir()) == sorted(files)


def test_files_are_the_users_own_and_stay_within_their_size(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "f", max_bytes=100, keep=1)
    for number in range(50):
        file.append(f"line {number}\n")
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in tmp_path.iterdir())
    assert all(path.stat().st_size <= 100 for path in tmp_path.iterdir())


def test_a_text_larger_than_a_file_is_written_all_the_same(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "f", max_bytes=10, keep=1)
    file.append("a long line indeed\n")
    assert file.path.read_text() == "a long line indeed\n"


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        RotatingFile(tmp_path / "absent" / "f", max_bytes=10, keep=1).append("x\n")
