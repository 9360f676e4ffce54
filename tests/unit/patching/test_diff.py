"""Strict diffs: generated ones, and those that `git apply` would move to another place."""

from __future__ import annotations

import difflib
import subprocess
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from opsctl.patching.diff import (
    DoesNotApplyError,
    FileDiff,
    MalformedError,
    apply_strictly,
    parse,
    presence,
)

FEW = st.sampled_from(["a", "b", "c", "    return x", "", "é \x0c \x85", "\ttab"])
MANY = st.text(st.characters(blacklist_characters="\n\r", blacklist_categories=["Cs"]), max_size=6)
TEXTS = st.lists(FEW | MANY, min_size=1, max_size=12)


def text(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def between(old: list[str], new: list[str], context: int = 1) -> FileDiff:
    """The diff of two lists of lines, as `diff -U1` writes it."""
    lines = difflib.unified_diff(old, new, "a/m/x.py", "b/m/x.py", n=context, lineterm="")
    (found,) = parse("".join(f"{line}\n" for line in lines))
    return found


@given(TEXTS, TEXTS, st.integers(1, 3))
def test_what_it_applies_is_the_new_text_or_it_refuses(
    old: list[str], new: list[str], context: int
) -> None:
    assume(old != new)
    diff = between(old, new, context)
    try:
        assert apply_strictly(text(old), diff) == text(new)
    except DoesNotApplyError as refused:
        assert "places" in str(refused) or "overlap" in str(refused)


@given(TEXTS, TEXTS)
def test_what_it_applies_it_takes_back_or_refuses(old: list[str], new: list[str]) -> None:
    assume(old != new)
    diff = between(old, new)
    try:
        assert apply_strictly(text(new), diff, reverse=True) == text(old)
    except DoesNotApplyError as refused:
        assert "places" in str(refused) or "overlap" in str(refused)


@given(st.lists(st.integers(0, 10**9), min_size=3, max_size=20, unique=True), st.data())
def test_in_lines_that_are_all_different_it_always_applies(
    numbers: list[int], data: st.DataObject
) -> None:
    old = [f"line {number}" for number in numbers]
    place = data.draw(st.integers(0, len(old) - 1))
    new = [*old[:place], "new", *old[place + 1 :]]
    diff = between(old, new)
    assert apply_strictly(text(old), diff) == text(new)
    assert apply_strictly(text(new), diff, reverse=True) == text(old)
    assert presence(text(old), diff) == ("old",)
    assert presence(text(new), diff) == ("new",)


@given(TEXTS, TEXTS, TEXTS, TEXTS)
def test_lines_before_and_after_do_not_matter_unless_the_place_is_there_too(
    old: list[str], new: list[str], before: list[str], after: list[str]
) -> None:
    assume(old != new)
    diff = between(old, new, context=3)
    assume(len(diff.hunks) == 1)
    around = text(before) + text(old) + text(after)
    try:
        assert apply_strictly(around, diff) == text(before) + text(new) + text(after)
    except DoesNotApplyError as refused:
        assert "fits at" in str(refused)


def test_git_agrees_where_the_place_is_the_only_one(tmp_path: Path) -> None:
    old = [f"line {number}" for number in range(40)]
    new = [*old[:10], "ten", *old[11:30], *old[31:], "more"]
    patch = "".join(
        f"{x}\n" for x in difflib.unified_diff(old, new, "a/x.py", "b/x.py", n=1, lineterm="")
    )
    for shift in (0, 7):
        content = text(["moved"] * shift + old)
        (tmp_path / "x.py").write_bytes(content)
        (tmp_path / "p.patch").write_text(patch)
        done = subprocess.run(
            ["git", "apply", "--unidiff-zero", "p.patch"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        (diff,) = parse(patch)
        assert apply_strictly(content, diff) == (tmp_path / "x.py").read_bytes()


TWICE = ["def one():", "    x = 1", "    return x", "def two():", "    x = 1", "    return x"]
TWO = """--- a/x.py
+++ b/x.py
@@ -5,2 +5,2 @@
-    x = 1
+    x = 2
     return x
"""


def test_a_place_that_is_there_twice_is_refused_wherever_the_line_number_points() -> None:
    (diff,) = parse(TWO)
    with pytest.raises(DoesNotApplyError, match=r"x.py: the hunk of line 5 fits at 2 places"):
        apply_strictly(text(TWICE), diff)


def test_a_place_that_is_nowhere_is_refused() -> None:
    (diff,) = parse(TWO)
    with pytest.raises(DoesNotApplyError, match="fits nowhere"):
        apply_strictly(b"    x = 1 \n    return x\n", diff)


def test_a_file_without_a_last_newline_or_with_other_line_ends_fits_nowhere() -> None:
    (diff,) = parse(TWO)
    for content in (b"    x = 1\n    return x", b"    x = 1\r\n    return x\r\n"):
        with pytest.raises(DoesNotApplyError, match="fits nowhere"):
            apply_strictly(content, diff)


def test_hunks_in_another_order_than_the_file_are_refused() -> None:
    hunks = ["@@ -1 +1,2 @@\n b\n+B\n", "@@ -2 +3,2 @@\n a\n+A\n"]
    (diff,) = parse("--- a/x.py\n+++ b/x.py\n" + "".join(hunks))
    assert apply_strictly(b"b\na\n", diff) == b"b\nB\na\nA\n"
    with pytest.raises(DoesNotApplyError, match="out of order"):
        apply_strictly(b"a\nb\n", diff)


def test_one_hunk_that_does_not_fit_leaves_everything() -> None:
    hunks = ["@@ -1 +1,2 @@\n a\n+A\n", "@@ -2 +3,2 @@\n gone\n+A\n"]
    (diff,) = parse("--- a/x.py\n+++ b/x.py\n" + "".join(hunks))
    with pytest.raises(DoesNotApplyError, match="line 2 fits nowhere"):
        apply_strictly(b"a\nb\n", diff)
    assert presence(b"a\nA\nb\n", diff) == ("both", "neither")


@pytest.mark.parametrize(
    "body",
    [
        "",
        "no diff\n",
        "--- /dev/null\n+++ b/x.py\n@@ -0,0 +1 @@\n+new\n",
        "--- a/x.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n",
        "--- a/x.py\n+++ b/y.py\n@@ -1 +1 @@\n-old\n+new\n",
        "--- a/../x.py\n+++ b/../x.py\n@@ -1 +1 @@\n-old\n+new\n",
        "--- a/x.py\n+++ b/x.py\n@@ -0,0 +1 @@\n+no context\n",
        "--- a/x.py\n+++ b/x.py\n@@ -1,2 +1 @@\n-too short\n",
        "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-old\n+new\n\\ No newline at end of file\n",
    ],
)
def test_what_is_no_change_of_lines_is_malformed(body: str) -> None:
    with pytest.raises(MalformedError):
        parse(body)
