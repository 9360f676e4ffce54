"""Headers of patch files: what is read from them and what is refused."""

from __future__ import annotations

import re

import pytest

from opsctl.patching.diff import MalformedError
from opsctl.patching.headers import read

TEXT = """\
Description: What it does
 A paragraph
 of two lines.
Origin: vendor
Bug: https://github.com/sgl-project/sglang/issues/15650
Forwarded: no
Last-Update: 2026-11-29
License: Apache-2.0 (context lines: SGLang authors)
X-Opsctl-Requires: SGLang>=0.5.14,<0.5.18
 flashinfer_python>=0.6.12
X-Opsctl-Arch: 12.0, 12.1
X-Opsctl-Wipe: trtllm_comm*
X-Opsctl-Optional: yes
X-Opsctl-Symbols: sglang/a.py: top, Engine.width
 sglang/b.py: (imports)
---
--- a/sglang/a.py
+++ b/sglang/a.py
@@ -1 +1 @@
-old
+new
--- a/sglang/b.py
+++ b/sglang/b.py
@@ -1 +1 @@
-old
+new
"""


def test_every_field_is_read() -> None:
    file = read("x.patch", TEXT)
    assert file.description == "What it does"
    assert file.package == "sglang"
    assert [str(x) for x in file.requires] == [
        "SGLang<0.5.18,>=0.5.14",
        "flashinfer_python>=0.6.12",
    ]
    assert (file.optional, file.arch, file.wipe) == (True, ("12.0", "12.1"), "trtllm_comm*")
    assert file.symbols == {
        "sglang/a.py": {"top", "Engine.width"},
        "sglang/b.py": {"(imports)"},
    }
    assert [x.path for x in file.changes] == ["sglang/a.py", "sglang/b.py"]


@pytest.mark.parametrize(
    ("version", "covered"),
    [("0.5.13", False), ("0.5.14", True), ("0.5.17", True), ("0.5.18", False), ("0.6.0", False)],
)
def test_a_range_takes_in_its_first_and_not_its_last_release(version: str, covered: bool) -> None:
    assert read("x.patch", TEXT).covers(version) is covered


def test_what_may_be_left_out_has_a_calm_default() -> None:
    text = re.sub(r"(?m)^(Bug|X-Opsctl-(Arch|Wipe|Optional)): .*\n", "", TEXT)
    file = read("x.patch", text)
    assert (file.optional, file.arch, file.wipe) == (False, (), None)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("\n---\n", "\n", "no line `---`"),
        ("License: Apache-2.0 (context lines: SGLang authors)\n", "", "no License"),
        ("Forwarded: no", "Forwarded:", "no Forwarded"),
        ("Forwarded: no", "Forwarded: no\nForwarded: yes", "no field of its own"),
        ("Bug:", "X-Opsctl-Wype:", "unknown X-Opsctl-Wype"),
        ("Description:", " Description:", "no field of its own"),
        ("trtllm_comm*", "../trtllm_comm*", "no glob of module names"),
        ("SGLang>=0.5.14", "SGLang=>0.5.14", "X-Opsctl-Requires"),
        (" sglang/b.py: (imports)\n", "", "does not name the files of the diff"),
        ("sglang/b.py: (imports)", "sglang/b.py (imports)", "is not `file: names`"),
        ("+++ b/sglang/a.py", "+++ b/sglang/c.py", "only lines of existing files"),
    ],
)
def test_what_is_wrong_is_said(old: str, new: str, said: str) -> None:
    assert old in TEXT
    with pytest.raises(MalformedError, match=re.escape(said)):
        read("x.patch", TEXT.replace(old, new, 1))
