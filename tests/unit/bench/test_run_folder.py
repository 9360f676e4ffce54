"""The folder of a run: what goes on, what is refused, and what is written when all is done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opsctl.bench import results
from opsctl.bench.arrivals import load as timetable
from opsctl.bench.folder import Folder, described
from opsctl.bench.grid import Grid
from opsctl.bench.loops import Extent
from opsctl.bench.measure import Way
from opsctl.bench.results import Profile
from opsctl.bench.workload import load as workload
from opsctl.errors import OpsctlError, UsageError
from tests.support.bench import cell

GRID = Grid(("a", "b"), (1, 8), (0,), 2)
WAY = Way(Extent(30.0))
PROFILES = (
    Profile(name="a", fingerprint="sha256:1", speculative=False),
    Profile(name="b", fingerprint="sha256:2", speculative=True),
)


def opened(path: Path, **changes: Any) -> Folder:
    known: dict[str, Any] = {
        "environment": {"host": "h", "driver": "580.1", "gpus": []},
        "workload": workload("coding"),
        "salted": True,
        "profiles": PROFILES,
        "grid": described(GRID, WAY, workload("coding")),
    }
    return Folder.open(path, **(known | changes))


def test_a_result_says_from_the_begin_that_it_is_not_complete(tmp_path: Path) -> None:
    opened(tmp_path)
    found = results.load(tmp_path)
    assert (found.complete, found.cells) == (False, ())
    assert found.grid["sampling"] == "greedy, ignore_eos"


def test_cells_are_in_the_result_in_the_order_of_profiles_and_grid(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    for name, concurrency, repeat in (("b", 1, 0), ("a", 8, 1), ("a", 8, 0), ("a", 1, 0)):
        folder.add(cell(profile=name, concurrency=concurrency, repeat=repeat))
    saved = folder.save(complete=False)
    assert [each.key for each in saved.cells] == [
        "a-c1-k0-r0", "a-c8-k0-r0", "a-c8-k0-r1", "b-c1-k0-r0",
    ]  # fmt: skip
    assert results.load(tmp_path) == saved


def test_a_run_goes_on_with_a_larger_grid_and_more_profiles(tmp_path: Path) -> None:
    folder = opened(tmp_path, profiles=PROFILES[:1])
    folder.add(cell(profile="a", concurrency=1))
    folder.tell(PROFILES[0].model_copy(update={"versions": {"sglang": "0.5.23"}}))
    folder.save(complete=False)
    larger = Grid(("a", "b"), (1, 8, 30), (0, 4096), 3)
    again = opened(tmp_path, grid=described(larger, WAY, workload("coding")))
    assert [each.key for each in again.cells()] == ["a-c1-k0-r0"]
    assert [each.name for each in again.result.profiles] == ["a", "b"]
    assert again.result.profiles[0].versions == {"sglang": "0.5.23"}
    assert again.result.started == folder.result.started


OTHER: dict[str, tuple[dict[str, Any], str]] = {
    "another workload": (
        {"workload": workload("chat"),
         "grid": described(GRID, WAY, workload("chat"))}, "workload coding, not chat",
    ),
    "unsalted": ({"salted": False}, "its prompts were salted"),
    "another window": (
        {"grid": described(GRID, replace(WAY, extent=Extent(10.0)), workload("coding"))},
        "duration_s 30.0, not 10.0",
    ),
    "another length": (
        {"grid": described(GRID, replace(WAY, output_tokens=64), workload("coding"))},
        "output_tokens 256, not 64",
    ),
    "natural ends": (
        {"grid": described(GRID, replace(WAY, mode="latency"), workload("coding"))},
        "mode throughput, not latency",
    ),
    "a changed profile": (
        {"profiles": (PROFILES[0].model_copy(update={"fingerprint": "sha256:9"}),)},
        "profile 'a' has changed since",
    ),
    "another host": (
        {"environment": {"host": "other", "driver": "580.1", "gpus": []}}, "host h, not other",
    ),
    "another driver": (
        {"environment": {"host": "h", "driver": "590.2", "gpus": []}},
        "driver 580.1, not 590.2",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "what"), OTHER.values(), ids=list(OTHER))
def test_what_would_be_another_measurement_is_not_mixed_in(
    tmp_path: Path, changes: dict[str, Any], what: str
) -> None:
    opened(tmp_path)
    with pytest.raises(UsageError) as raised:
        opened(tmp_path, **changes)
    assert what in raised.value.message


def test_own_prompts_under_the_same_name_are_told_apart(tmp_path: Path) -> None:
    own = tmp_path / "own.jsonl"
    own.write_text('{"prompt": "one"}')
    first = workload(str(own))
    opened(tmp_path / "r", workload=first, grid=described(GRID, WAY, first))
    own.write_text('{"prompt": "two"}')
    second = workload(str(own))
    with pytest.raises(UsageError, match="workload_digest"):
        opened(tmp_path / "r", workload=second, grid=described(GRID, WAY, second))


def test_half_a_cell_is_measured_again(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    folder.add(cell(profile="a"))
    path = tmp_path / "cells" / "a-c8-k0-r0.json"
    path.write_text(path.read_text()[:100])
    assert folder.cells() == []


def test_a_cell_that_cannot_be_written_is_told_and_the_others_stay(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    (tmp_path / "cells").write_text("in the way")
    with pytest.raises(OpsctlError, match="cannot write to"):
        folder.add(cell())
    assert results.load(tmp_path).complete is False


def test_answers_are_compared_between_profiles_only_when_all_is_done(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    folder.add(cell(profile="a", output_tokens_mean=100.0))
    folder.add(cell(profile="b", output_tokens_mean=200.0))
    assert all(each.valid for each in folder.save(complete=False).cells)
    assert not any(each.valid for each in folder.save(complete=True).cells)
    assert not any(each.valid for each in results.cells(tmp_path))


@pytest.mark.parametrize(
    "line", ["{}", '{"at": -1}', '{"at": "x"}', '{"at": 1, "max_tokens": 0}', "1", '{"at": true}']
)
def test_what_is_no_arrival_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"at": 0}\n' + line)
    with pytest.raises(UsageError, match=r"t\.jsonl:2"):
        timetable(str(path))


def test_arrivals_are_sorted_by_their_time(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"at": 2.5}\n\n{"at": 0, "max_tokens": 8}\n')
    found = timetable(str(path)).arrivals
    assert [(each.at, each.max_tokens) for each in found] == [(0.0, 8), (2.5, None)]
