"""A replay: every row by the same requests, measured by the better fixed profile and hindsight."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from opsctl.autospec.arrivals import Requests, synthetic
from opsctl.autospec.cost import Mechanism, SwitchCost
from opsctl.autospec.patterns import ALL, CLOSED, PATTERNS
from opsctl.autospec.reference import reference_pair
from opsctl.autospec.replay import (
    Setting,
    document,
    lasting,
    mechanism_cost,
    patterned,
    replay,
)
from opsctl.autospec.simulate import scheduled
from opsctl.autospec.suite import COSTS, Case
from opsctl.errors import UsageError

PAIR = reference_pair()


def setting(
    pattern: str = "bursts", mechanism: Mechanism = "restart", hours: float = 0.6, **more: Any
) -> Setting:
    requests = ALL[pattern].requests(synthetic(2000, 1), PAIR, hours=hours)
    case = Case("synthetic", pattern, mechanism, "reference", "right")
    return Setting(requests, PAIR, case, COSTS[mechanism], **more)


def rows(content: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["policy"]: row for row in content["rows"]}


def test_the_document_keeps_its_contract() -> None:
    content = document(replay(setting()))
    assert set(rows(content)) == {
        "always:eagle3", "always:baseline", "sustained_load", "cost_aware",
    }  # fmt: skip
    for row in content["rows"]:
        assert {"policy", "mean_latency_s", "p99_latency_s", "switches"} <= set(row)
        assert 0 < row["mean_latency_s"] <= row["p99_latency_s"]
    assert content["best_fixed"] == "baseline"
    assert {"mean_latency_s", "switches"} <= set(content["hindsight"])
    assert content["one_switch_mean_latency_s"] > 0
    assert json.loads(json.dumps(content, allow_nan=False)) == content


def test_latencies_are_those_of_the_simulator() -> None:
    chosen = setting()
    outcome = scheduled(chosen.requests, chosen.host, "eagle3")
    row = rows(document(replay(chosen)))["always:eagle3"]
    assert row["mean_latency_s"] == math.fsum(outcome.latencies) / len(outcome.latencies)
    assert row["p99_latency_s"] == outcome.quantile(0.99)


def test_the_better_fixed_profile_is_the_one_with_the_lower_mean() -> None:
    for pattern in ("quiet", "busy"):
        content = document(replay(setting(pattern, hours=0.3)))
        means = {name: row["mean_latency_s"] for name, row in rows(content).items()}
        fixed = {name: mean for name, mean in means.items() if name.startswith("always:")}
        assert f"always:{content['best_fixed']}" == min(fixed, key=lambda name: fixed[name])
    assert content["best_fixed"] == "baseline"


def test_nobody_beats_hindsight() -> None:
    for mechanism in COSTS:
        content = document(replay(setting("flapping", mechanism, hours=0.3)))
        best = content["hindsight"]["mean_latency_s"]
        assert all(row["mean_latency_s"] >= best - 1e-9 for row in content["rows"])


def test_the_same_setting_gives_the_same_document() -> None:
    assert document(replay(setting())) == document(replay(setting()))


def test_r1_leaves_one_switch_out_and_says_what_all_costs() -> None:
    content = document(replay(setting()))
    found, all_rows = content["r1"], rows(content)
    fixed = all_rows["always:baseline"]["request_seconds"]
    own = all_rows["cost_aware"]["request_seconds"]
    price = content["one_switch_mean_latency_s"] * content["case"]["requests"]
    assert found["of_best_fixed"] == pytest.approx(own / fixed)
    assert found["ratio"] == pytest.approx((own - price) / fixed)
    assert found["held"] is (found["ratio"] <= 1.05)


def test_policies_are_named_with_their_marks_or_as_profiles() -> None:
    names = ("sustained_load:12/4", "sustained_load:12/4:1/2.5", "always:eagle3", "baseline")
    content = document(replay(setting(hours=0.3, policies=names)))
    assert list(rows(content)) == ["always:eagle3", "always:baseline", *names[:2]]
    assert content["judged"] == names[0]


def test_marks_change_what_a_water_mark_policy_does() -> None:
    names = [f"sustained_load:{x}" for x in ("8/3:5/5", "5000/3:5/5", "8/3:9999/5", "8/3:5/9999")]
    content = document(replay(setting(mechanism="in_engine", policies=tuple(names))))
    often, never, late, once = (rows(content)[name]["switches"] for name in names)
    assert (never, late, once) == (0, 0, 1)
    assert often > 1


def test_only_fixed_profiles_leave_nobody_to_judge() -> None:
    content = document(replay(setting(hours=0.2, policies=("baseline",))))
    assert (content["judged"], content["r1"], content["r2"]) == (None, None, None)
    assert content["decisions"] == []


def test_a_decision_tells_its_switch_or_that_a_guard_forbade_it() -> None:
    policies = ("sustained_load:8/3:5/5",)
    content = document(replay(setting(hours=1.0, policies=policies)))
    decisions = content["decisions"]
    assert content["decisions_in_all"] == len(decisions) > 0
    switched = [x["switched_s"] for x in decisions if x["switched_s"] is not None]
    assert len(switched) == rows(content)[policies[0]]["switches"] > 0
    assert all(x["reason"] and x["at_s"] <= (x["switched_s"] or math.inf) for x in decisions)
    early = setting(hours=1.0, policies=policies)
    never = document(replay(replace(early, rules=replace(early.rules, switches_per_hour=0))))
    assert never["decisions_in_all"] > 0
    assert all(x["switched_s"] is None for x in never["decisions"])


def test_policies_start_from_where_they_are_told() -> None:
    content = document(replay(setting(hours=0.2, start="baseline")))
    assert rows(content)["sustained_load"]["start"] == "baseline"
    assert rows(content)["cost_aware"]["start"] == "baseline"


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        ("eagle", "--policy eagle: no such policy"),
        ("always:x", "--policy always:x: no such policy"),
        ("sustained_load:8", "no such policy"),
        ("sustained_load:3/8", "LOW must be below HIGH"),
    ],
)
def test_a_policy_that_does_not_exist_is_an_error(policy: str, wanted: str) -> None:
    with pytest.raises(UsageError, match=wanted):
        replay(setting(hours=0.1, policies=(policy,)))


def test_a_case_without_requests_is_an_error() -> None:
    empty = replace(setting(hours=0.1), requests=Requests("none", (), (), (), 1.0))
    with pytest.raises(UsageError, match="no request arrives"):
        replay(empty)


def test_a_trace_is_cut_or_begins_again() -> None:
    source = Requests("r", (0.0, 900.0, 1800.0), (1, 2, 3), (4, 5, 6), 0.5)
    cut = lasting(source, 0.3)
    assert (cut.at, cut.output, cut.hours) == ((0.0, 900.0), (4, 5), 0.3)
    longer = lasting(source, 0.8)
    assert longer.at == (0.0, 900.0, 1800.0, 1800.0, 2700.0)
    assert longer.prompt == (1, 2, 3, 1, 2)


def test_clients_that_wait_are_said_to_and_measured_by_their_work() -> None:
    chosen = setting("clients sessions", hours=0.4)
    content = document(replay(chosen))
    case = content["case"]
    assert (case["clients_wait"], case["hours"]) == (True, 0.4)
    assert case["requests"] == len(chosen.requests) > 1000
    assert 0.3 < case["load"] < 1.2
    assert content["one_switch_mean_latency_s"] * len(chosen.requests) > 240.0 * 30
    assert document(replay(setting(hours=0.1)))["case"]["clients_wait"] is False


def test_a_policy_is_asked_until_every_client_has_its_answers() -> None:
    played = replay(setting("clients few", hours=0.2))
    for name, track in played.tracks.items():
        end = played.verdict.row(name).end
        assert end <= track.times[-1] < end + 1.0


def test_answers_of_one_token_do_not_fill_the_memory() -> None:
    tiny = Requests("r", (0.0, 1.0), (1, 1), (1, 1), 1 / 3600)
    assert len(patterned(PATTERNS["busy"], tiny, PAIR, 0.01, 0)) > 10_000
    with pytest.raises(UsageError, match=r"diurnal over 24 h gives 24\.\d million requests"):
        patterned(PATTERNS["diurnal"], tiny, PAIR, None, 0)
    with pytest.raises(UsageError, match=r"clients many over 24 h gives \d+\.\d million requests"):
        patterned(CLOSED["clients many"], tiny, PAIR, 24.0, 0)


def test_seconds_replace_how_long_nobody_serves_and_nothing_else() -> None:
    assert mechanism_cost("restart", COSTS, None) == COSTS["restart"]
    gated = COSTS["gated_restart"]
    assert mechanism_cost("gated_restart", COSTS, 7.0) == SwitchCost(gated.prepare, 7.0)
    assert mechanism_cost("in_engine", COSTS, 0.0).free
    with pytest.raises(UsageError, match="inside the engine nobody waits"):
        mechanism_cost("in_engine", COSTS, 1.0)
