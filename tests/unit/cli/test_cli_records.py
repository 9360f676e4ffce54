from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opsctl.cli import records


class EndOfTestError(Exception):
    """Nothing more will be written."""


def followed(
    path: Path, monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], object], last: int = 10
) -> Iterator[str]:
    """The lines that `-f` tells while `steps` happen, one at each pause."""
    waiting = list(steps)

    def pause(seconds: float) -> None:
        if not waiting:
            raise EndOfTestError
        waiting.pop(0)()

    monkeypatch.setattr(records.time, "sleep", pause)
    try:
        yield from records._lines(path, last, follow=True)
    except EndOfTestError:
        return


def appending(path: Path, data: bytes) -> Callable[[], object]:
    def append() -> None:
        with path.open("ab") as file:
            file.write(data)

    return append


@pytest.mark.parametrize("last", [0, 10])
def test_a_line_and_a_character_in_the_middle_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntw")
    parts = (b"o\n", b"caf\xc3", b"\xa9 \xe2\x82", b"\xac\nend\n")
    told = list(followed(path, monkeypatch, *(appending(path, p) for p in parts), last=last))
    assert told == ["one", "two", "caf\u00e9 \u20ac", "end"][0 if last else 1 :]


def test_nothing_is_lost_when_a_file_is_rotated_under_its_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"one\n")

    def rotate() -> None:
        appending(path, b"two\n")()
        path.replace(tmp_path / "events.jsonl.1")
        appending(path, b"three\n")()

    def vanish() -> None:
        appending(path, b"four\n")()
        path.replace(tmp_path / "events.jsonl.2")

    steps = (rotate, vanish, appending(path, b"five\n"))
    assert list(followed(path, monkeypatch, *steps)) == ["one", "two", "three", "four", "five"]


def test_a_truncated_file_is_read_from_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\n")

    def truncate() -> None:
        os.truncate(path, 0)
        appending(path, b"new\n")()

    assert list(followed(path, monkeypatch, truncate)) == ["one", "two", "new"]


def test_without_following_a_last_line_without_an_end_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\nthr")
    assert list(records._lines(path, 2, follow=False)) == ["two", "thr"]
