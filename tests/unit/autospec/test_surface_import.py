"""Tables of throughputs as people publish them, and what is wrong with them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from opsctl.autospec.surface_import import read
from opsctl.autospec.surface_sets import Case, Roles, choose, dump, one_case, speculates
from opsctl.errors import UsageError

TABLE = """
small:
  source: a host; four GPUs
  baseline: {1: 92.6, 30: 711}
  eagle3: {1: 120, 30: 299.5}
rows:
  source: as above
  concurrency: [1, 2, 4]
  speculative:
    0: [114.1, 178.9, 243.7]
    16k: [null, 166.4, 226.4]
  baseline:
    0: [88.5, 148.4, 233.8]
    16384: [82.6, 139.1, 214.6]
"""


def rates(case: Case, profile: str) -> dict[tuple[int, int], float]:
    """Tok/s by context and concurrency."""
    [surface] = [x for x in case.surfaces if x.profile == profile]
    return {(point.context, point.concurrency): point.tok_s for point in surface.points}


def faults(text: str, roles: Roles | None = None) -> list[str]:
    with pytest.raises(UsageError) as caught:
        read(text, "t.yaml", roles)
    return caught.value.message.splitlines()


def test_numbers_by_concurrency_are_at_context_0() -> None:
    small, _ = read(TABLE, "t.yaml")
    assert (small.case, small.source) == ("small", "a host; four GPUs")
    assert rates(small, "eagle3") == {(0, 1): 120.0, (0, 30): 299.5}
    assert [x.speculative for x in small.surfaces] == [False, True]


def test_rows_go_by_the_list_of_concurrencies_and_null_was_not_measured() -> None:
    rows = one_case(read(TABLE, "t.yaml"), "rows", "t.yaml")
    assert rates(rows, "baseline")[16384, 4] == 214.6
    assert rates(rows, "speculative") == {
        (0, 1): 114.1, (0, 2): 178.9, (0, 4): 243.7, (16384, 2): 166.4, (16384, 4): 226.4,
    }  # fmt: skip


def test_nested_mappings_and_plain_lists_say_the_same_as_rows() -> None:
    nested = "a:\n baseline: {0: {1: 5, 2: 6}}\n mtp: {0: {1: 7, 2: 8}}\n"
    listed = "a:\n concurrency: [1, 2]\n baseline: [5, 6]\n mtp: [7, 8]\n"
    assert read(nested, "t") == read(listed, "t")


def test_a_file_that_is_one_case_itself_needs_no_name() -> None:
    [case] = read("baseline: {1: 5}\ndraft: {1: 6}\n", "t")
    assert (case.case, [x.profile for x in case.surfaces]) == ("", ["baseline", "draft"])


@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_json_says_the_same_as_yaml(indent: Any) -> None:
    text = json.dumps(yaml.safe_load(TABLE), indent=indent)
    assert read(text, "t.json") == read(TABLE, "t.yaml")


def test_imported_surfaces_claim_neither_a_fingerprint_nor_intervals() -> None:
    for case in read(TABLE, "t"):
        for surface in case.surfaces:
            assert surface.fingerprint == ""
            assert surface.bounds(1, 0) is None
            assert "imported" in surface.provenance.note


@pytest.mark.parametrize("take", [slice(0, 1), slice(0, 2)])
def test_what_is_written_reads_back_the_same(take: slice) -> None:
    cases = read(TABLE, "t")[take]
    assert read(dump(cases), "written.json") == cases


def test_one_profile_alone_is_written_as_tune_writes_it() -> None:
    [case] = read("a: {eagle3: {1: 5}}", "t")
    assert json.loads(dump([case]))["schema"] == "opsctl/surface/v1"
    assert read(dump([case]), "t")[0].surfaces == case.surfaces


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a: 1", ["t.yaml:1:4: a: not a case: expected a mapping with profiles"]),
        ("a: {}", ["t.yaml:1:4: a: a case without profiles"]),
        ("", ["t.yaml: no case in it"]),
        ("[1]", ["t.yaml:1:1: must be a mapping (lines of `key: value`)"]),
        ("a: {eagle: {1: -1, x: 3}}", [
            "t.yaml:1:16: a.eagle.1: expected tok/s, more than 0 (null where it was not measured)",
            "t.yaml:1:20: a.eagle.x: not a concurrency: expected a whole number, 1 or more",
        ]),
        ("a: {eagle: {0: 3}}", [
            "t.yaml:1:13: a.eagle.0: not a concurrency: expected a whole number, 1 or more",
        ]),
        ("a: {eagle: {0: [1, 2]}}", [
            "t.yaml:1:16: a.eagle.0: a row needs `concurrency: [...]` in its case",
        ]),
        ("a: {concurrency: [1], eagle: {0: [1, 2]}}", [
            "t.yaml:1:34: a.eagle.0: 2 numbers for 1 concurrencies",
        ]),
        ("a: {concurrency: [1, 1], eagle: {0: [1, 2]}}", [
            "t.yaml:1:18: a.concurrency: a concurrency stands there twice",
            "t.yaml:1:33: a.eagle: a place stands there twice (1k is 1024)",
        ]),
        ("a: {eagle: {1: null}}", ["t.yaml:1:12: a.eagle: nothing was measured of this profile"]),
        ("a: {eagle: {1: 2, 1: 3}}", [
            "t.yaml:1:19: a.eagle.1: written twice; the first is in line 1",
        ]),
        ("a: {eagle: {1: true}}", [
            "t.yaml:1:16: a.eagle.1: expected tok/s, more than 0 (null where it was not measured)",
        ]),
        ("a: {eagle: {1: [1], 2: 3}}", [
            "t.yaml:1:16: a.eagle.1: a row needs `concurrency: [...]` in its case",
            "t.yaml:1:24: a.eagle.2: a single number among rows of contexts",
        ]),
        ("a: {source: [1], eagle: {1: 2}}", ["t.yaml:1:13: a.source: expected words"]),
        ("a: {this: {1: 2}, that: {1: 2}}", [
            "t.yaml:1:11: a.this: its name does not tell whether it speculates: "
            "--speculative or --baseline",
            "t.yaml:1:25: a.that: its name does not tell whether it speculates: "
            "--speculative or --baseline",
        ]),
        ('{"schema": "x"}', [
            "t.yaml: schema 'x' is not one of opsctl/surface/v1, opsctl/surfaces/v1",
        ]),
        ('{"schema": "opsctl/surfaces/v1", "cases": []}', ["t.yaml: `cases` holds no case"]),
        ('{"schema": "opsctl/surfaces/v1", "cases": [7]}', [
            "t.yaml: Input should be a valid dictionary or instance of Case",
        ]),
    ],
)  # fmt: skip
def test_each_fault_is_told_once_with_its_place(text: str, wanted: list[str]) -> None:
    assert faults(text) == wanted


@pytest.mark.parametrize(
    "text", ["a: [", "a: !!python/object:os.x {}", "a: &a [*a]", "[" * 5000, "a: \x00", "a: .nan"]
)
def test_what_is_no_table_is_one_error_and_no_crash(text: str) -> None:
    assert faults(text)


def test_a_thousand_faults_are_not_all_told() -> None:
    rows = ", ".join(f"{n}: 0" for n in range(1, 1001))
    told = faults(f"a: {{eagle: {{{rows}}}}}")
    assert (len(told), told[-1]) == (11, "... and 990 more")


@given(st.text(max_size=60) | st.text(alphabet="a:{}[]1,\n -0.k", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert read(text, "t")
    except UsageError as error:
        assert "t" in error.message


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("baseline", False), ("plain", False), ("no-spec", False), ("nospec", False),
        ("without_draft", False), ("eagle3", True), ("speculative", True), ("qwen-mtp2", True),
        ("standalone-draft", True), ("kimi", None), ("nova", None), ("tp8", None),
    ],
)  # fmt: skip
def test_a_name_tells_whether_a_profile_speculates(name: str, wanted: bool | None) -> None:
    assert speculates(name) is wanted


def test_the_other_of_two_needs_no_telling_name() -> None:
    [case] = read("a: {kimi: {1: 2}, eagle3: {1: 2}}", "t")
    assert [x.speculative for x in case.surfaces] == [False, True]


def test_a_person_may_say_which_one_speculates() -> None:
    [case] = read("a: {this: {1: 2}, that: {1: 2}}", "t", Roles(speculative="that"))
    assert [x.speculative for x in case.surfaces] == [False, True]


def test_of_several_drafts_the_one_measured_most_is_taken_and_said() -> None:
    [case] = read("a: {baseline: {1: 2, 2: 3}, eagle3: {1: 2, 2: 3}, eagle3_easy: {1: 9}}", "t")
    chosen = choose(case.surfaces, Roles())
    assert (chosen.speculative.profile, chosen.baseline.profile) == ("eagle3", "baseline")
    assert chosen.notes == (
        "of eagle3, eagle3_easy, eagle3 was measured most; --speculative takes another",
    )
    named = choose(case.surfaces, Roles(speculative="eagle3_easy"))
    assert (named.speculative.profile, named.notes) == ("eagle3_easy", ())


@pytest.mark.parametrize(
    ("profiles", "roles", "wanted"),
    [
        ("baseline eagle3 mtp", Roles(), "several speculative surfaces: eagle3, mtp"),
        ("baseline", Roles(), "no surface of a speculative profile"),
        ("eagle3", Roles(), "no surface of a baseline profile"),
        ("baseline eagle3", Roles("x"), "--speculative x: no such surface"),
        ("baseline eagle3", Roles("baseline"), "baseline cannot be both"),
    ],
)
def test_a_pair_that_is_not_clear_is_an_error(profiles: str, roles: Roles, wanted: str) -> None:
    [case] = read("".join(f"{name}: {{1: 2}}\n" for name in profiles.split()), "t")
    with pytest.raises(UsageError, match=wanted):
        choose(case.surfaces, roles)


def test_the_same_profile_twice_is_an_error() -> None:
    [case] = read("baseline: {1: 2}\neagle3: {1: 2}\n", "t")
    with pytest.raises(UsageError, match="two surfaces of the profile baseline"):
        choose([*case.surfaces, case.surfaces[0]], Roles())


def test_a_file_of_several_cases_wants_a_name() -> None:
    cases = read(TABLE, "t")
    with pytest.raises(UsageError, match="several cases: small, rows"):
        one_case(cases, None, "t")
    with pytest.raises(UsageError, match="no case 'smal'"):
        one_case(cases, "smal", "t")
