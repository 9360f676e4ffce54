"""`opsctl autospec` and clients that wait for their answers: what is said, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

Opsctl = Callable[..., tuple[int, str, str]]


def test_replay_says_that_clients_wait_for_their_answers(autospec: Opsctl) -> None:
    words = ("replay", "--pattern", "clients many", "--hours", "0.1")
    code, _, err = autospec(*words)
    assert code == 0
    assert "requests of clients that wait for their answers, about 0.1 h of work; restart" in err
    assert "note: the load is" not in err
    code, out, _ = autospec(*words, "-o", "json")
    case = json.loads(out)["case"]
    assert (case["pattern"], case["clients_wait"], case["hours"]) == ("clients many", True, 0.1)
    assert "of clients" not in autospec("replay", "--pattern", "busy", "--hours", "0.1")[2]


def test_a_draft_gets_worse_in_the_middle_of_the_work(autospec: Opsctl) -> None:
    """Not of the time that the case may take at most: then it would make no difference."""

    def means(*more: str) -> dict[str, float]:
        _, out, _ = autospec(
            "replay", "--pattern", "clients few", "--hours", "0.1", "-o", "json", *more
        )
        return {row["policy"]: row["mean_latency_s"] for row in json.loads(out)["rows"]}

    right, drop = means(), means("--truth", "drop")
    assert drop["always:baseline"] == right["always:baseline"]
    assert 1.4 < drop["always:eagle3"] / right["always:eagle3"] < 1.6


def test_a_plot_of_clients_that_wait_is_refused_before_anything_is_played(
    autospec: Opsctl, tmp_path: Path
) -> None:
    code, out, err = autospec("replay", "--pattern", "clients few", "--plot", "x.svg")
    assert (code, out) == (2, "")
    assert "--plot shows arrivals" in err
    assert not (tmp_path / "x.svg").exists()


def test_advise_does_not_make_a_day_of_clients_that_wait(autospec: Opsctl) -> None:
    code, out, err = autospec("advise", "--pattern", "clients few")
    assert (code, out) == (2, "")
    assert "how much comes in a day depends on what serves" in err
    assert "hint: opsctl autospec replay plays it" in err


def test_a_pattern_that_does_not_exist_is_told_with_all_there_are(autospec: Opsctl) -> None:
    code, _, err = autospec("replay", "--pattern", "clients")
    assert code == 2
    assert "there are quiet, busy," in err
    assert "clients few, clients many, clients sessions, clients thinking" in err
