"""The table of docs/patches.md is the series, and nothing else."""

from __future__ import annotations

from pathlib import Path

from opsctl.patching.reference import filled
from opsctl.patching.series import load

PAGE = Path(__file__).parents[3] / "docs/patches.md"


def test_the_table_is_made_from_the_series() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == filled(page, load()), "run `python -m opsctl.patching.reference docs/patches.md`"


def test_every_patch_is_explained() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for patch in load().patches:
        assert f"**{patch.name}**" in page
