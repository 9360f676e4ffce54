from __future__ import annotations

import asyncio
import errno
import os
import shutil
from pathlib import Path
from typing import BinaryIO

import pytest

from opsctl.engine.log import EngineLog


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_only_new_complete_lines_are_returned(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = EngineLog(path)
    assert log.read_new() == []
    append(path, b"one\ntwo\nthr")
    assert log.read_new() == ["one", "two"]
    assert log.read_new() == []
    append(path, b"ee\n")
    assert log.read_new() == ["three"]
    assert log.tail(2) == ["two", "three"]


def test_progress_bars_and_broken_bytes_are_lines_too(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = EngineLog(path)
    append(path, b"Loading: 10%\rLoading: 20%\r\n\xff\xfe broken\n")
    assert log.read_new() == ["Loading: 10%", "Loading: 20%", "\ufffd\ufffd broken"]


def test_a_character_cut_between_two_reads_is_put_together(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = EngineLog(path)
    euro = "€".encode()
    append(path, b"price " + euro[:1])
    assert log.read_new() == []
    append(path, euro[1:] + b"\n")
    assert log.read_new() == ["price €"]


def test_a_very_long_line_is_cut_once_and_memory_stays_bounded(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = EngineLog(path)
    got: list[str] = []
    for _ in range(5):
        append(path, b"x" * 100_000)
        got += log.read_new()
    append(path, b"\nnext\n")
    got += log.read_new()
    assert [len(line) for line in got] == [8192, 4]
    assert got[-1] == "next"


def test_a_truncated_file_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = EngineLog(path)
    append(path, b"before the cut\n")
    log.read_new()
    os.truncate(path, 0)
    append(path, b"after\n")
    assert log.read_new() == ["after"]


def test_a_replaced_file_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = EngineLog(path)
    append(path, b"old\n")
    log.read_new()
    path.rename(tmp_path / "log.old")
    append(path, b"new and longer\n")
    assert log.read_new() == ["new and longer"]


def test_at_end_skips_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path, b"an earlier engine: The server is fired up and ready to roll!\n")
    log = EngineLog.at_end(path)
    append(path, b"mine\n")
    assert log.read_new() == ["mine"]


def test_a_writer_that_holds_the_file_open_goes_on_after_rotation(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = EngineLog(path, max_bytes=1000, keep=3)
    seen: list[str] = []
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        for number in range(300):
            os.write(descriptor, f"{number:03d} ".encode() + b"." * 45 + b"\n")
            seen += log.read_new()
    finally:
        os.close(descriptor)
    assert [int(line[:3]) for line in seen] == list(range(300))
    kept = sorted(tmp_path.glob("log*"))
    assert [p.name for p in kept] == ["log", "log.1", "log.2", "log.3"]
    assert sum(p.stat().st_size for p in kept) < 4 * 1100
    assert (tmp_path / "log.1").stat().st_mode & 0o777 == 0o600
    newest = int((tmp_path / "log.1").read_text().splitlines()[-1][:3])
    oldest = int((tmp_path / "log.3").read_text().splitlines()[-1][:3])
    assert newest > oldest


def test_a_full_disk_costs_the_copy_but_never_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: BinaryIO, target: BinaryIO, length: int) -> None:
        target.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    path = tmp_path / "log"
    log = EngineLog(path, max_bytes=10)
    append(path, b"a line longer than ten bytes\n")
    assert log.read_new() == ["a line longer than ten bytes"]
    assert path.stat().st_size == 0
    assert not (tmp_path / "log.1").exists()


def test_an_engine_that_outruns_the_reader_cannot_fill_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = EngineLog(path, max_bytes=1 << 20, keep=1)
    append(path, b"y" * 79 + b"\n")
    log.read_new()
    append(path, (b"y" * 79 + b"\n") * 40_000)  # 3.2 MB, more than one reading
    log.read_new()
    assert path.stat().st_size == 0


def test_of_a_flood_only_the_end_is_kept_and_told(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = EngineLog(path, max_bytes=4 << 20)
    append(path, (b"y" * 79 + b"\n") * 400_000 + b"the last word\n")  # 32 MB
    lines = log.read_new()
    assert lines[-1] == "the last word", "what explains a death is not far behind"
    assert set(lines[:-1]) == {"y" * 79}, "no line begins in its middle"
    assert path.stat().st_size == 0
    kept = (tmp_path / "log.1").read_bytes()
    assert len(kept) == 4 << 20
    assert kept.endswith(b"the last word\n")


async def test_lines_can_be_followed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = EngineLog(path)
    append(path, b"one\n")
    lines = log.lines(poll=0.01)
    assert await asyncio.wait_for(anext(lines), 5) == "one"
    waiting = asyncio.ensure_future(anext(lines))
    append(path, b"two\n")
    assert await asyncio.wait_for(waiting, 5) == "two"
