from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from opsctl.autospec.history import Record, Seen, SetUp, header, line, parse
from opsctl.autospec.load import LoadSample
from opsctl.autospec.plan import Plan
from opsctl.observe.rotating import rotated
from opsctl.serve import load_journal as module
from opsctl.serve.load_journal import MOST_WAITING, LoadJournal, tail

PLAN = Plan(policy="always", speculative="a", baseline="b", always="a")
SETUP = SetUp(1.0, 2.0, "boot", "start", PLAN)


def seen(number: int) -> Seen:
    return Seen(LoadSample(float(number), running=number), "a", 1e9 + number)


def read(path: Path) -> list[Record]:
    return list(parse(path.read_text().splitlines()))


async def test_records_are_written_in_order_behind_a_header(tmp_path: Path) -> None:
    journal = LoadJournal(tmp_path / "load.jsonl")
    journal.note(SETUP)
    for number in range(50):
        journal.note(seen(number))
    await journal.close()
    first, again, *rest = journal.path.read_text().splitlines()
    assert first + "\n" == header(module.__version__)
    assert '"again"' in again, "each file says first which policy it is of"
    assert list(parse(rest)) == [SETUP, *map(seen, range(50))]
    assert journal.path.stat().st_mode & 0o777 == 0o600


async def test_each_file_can_be_read_by_itself_and_their_number_is_bounded(tmp_path: Path) -> None:
    journal = LoadJournal(tmp_path / "load.jsonl", max_bytes=2000, keep=2)
    journal.note(SETUP)
    for number in range(200):
        journal.note(seen(number))
        await journal.flush()
    files = [journal.path, rotated(journal.path, 1), rotated(journal.path, 2)]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    for path in files:
        [setup, *samples] = read(path)
        assert isinstance(setup, SetUp)
        assert setup.why == "again"
        assert samples
        assert path.stat().st_size <= 2000


async def test_a_disk_that_takes_nothing_costs_samples_and_is_told_once(tmp_path: Path) -> None:
    told: list[str] = []
    journal = LoadJournal(tmp_path / "absent" / "load.jsonl", failed=told.append)
    for number in range(3):
        journal.note(seen(number))
        await journal.flush()
    assert journal.dropped == 3
    assert len(told) == 1
    (tmp_path / "absent").mkdir()
    journal.note(seen(9))
    await journal.close()
    assert read(journal.path) == [seen(9)]


async def test_a_disk_that_hangs_holds_up_nobody_and_memory_stays_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LAST_WORDS", 0.05)
    path = tmp_path / "load.jsonl"
    os.mkfifo(path)  # opening it waits for a reader that never comes
    journal = LoadJournal(path)
    async with asyncio.timeout(10):
        journal.note(seen(0))
        await asyncio.sleep(0)
        for number in range(MOST_WAITING + 100):
            journal.note(seen(number))
        await journal.close()
    assert journal.dropped >= 100
    with path.open("rb"):
        pass  # lets the writer go on, so that no thread of this test is left waiting


def test_the_tail_is_the_newest_with_what_says_whose_it_is(tmp_path: Path) -> None:
    path = tmp_path / "load.jsonl"
    older = rotated(path, 1)
    lines = [line(seen(number)) for number in range(100)]
    begin = [header("1"), line(SETUP)]
    older.write_text("".join([*begin, *lines[:60]]))
    path.write_text("".join([*begin, *lines[60:]]))
    records = list(parse(tail(path)))
    assert [r for r in records if isinstance(r, Seen)] == [seen(n) for n in range(100)]

    bounded = list(parse(tail(path, most=sum(map(len, lines[80:])))))
    samples = [r for r in bounded if isinstance(r, Seen)]
    assert samples[-1] == seen(99)
    assert samples == [seen(n) for n in range(99 - len(samples) + 1, 100)]
    assert 10 < len(samples) <= 20
    assert bounded[0] == SETUP


def test_a_journal_that_is_not_there_has_no_tail(tmp_path: Path) -> None:
    assert list(tail(tmp_path / "load.jsonl")) == []


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe\x00", b"x" * 10_000])
def test_a_damaged_journal_is_read_as_far_as_it_goes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "load.jsonl"
    path.write_bytes(content)
    assert list(parse(tail(path))) == []
