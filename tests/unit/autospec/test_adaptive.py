from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from opsctl.autospec import adaptive_files
from opsctl.autospec.adaptive import Adaptive, AdaptiveError, Slot, adaptive, read_slots
from opsctl.autospec.surface import Surface
from tests.support.measured import column
from tests.support.surfaces import Rows
from tests.support.surfaces import surface as made


def surface(rows: Rows, spread: float | None = 0.01) -> Surface:
    return made(rows, spread=spread)


def steps(found: Adaptive, batch: int) -> tuple[int, ...]:
    """What SGLang would use at a batch size: the slot with the greatest key up to it."""
    return next(slot.steps for slot in reversed(found.slots) if slot.batch <= batch)


BASE = surface(column("reference_host_draft14", "baseline"))
DRAFT = surface(column("reference_host_draft14", "speculative"))


def test_where_drafting_loses_zero_steps_are_the_only_candidate() -> None:
    found = adaptive(BASE, {3: DRAFT})
    assert steps(found, 1) == steps(found, 6) == (3,)
    assert steps(found, 9) == steps(found, 250) == (0,)


def test_where_intervals_overlap_sglang_may_choose() -> None:
    found = adaptive(BASE, {3: DRAFT})
    assert steps(found, 7) == (0, 3)
    wide = adaptive(
        surface(column("reference_host_draft14", "baseline"), 0.1),
        {3: surface(column("reference_host_draft14", "speculative"), 0.1)},
    )
    assert steps(wide, 3) == (0, 3)


def test_the_file_has_the_form_that_sglang_reads() -> None:
    found = adaptive(BASE, {3: DRAFT})
    content = json.loads(found.text())
    assert list(content) == [str(slot.batch) for slot in found.slots]
    assert content["1"] == {"candidate_steps": [3]}
    assert all(key.isdigit() for key in content)
    assert min(map(int, content)) == 1


def test_only_steps_that_were_measured_are_candidates() -> None:
    found = adaptive(BASE, {5: DRAFT})
    assert {step for slot in found.slots for step in slot.steps} == {0, 5}


def test_of_several_numbers_of_steps_those_beaten_everywhere_are_left_out() -> None:
    one = surface({0: {1: 120.0, 8: 340.0, 64: 690.0}})
    three = surface({0: {1: 140.0, 8: 341.0, 64: 500.0}})
    base = surface({0: {1: 100.0, 8: 300.0, 64: 700.0}})
    found = adaptive(base, {1: one, 3: three})
    assert steps(found, 1) == (3,)
    assert steps(found, 8) == (1, 3)
    assert steps(found, 64) == (0, 1)


def test_drafting_that_loses_at_one_context_is_no_candidate_at_that_batch_size() -> None:
    base = surface({0: {1: 100.0, 8: 300.0}, 65536: {1: 70.0, 8: 200.0}})
    draft = surface({0: {1: 140.0, 8: 360.0}, 65536: {1: 90.0, 8: 150.0}})
    assert steps(adaptive(base, {3: draft}), 8) == (0,)
    short = adaptive(base, {3: draft}, contexts=[0])
    assert short.why_not.startswith("drafting was not seen to lose anywhere")


def test_on_the_reference_host_there_is_nothing_to_adapt() -> None:
    found = adaptive(
        surface(column("reference_host", "baseline")),
        {3: surface(column("reference_host", "eagle3"))},
    )
    assert found.slots == ()
    assert found.why_not.startswith("drafting never pays up to concurrency 250")


def test_nothing_is_set_beyond_what_was_measured() -> None:
    base = surface({0: {1: 100.0, 8: 300.0, 64: 900.0}})
    draft = surface({0: {1: 140.0, 8: 250.0}})
    assert max(slot.batch for slot in adaptive(base, {3: draft}).slots) <= 8


def test_one_repeat_is_nothing_to_judge_by() -> None:
    found = adaptive(BASE, {3: surface(column("reference_host", "eagle3"), None)})
    assert (found.slots, found.why_not[:30]) == ((), "some cells have one valid repe")


def test_a_file_is_read_back_as_it_was_written() -> None:
    found = adaptive(BASE, {3: DRAFT})
    assert read_slots(found.text()) == found.slots


def test_settings_for_all_batch_sizes_are_no_slots() -> None:
    text = '{"ema_alpha": 0.1, "8": {"candidate_steps": [0]}, "1": {"candidate_steps": [3, 1]}}'
    assert read_slots(text) == (Slot(1, (1, 3)), Slot(8, (0,)))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"1": {}}', '{"1": 3}', '{"1": {"candidate_steps": [true]}}', '{"x": {}}'],
)
def test_what_is_no_adaptive_file_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_slots(text)


def test_a_file_that_lies_there_already_is_not_written_again(tmp_path: Path) -> None:
    found = adaptive(BASE, {3: DRAFT})
    path = adaptive_files.save(tmp_path, "eagle3", found)
    before = path.stat()
    assert adaptive_files.save(tmp_path, "eagle3", found) == path
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    path.write_text("damaged")
    assert adaptive_files.read(adaptive_files.save(tmp_path, "eagle3", found)) == found.slots


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.json", tmp_path):
        with pytest.raises(AdaptiveError, match=re.escape(str(path))):
            adaptive_files.read(path)
