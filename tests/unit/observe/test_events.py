from __future__ import annotations

import json
from pathlib import Path

from opsctl.observe.events import Journal, parse_lines
from opsctl.observe.rotating import rotated


def test_an_event_is_one_line_with_time_name_and_facts(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "events.jsonl")
    journal.record("switched", source="eagle3", seconds=1.5)
    (line,) = journal.path.read_text().splitlines()
    entry = json.loads(line)
    assert entry.pop("time").endswith("Z")
    assert entry == {"event": "switched", "source": "eagle3", "seconds": 1.5}


def test_the_file_is_rotated_by_size_and_old_ones_fall_off(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "events.jsonl", max_bytes=300, keep=2)
    for number in range(30):
        journal.record("tick", number=number)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["events.jsonl", "events.jsonl.1", "events.jsonl.2"]
    assert all(path.stat().st_size <= 300 for path in tmp_path.iterdir())
    newest = [entry["number"] for entry in parse_lines(journal.path.read_text())]
    older = [entry["number"] for entry in parse_lines(rotated(journal.path, 1).read_text())]
    assert newest[-1] == 29
    assert older[-1] == newest[0] - 1  # type: ignore[operator]


def test_a_disk_that_takes_nothing_is_survived_and_told_later(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "absent" / "events.jsonl")
    journal.record("lost")
    journal.record("lost")
    assert journal.dropped == 2
    journal.path.parent.mkdir()
    journal.record("kept")
    (entry,) = parse_lines(journal.path.read_text())
    assert entry["dropped_before"] == 2
    assert journal.dropped == 0


def test_half_written_lines_are_passed_over() -> None:
    text = '{"event": "a"}\n{"event": "b", "tr\nnull\n[1]\n{"event": "c"}\n'
    assert [entry["event"] for entry in parse_lines(text)] == ["a", "c"]
