"""Whatever the engine says, one scrape of opsctl stays valid."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from opsctl.serve.exposition import merge, own_text
from opsctl.serve.traffic import GatewayCounters, Traffic

NOTHING = GatewayCounters(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, None, 0.0)
OWN = own_text(NOTHING, Traffic(), {"state": "ready", "nested": {"a": 1}}, engine_up=True)

names = st.sampled_from(["a", "a_total", "a_sum", "a_bucket", "sglang:x", "opsctl_gateway_held"])
values = st.sampled_from(["1", "1.5e3", "NaN", "+Inf", "1_0", "x", ""])
labels = st.sampled_from(
    ["", "{}", '{l="v"}', '{l="\\"},"}', '{l="v",}', '{le="+Inf"}', "{l=v}", "{"]
)
kinds = st.sampled_from(["counter", "gauge", "histogram", "summary", "untyped", "bogus"])
lines = st.one_of(
    st.builds("{}{} {}".format, names, labels, values),
    st.builds("# TYPE {} {}".format, names, kinds),
    st.builds("# HELP {} {}".format, names, st.text(max_size=10)),
    st.text(max_size=30),
    st.just("# EOF"),
)


def families(text: str) -> list[str]:
    return [family.name for family in text_string_to_metric_families(text)]


@given(st.lists(lines, max_size=12).map("\n".join))
@example("# TYPE a counter\na_total 1\n# TYPE a_total gauge\na_total 2")
def test_any_engine_text_gives_a_scrape_that_parses_with_each_family_once(engine: str) -> None:
    merged = merge(OWN, engine)
    found = families(merged)
    assert merged.startswith(OWN)
    assert found[: len(families(OWN))] == families(OWN)
    headers = [line.split()[2] for line in merged.splitlines() if line.startswith("# TYPE")]
    assert len(headers) == len(set(headers))


def test_a_valid_engine_text_is_kept_line_for_line() -> None:
    engine = (
        "# HELP sglang:latency Seconds.\n# TYPE sglang:latency histogram\n"
        'sglang:latency_bucket{le="1"} 2\nsglang:latency_bucket{le="+Inf"} 2\n'
        "sglang:latency_sum 0.5\nsglang:latency_count 2\n"
        '# TYPE x_total counter\nx_total{m="a b"} 3 1395066363000\n'
    )
    assert merge(OWN, engine) == OWN + engine


WATCHDOG = {
    "policy": "cost_aware",
    "mechanism": "restart",
    "no_surface": None,
    "costs": {"eagle3": {"prepare_s": 0.0, "closed_s": 211.5, "seen": 2}},
    "samples_dropped": 3,
}
DECISION = {"action": "switch", "vetoes": ["dwell", "budget"]}


def watchdog_samples(**status: object) -> dict[str, float]:
    text = own_text(NOTHING, Traffic(), status, engine_up=True)
    return {
        sample.name + "".join(f" {value}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "gateway" not in sample.name
    }


def test_what_the_watchdog_decides_by_is_in_the_scrape() -> None:
    found = watchdog_samples(watchdog=WATCHDOG, last_decision=DECISION)
    assert found["opsctl_watchdog_info restart cost_aware"] == 1
    assert found["opsctl_watchdog_blind"] == 0
    assert found["opsctl_watchdog_wants_switch"] == 1
    assert found["opsctl_watchdog_vetoes"] == 2
    assert found["opsctl_switch_cost_seconds closed eagle3"] == 211.5
    assert found["opsctl_load_samples_dropped_total"] == 3
    assert watchdog_samples(watchdog={**WATCHDOG, "no_surface": "x"})["opsctl_watchdog_blind"] == 1


def test_without_a_watchdog_there_is_nothing_of_it() -> None:
    assert not [name for name in watchdog_samples(watchdog=None) if "watchdog" in name]
