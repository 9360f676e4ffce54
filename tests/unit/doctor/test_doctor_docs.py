"""The reference page is the checks, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from opsctl.doctor.reference import GROUPS, reference
from opsctl.doctor.registry import CHECKS

DOCS = Path(__file__).parents[3] / "docs"


def test_the_reference_page_is_made_from_the_checks() -> None:
    page = (DOCS / "reference/doctor.md").read_text(encoding="utf-8")
    assert page == reference(), "run `python -m opsctl.doctor.reference`"


def test_every_check_stands_on_the_page_once_in_order() -> None:
    found = re.findall(r"^\| `([a-z0-9-]+)` \| (?:fail|warn) \|", reference(), re.MULTILINE)
    assert found == [one.id for one in CHECKS]
    assert [one for _, checks in GROUPS for one in checks] == list(CHECKS)


def test_every_row_has_all_six_cells() -> None:
    checks = reference().split("\n## Driver\n")[1]
    rows = [line for line in checks.splitlines() if line.startswith("| `")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {7}


def test_the_checks_of_the_how_to_exist() -> None:
    page = (DOCS / "how-to/check-a-host.md").read_text(encoding="utf-8")
    known = {one.id for one in CHECKS}
    commands = re.findall(r"(?:--only|explain) ([a-z0-9-]+)", page)
    named = re.findall(r"checks? ((?:`[a-z0-9-]+`(?:, | and )?)+)", page)
    words = {word for group in named for word in re.findall(r"`([a-z0-9-]+)`", group)}
    assert commands and words
    assert {*commands, *words} <= known
