"""The advice on a pair: what follows, what a day would gain, and what is not claimed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from opsctl.autospec.advise import document
from opsctl.autospec.arrivals import synthetic
from opsctl.autospec.bands import bands
from opsctl.autospec.mechanism import Choice
from opsctl.autospec.pair import Pair
from opsctl.autospec.patterns import PATTERNS
from opsctl.autospec.reference import reference_pair
from opsctl.autospec.replay import Replay, Setting, replay
from opsctl.autospec.suite import COSTS, Case
from tests.support.surfaces import surface

BASE = {1: 100.0, 8: 400.0, 32: 700.0}


def pair(*factors: float, spread: float | None = 0.01, print_: str = "sha256:a") -> Pair:
    fast = {n: rate * f for (n, rate), f in zip(BASE.items(), factors, strict=True)}
    return Pair(
        surface(
            {0: fast}, spread=spread, fingerprint=print_, accept_length=2.4 if print_ else None
        ),
        surface(
            {0: BASE},
            profile="baseline",
            speculative=False,
            spread=spread,
            fingerprint=print_,
        ),
    )


def played(chosen: Pair, pattern: str, hours: float, sized: Pair | None = None) -> Replay:
    """Play a load that is sized for `sized`, else for the pair itself."""
    requests = PATTERNS[pattern].requests(synthetic(2000, 1), sized or chosen, hours=hours)
    case = Case("synthetic", pattern, "restart", "r", "right")
    return replay(Setting(requests, chosen, case, COSTS["restart"]))


def advice(
    chosen: Pair, load: Replay | None = None, choice: Choice | None = None
) -> dict[str, Any]:
    judged = bands(chosen.speculative, chosen.baseline)
    return document(chosen, "a file", judged, choice, load)


@pytest.mark.parametrize(
    ("factors", "verdict"),
    [
        ((1.3, 1.2, 1.1), "eagle3 is faster wherever it was measured: serve it"),
        ((0.9, 0.8, 0.7), "eagle3 is slower wherever it was measured: serve baseline"),
        ((1.0, 1.0, 1.0), "eagle3 and baseline cannot be told apart"),
        ((1.0, 0.9, 0.7), "eagle3 was not seen to be faster anywhere: serve baseline"),
        ((1.3, 1.0, 0.7), "eagle3 is faster at some loads, baseline at others: see the contexts"),
    ],
)
def test_the_verdict_is_one_sentence(factors: tuple[float, ...], verdict: str) -> None:
    content = advice(pair(*factors))
    assert content["verdict"] == verdict
    assert [band["context"] for band in content["contexts"]] == [0]


@pytest.mark.parametrize(
    ("factors", "means"),
    [
        ((1.3, 1.2, 1.1), "faster everywhere by the means"),
        ((0.9, 0.8, 0.7), "slower everywhere by the means"),
        ((1.3, 1.0, 0.7), "it depends on load by the means"),
    ],
)
def test_without_intervals_only_the_means_speak(factors: tuple[float, ...], means: str) -> None:
    content = advice(pair(*factors, spread=None))
    assert content["verdict"].endswith(f"without intervals; {means}")
    assert any("the surfaces have no intervals" in item for item in content["refused"])


def test_what_is_known_is_not_refused() -> None:
    known = advice(pair(1.3, 1.0, 0.7), choice=Choice("restart"))["refused"]
    assert known == ["what a day would gain: no load was given (--history, --trace or --pattern)"]
    unknown = "\n".join(advice(pair(1.3, 1.0, 0.7, print_=""))["refused"])
    assert "not of a profile measured here" in unknown
    assert "how many drafts were accepted at measurement is not known" in unknown
    assert "which mechanism applies" in unknown


def test_that_it_always_pays_ends_where_it_was_measured() -> None:
    refused = advice(pair(1.3, 1.2, 1.1))["refused"]
    assert "where it stops to pay at context 0: +10.0 % at 32, the most" in refused


def test_the_mechanism_says_why_not_the_cheaper_one() -> None:
    choice = Choice("restart", why_not={"in_engine": ("SGLang 0.5.9 is too old",)})
    content = advice(pair(1.3, 1.0, 0.7), choice=choice)
    assert content["mechanism"]["name"] == "restart"
    assert content["mechanism"]["why_not"] == {"in_engine": ["SGLang 0.5.9 is too old"]}
    assert "in_engine is cheaper, but SGLang 0.5.9 is too old" in content["mechanism"]["words"]


def test_a_day_is_scaled_from_the_load_and_compared_with_the_better_profile() -> None:
    load = played(reference_pair(), "quiet", 0.5)
    content = advice(reference_pair(), load)
    day = {row["policy"]: row for row in content["day"]}
    fixed = load.verdict.row("always:eagle3")
    assert day["always:eagle3"]["request_seconds"] == pytest.approx(48 * fixed.request_seconds)
    assert day["always:eagle3"]["saves_request_seconds"] == 0
    other = load.verdict.row("always:baseline")
    loses = day["always:baseline"]["saves_s_a_request"]
    assert loses == pytest.approx(fixed.mean - other.mean)
    assert loses < 0
    assert day["best in hindsight"]["saves_s_a_request"] >= 0
    assert json.loads(json.dumps(content, allow_nan=False)) == content


def test_what_the_load_does_not_support_is_not_claimed() -> None:
    refused = "\n".join(advice(reference_pair(), played(reference_pair(), "quiet", 0.5))["refused"])
    assert "what a whole day gives: 0.5 h of load were given" in refused
    assert "the time to read prompts" in refused
    assert "measured up to 0, whose speed is used" in refused
    assert "requests at once" not in refused


def test_more_requests_than_were_measured_are_told() -> None:
    chosen = pair(1.0, 1.0, 1.0)
    load = played(chosen, "spike", 1.0, sized=reference_pair())
    refused = "\n".join(advice(chosen, load)["refused"])
    assert "the speed of more than 32 requests at once: with cost_aware" in refused
