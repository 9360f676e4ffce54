"""RECORD: what is not changed stays to the byte, what is changed is right."""

from __future__ import annotations

import csv
import io

from hypothesis import given
from hypothesis import strategies as st

from opsctl.patching.record import digest, digests, paths, rewritten

NAMES = st.text(
    st.characters(blacklist_characters="\n\r\0", blacklist_categories=["Cs"]), min_size=1
)
CONTENTS = st.dictionaries(NAMES, st.binary(max_size=20), min_size=1, max_size=8)


def record(contents: dict[str, bytes], ending: str = "\n") -> bytes:
    """As pip writes it: quoted where it must be, the last line without a hash."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=ending)
    empty = rewritten(b"", {}, dict(contents), ())
    for row in csv.reader(io.StringIO(empty.decode())):
        writer.writerow(row)
    writer.writerow(["x.dist-info/RECORD", "", ""])
    return text.getvalue().encode()


@given(CONTENTS, st.sampled_from(["\n", "\r\n"]), st.data())
def test_lines_of_other_files_stay_to_the_byte(
    contents: dict[str, bytes], ending: str, data: st.DataObject
) -> None:
    before = record(contents, ending)
    changed = data.draw(st.sets(st.sampled_from(sorted(contents))))
    after = rewritten(before, dict.fromkeys(changed, b"new"), {}, ())
    assert digests(after) == {
        name: digest(b"new" if name in changed else content) for name, content in contents.items()
    }
    assert paths(after) == paths(before), "in the same order"
    kept = [x for x in before.splitlines(True) if paths(x)[0] not in changed]
    assert [x for x in after.splitlines(True) if paths(x)[0] not in changed] == kept
    assert after.count(ending.encode()) == len(contents) + 1


@given(CONTENTS, CONTENTS)
def test_what_is_added_and_removed_again_leaves_no_trace(
    contents: dict[str, bytes], more: dict[str, bytes]
) -> None:
    before = record(contents)
    added = {f"opsctl/{name}": content for name, content in more.items()}
    with_more = rewritten(before, {}, added | {"unhashed.pyc": None}, ())
    assert digests(with_more) == digests(before) | {x: digest(y) for x, y in added.items()}
    assert rewritten(with_more, {}, {}, [*added, "unhashed.pyc"]) == before


@given(st.binary(max_size=80))
def test_nothing_in_a_damaged_record_makes_it_fail(content: bytes) -> None:
    assert set(digests(content)) <= set(paths(content))
    rewritten(content, {}, {"x": b""}, ["y"])


def test_a_damaged_line_spoils_no_other() -> None:
    good = record({"a.py": b"a", "b.py": b"b"})
    bad = b'"never closed,sha256=x,1\n' + b"z.py,sha256=A,1\n" + good
    found = digests(bad)
    assert (found["a.py"], found["b.py"]) == (digest(b"a"), digest(b"b"))
    assert "z.py" not in found


def test_other_hashes_than_sha256_are_none() -> None:
    assert digests(b"a.py,md5=0cc175b9c0f1b6a831c399e269772661,1\nb.py,,\n") == {}


def test_a_last_line_without_an_end_gets_one_before_others_follow() -> None:
    assert rewritten(b"a.py,,", {}, {"b.py": None}, ()) == b"a.py,,\nb.py,,\n"
