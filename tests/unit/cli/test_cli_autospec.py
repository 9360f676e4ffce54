"""`opsctl autospec`: what a person types, what comes out, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl.autospec import surface_files
from opsctl.autospec.cost import Costs
from opsctl.autospec.reference import reference_pair
from opsctl.serve.remembered import Snapshot
from opsctl.serve.remembered import save as save_state
from opsctl.serve.state import State
from tests.support.load_journals import journal

Opsctl = Callable[..., tuple[int, str, str]]
TABLE = """
one:
  source: a host
  baseline: {1: 92.6, 30: 711, 70: 773}
  eagle3: {1: 129.6, 8: 337, 30: 299.5, 70: 341}
two:
  concurrency: [1, 32]
  baseline: {0: [80, 600], 16384: [70, 400]}
  mtp: {0: [120, 700], 16384: [100, 300]}
"""


@pytest.fixture
def opsctl(autospec: Opsctl, tmp_path: Path) -> Opsctl:
    """Run a command line in a folder with a table."""
    (tmp_path / "table.yaml").write_text(TABLE)
    return autospec


def document(shown: tuple[int, str, str]) -> dict[str, Any]:
    code, out, err = shown
    assert code == 0, err
    content: dict[str, Any] = json.loads(out)
    return content


def configured(folder: Path, **auto_spec: object) -> None:
    """A configuration with a pair of simulated profiles."""
    draft = {
        "speculative_algorithm": "EAGLE3", "speculative_num_steps": 3,
        "speculative_num_draft_tokens": 4,
    }  # fmt: skip
    content = {
        "state_dir": str(folder / "state"),
        "profiles": {
            "baseline": {"engine": "simulated", "model": "simulated/tiny"},
            "eagle3": {"engine": "simulated", "model": "simulated/tiny", "flags": draft},
        },
        "serve": {"profile": "baseline"},
        "auto_spec": {"speculative": "eagle3", "baseline": "baseline", **auto_spec},
    }
    (folder / "opsctl.yaml").write_text(yaml.safe_dump(content))


# --- surface -----------------------------------------------------------------------------------


def test_a_table_is_imported_and_shown(opsctl: Opsctl) -> None:
    code, out, err = opsctl("surface", "import", "table.yaml", "--out", "all.json")
    assert (code, out) == (0, "")
    assert "one: baseline (3 points), eagle3 (4 points, speculates)" in err
    code, out, err = opsctl("surface", "show", "all.json", "--case", "two")
    assert code == 0
    assert out.splitlines()[0].split() == ["CONTEXT", "CONCURRENCY", "MTP", "BASELINE", "RATIO"]
    assert out.splitlines()[1].split() == ["0", "1", "120.0", "80.0", "1.500"]
    assert "context 16384: unknown, as there are no intervals; the means say up to" in err


def test_profiles_of_a_table_may_be_picked(opsctl: Opsctl) -> None:
    words = ("surface", "import", "table.yaml", "--out", "b.json", "--case", "one")
    assert opsctl(*words, "--profile", "baseline")[0] == 0
    content = document(opsctl("surface", "show", "b.json", "-o", "json"))
    assert (content["schema"], content["profiles"]) == ("opsctl/surface-show/v1", ["baseline"])
    code, _, err = opsctl(*words, "--profile", "basline")
    assert (code, "no profile 'basline' in one" in err) == (2, True)


def test_a_file_of_several_cases_wants_one(opsctl: Opsctl) -> None:
    code, _, err = opsctl("surface", "show", "table.yaml")
    assert code == 2
    assert "several cases: one, two" in err
    assert "--case" in err


def test_faults_of_a_table_are_told_with_their_places(opsctl: Opsctl, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("a:\n  baseline: {1: -1}\n  eagle3: {x: 2}\n")
    code, out, err = opsctl("surface", "import", "bad.yaml", "--out", "x.json")
    assert (code, out) == (2, "")
    assert "bad.yaml:2:17: a.baseline.1: expected tok/s" in err
    assert "bad.yaml:3:12: a.eagle3.x: not a concurrency" in err
    assert not (tmp_path / "x.json").exists()


def test_a_file_that_cannot_be_read_or_written_is_named(opsctl: Opsctl, tmp_path: Path) -> None:
    code, _, err = opsctl("surface", "import", "none.yaml", "--out", "x.json")
    assert (code, "none.yaml: No such file" in err) == (2, True)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    code, _, err = opsctl("surface", "import", "binary", "--out", "x.json")
    assert (code, "binary: not text" in err) == (2, True)
    code, _, err = opsctl("surface", "import", "table.yaml", "--out", "no/x.json")
    assert (code, "no/x.json: cannot be written" in err) == (1, True)


def test_measured_profiles_are_shown_by_name(opsctl: Opsctl, tmp_path: Path) -> None:
    configured(tmp_path)
    code, _, err = opsctl("surface", "show")
    assert (code, "no surface was found" in err) == (1, True)
    pair = reference_pair()
    for surface in (pair.speculative, pair.baseline):
        surface_files.save(tmp_path / "state", surface)
    content = document(opsctl("surface", "show", "-o", "json"))
    assert (content["speculative"], content["baseline"]) == ("eagle3", "baseline")
    assert len(content["cells"]) == 5
    code, out, _ = opsctl("surface", "show", "eagle3")
    assert (code, "RATIO" in out) == (0, False)
    code, _, err = opsctl("surface", "show", "eagle4")
    assert (code, "eagle4: neither a file nor a profile" in err) == (2, True)


# --- replay ------------------------------------------------------------------------------------


def test_a_pattern_is_replayed_on_the_reference_host(opsctl: Opsctl) -> None:
    code, out, err = opsctl("replay", "--pattern", "flapping", "--hours", "0.2")
    assert code == 0
    assert out.splitlines()[0].split()[:2] == ["POLICY", "MEAN"]
    assert out.splitlines()[-1].startswith("best in hindsight")
    assert "no --surface and no configuration; assumed: the reference host" in err
    assert "R1 (no harm)" in err


def test_a_table_is_replayed_as_it_is(opsctl: Opsctl) -> None:
    words = ("replay", "--pattern", "quiet", "--hours", "0.2", "--case", "two", "-o", "json")
    content = document(opsctl(*words, "--surface", "table.yaml"))
    assert content["schema"] == "opsctl/replay/v1"
    assert (content["case"]["surface"], content["case"]["speculative"]) == ("two", "mtp")
    assert content["best_fixed"] == "mtp"
    opsctl("surface", "import", "table.yaml", "--out", "all.json")
    again = document(opsctl(*words, "--surface", "all.json"))
    assert again == content


def test_two_files_of_tune_make_a_pair(opsctl: Opsctl, tmp_path: Path) -> None:
    pair = reference_pair()
    paths = [str(surface_files.save(tmp_path, x)) for x in (pair.baseline, pair.speculative)]
    words = ("replay", "--pattern", "quiet", "--hours", "0.2", "-o", "json")
    content = document(opsctl(*words, "--surface", paths[0], "--surface", paths[1]))
    assert content["case"]["speculative"] == "eagle3"
    code, _, err = opsctl(*words, "--surface", paths[0])
    assert (code, "no surface of a speculative profile" in err) == (2, True)


def test_the_same_command_line_gives_the_same_answer(opsctl: Opsctl) -> None:
    words = ("replay", "--pattern", "bursts", "--hours", "0.4", "-o", "json")
    first = document(opsctl(*words, "--seed", "3"))
    assert document(opsctl(*words, "--seed", "3")) == first
    other = document(opsctl(*words, "--seed", "4"))
    assert other["rows"] != first["rows"]


def test_mechanisms_cost_what_is_said(opsctl: Opsctl) -> None:
    words = ("replay", "--pattern", "quiet", "--hours", "0.1", "-o", "json", "--mechanism")
    assert document(opsctl(*words, "restart"))["case"]["closed_s"] == 240
    assert document(opsctl(*words, "gated_restart"))["case"]["closed_s"] == 60
    assert document(opsctl(*words, "in_engine"))["case"]["closed_s"] == 0
    assert document(opsctl(*words, "restart", "--switch-seconds", "9"))["case"]["closed_s"] == 9


def test_a_trace_gives_its_requests_and_a_pattern_its_rates(opsctl: Opsctl, tmp_path: Path) -> None:
    lines = [{"at": n / 2, "prompt_tokens": 100, "output_tokens": 50 + n % 3} for n in range(600)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    case = document(opsctl("replay", "--trace", "t.jsonl", "-o", "json"))["case"]
    assert (case["trace"], case["pattern"], case["requests"]) == ("t.jsonl", "as recorded", 600)
    assert case["mean_output"] == pytest.approx(51)
    both = ("replay", "--trace", "t.jsonl", "--pattern", "quiet", "--hours", "0.1", "-o", "json")
    case = document(opsctl(*both))["case"]
    assert (case["pattern"], case["hours"]) == ("quiet", 0.1)
    assert case["mean_output"] == pytest.approx(51, abs=0.5)
    assert case["load"] == pytest.approx(0.08, abs=0.02)


def test_truth_differs_from_the_surface_where_it_is_asked_for(opsctl: Opsctl) -> None:
    words = ("replay", "--pattern", "quiet", "--hours", "0.3", "-o", "json", "--truth")
    means = {
        truth: document(opsctl(*words, truth))["rows"][0]["mean_latency_s"]
        for truth in ("right", "wrong", "drop")
    }
    assert means["right"] < means["wrong"] < means["drop"]


def test_a_picture_is_written(opsctl: Opsctl, tmp_path: Path) -> None:
    words = ("replay", "--pattern", "bursts", "--hours", "0.3", "--plot")
    code, _, err = opsctl(*words, "p.svg")
    assert (code, "written: p.svg" in err) == (0, True)
    assert (tmp_path / "p.svg").read_text().startswith("<svg ")
    code, _, err = opsctl(*words, "no/p.svg")
    assert (code, "no/p.svg: cannot be written" in err) == (1, True)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ((), "no load is given"),
        (("--pattern", "calm"), "--pattern calm: no such pattern"),
        (("--pattern", "quiet", "--policy", "clever"), "--policy clever: no such policy"),
        (("--pattern", "quiet", "--hours", "0"), "--hours 0: more than 0"),
        (("--pattern", "quiet", "--hours", "nan"), "--hours nan: more than 0"),
        (("--pattern", "quiet", "--hours", "1000"), "744 at most"),
        (("--pattern", "quiet", "--start", "x"), "--start x: no such profile"),
        (("--pattern", "quiet", "--case", "one"), "choose among --surface FILE"),
        (("--pattern", "quiet", "--surface", "table.yaml"), "several cases: one, two"),
        (("--trace", "none.csv"), "none.csv: No such file"),
        (("--trace", "table.yaml"), "not the header of a trace"),
        (("--pattern", "quiet", "--mechanism", "in_engine", "--switch-seconds", "5"),
         "inside the engine nobody waits"),
        (("--pattern", "quiet", "--switch-seconds", "inf"), "86400 at most"),
        (("--pattern", "quiet", "--suite", "--plot", "x.svg"), "--plot shows one case"),
    ],
)  # fmt: skip
def test_what_cannot_be_replayed_is_told(
    opsctl: Opsctl, words: tuple[str, ...], wanted: str
) -> None:
    code, out, err = opsctl("replay", *words)
    assert (code, out) == (2, "")
    assert wanted in err
    assert "unexpected" not in err


def test_a_suite_goes_through_every_case(opsctl: Opsctl) -> None:
    words = ("replay", "--suite", "--pattern", "flapping", "--hours", "0.1", "-o", "json")
    content = document(opsctl(*words, "--truth", "right", "--surface", "table.yaml"))
    assert content["schema"] == "opsctl/replay-suite/v1"
    names = [case["case"]["name"] for case in content["cases"]]
    assert len(names) == len(set(names)) == 2 * 3
    assert content["r1"]["applies"] == 6
    assert content["r1"]["held"] + len(content["r1"]["missed"]) == 6


def test_a_load_journal_is_played_again(opsctl: Opsctl, tmp_path: Path) -> None:
    (tmp_path / "load.jsonl").write_text(journal())
    content = document(opsctl("replay", "--trace", "load.jsonl", "-o", "json"))
    assert (content["schema"], content["differences"]) == ("opsctl/replay-journal/v1", 0)
    (tmp_path / "load.jsonl").write_text(journal(lie=True))
    code, out, err = opsctl("replay", "--trace", "load.jsonl")
    assert code == 1
    assert "switch" in out
    assert "first difference 20 s after the begin" in err
    assert opsctl("replay", "--trace", "load.jsonl", "--policy", "baseline")[0] == 0
    content = document(opsctl("replay", "--trace", "load.jsonl", "--pattern", "quiet",
                              "--hours", "0.1", "-o", "json"))  # fmt: skip
    assert content["case"]["mean_output"] == 50


def test_files_that_a_journal_was_rotated_into_belong_to_it(opsctl: Opsctl, tmp_path: Path) -> None:
    lines = journal().splitlines(keepends=True)
    for name, part in (("load.jsonl.2", lines[:9]), ("load.jsonl.1", lines[9:20])):
        (tmp_path / name).write_text("".join(part))
    (tmp_path / "load.jsonl").write_text("".join(lines[20:]))
    content = document(opsctl("replay", "--trace", "load.jsonl", "-o", "json"))
    assert (content["samples"], content["differences"]) == (30, 0)
    alone = document(opsctl("replay", "--trace", "load.jsonl.2", "-o", "json"))
    assert alone["samples"] == 7


# --- advise ------------------------------------------------------------------------------------


def test_advice_without_surfaces_is_a_missing_precondition(opsctl: Opsctl, tmp_path: Path) -> None:
    code, out, err = opsctl("advise")
    assert (code, out) == (4, "")
    assert "no --surface and no configuration" in err
    configured(tmp_path)
    code, _, err = opsctl("advise")
    assert (code, "was never measured on this host" in err) == (4, True)
    assert "opsctl tune" in err


def test_advice_on_a_table_says_what_the_means_say_and_refuses_the_rest(opsctl: Opsctl) -> None:
    code, out, err = opsctl("advise", "--surface", "table.yaml", "--case", "two")
    assert code == 0
    assert re.search(r"^16384 +unknown, as there are no intervals; the means say up to", out, re.M)
    assert "nothing significant can be claimed without intervals" in err
    assert "not claimed: what a day would gain: no load was given" in err
    assert "not claimed: which mechanism applies" in err


def test_advice_with_a_load_says_what_a_day_would_gain(opsctl: Opsctl) -> None:
    words = ("advise", "--surface", "table.yaml", "--case", "one", "--pattern", "quiet")
    content = document(opsctl(*words, "--hours", "0.2", "-o", "json"))
    assert content["schema"] == "opsctl/advise/v1"
    policies = [row["policy"] for row in content["day"]]
    assert policies[:2] == ["always:eagle3", "always:baseline"]
    assert {"sustained_load", "cost_aware", "best in hindsight"} <= set(policies)
    code, out, err = opsctl(*words, "--hours", "0.2")
    assert (code, "A DAY WITH" in out) == (0, True)
    assert "load: " in err


def test_advice_of_a_configuration_names_the_mechanism(opsctl: Opsctl, tmp_path: Path) -> None:
    configured(tmp_path)
    pair = reference_pair()
    for surface in (pair.speculative, pair.baseline):
        surface_files.save(tmp_path / "state", surface)
    words = ("advise", "--pattern", "quiet", "--hours", "0.1", "-o", "json")
    content = document(opsctl(*words))
    assert content["mechanism"]["name"] == content["load"]["mechanism"]
    assert content["mechanism"]["why_not"]["in_engine"]
    forced = document(opsctl(*words, "--mechanism", "restart"))
    assert forced["load"]["mechanism"] == "restart"


def test_switches_of_this_host_replace_what_is_assumed(opsctl: Opsctl, tmp_path: Path) -> None:
    configured(tmp_path, mechanism="restart")
    pair = reference_pair()
    for surface in (pair.speculative, pair.baseline):
        surface_files.save(tmp_path / "state", surface)
    costs = Costs().with_switch("eagle3", prepare=0, closed=77).with_switch(
        "baseline", prepare=0, closed=50
    )  # fmt: skip
    snapshot = Snapshot(State(), "boot", 1, paused=False, costs={"restart": costs})
    save_state(tmp_path / "state" / "state.json", snapshot)
    words = ("--pattern", "quiet", "--hours", "0.1", "-o", "json")
    code, out, err = opsctl("replay", *words)
    assert (code, json.loads(out)["case"]["closed_s"]) == (0, 77)
    assert "a switch takes 77 s, learnt from 2 on this host" in err
    assert document(opsctl("advise", *words))["load"]["closed_s"] == 77
    asked = document(opsctl("replay", *words, "--switch-seconds", "5"))
    assert asked["case"]["closed_s"] == 5
    gated = document(opsctl("replay", *words, "--mechanism", "gated_restart"))
    assert gated["case"]["closed_s"] == 60


def test_a_load_is_given_once(opsctl: Opsctl) -> None:
    code, _, err = opsctl("advise", "--history", "a", "--trace", "b")
    assert (code, "both loads" in err) == (2, True)


@pytest.mark.parametrize("verb", ["replay", "advise", "surface import", "surface show"])
def test_every_verb_explains_itself(opsctl: Opsctl, verb: str) -> None:
    code, out, _ = opsctl(*verb.split(), "--help")
    assert code == 0
    assert "Usage: opsctl autospec" in out
    assert "--speculative" in out
