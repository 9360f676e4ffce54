"""The reference page is the rules, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from opsctl.profiles.lint import NOTES, RULES
from opsctl.profiles.lint_reference import reference

DOCS = Path(__file__).parents[3] / "docs"


def test_the_reference_page_is_made_from_the_rules() -> None:
    page = (DOCS / "reference/lint.md").read_text(encoding="utf-8")
    assert page == reference(), "run `python -m opsctl.profiles.lint_reference`"


def test_every_code_stands_on_the_page_under_its_severity() -> None:
    text = reference()
    headings = {"Errors": "error", "Warnings": "warning", "Notes": "info"}
    told: dict[str, str] = {}
    for heading, severity in headings.items():
        section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
        told |= dict.fromkeys(re.findall(r"^\| `([a-z0-9-]+)` \|", section, re.MULTILINE), severity)
    assert told == {rule.code: rule.severity for rule in (*RULES, *NOTES)}


def test_every_row_has_all_four_cells() -> None:
    rows = [line for line in reference().splitlines() if line.startswith("| `")]
    assert rows
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {5}
    assert all(cell.strip() for row in rows for cell in row.strip("|").split(" | "))


def test_the_codes_of_the_how_to_exist() -> None:
    codes = {rule.code for rule in (*RULES, *NOTES)}
    page = (DOCS / "how-to/check-a-profile.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\[([a-z0-9]+(?:-[a-z0-9]+)+)\]", page))
    assert named and named <= codes
