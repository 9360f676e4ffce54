"""Metrics of the watchdog: what it decides by, what it wants, what a switch costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)


def watchdog_metrics(status: Mapping[str, Any]) -> Iterator[Metric]:
    """Return the metrics; none without `--auto-spec`."""
    watchdog = status.get("watchdog")
    if not isinstance(watchdog, Mapping):
        return
    words = {"policy": str(watchdog["policy"]), "mechanism": str(watchdog["mechanism"])}
    yield InfoMetricFamily("opsctl_watchdog", "What the watchdog decides by.", value=words)
    yield _gauge(
        "opsctl_watchdog_blind",
        "1 when the policy has no surface that it may use.",
        watchdog["no_surface"] is not None,
    )
    yield _costs(watchdog["costs"])
    yield CounterMetricFamily(
        "opsctl_load_samples_dropped",
        "Lines of the load journal that the disk did not take.",
        value=float(watchdog["samples_dropped"]),
    )
    decision = status.get("last_decision")
    if isinstance(decision, Mapping):
        wanted = decision["action"] == "switch"
        yield _gauge("opsctl_watchdog_wants_switch", "1 when the policy wants a switch.", wanted)
        vetoes = len(decision["vetoes"])
        yield _gauge("opsctl_watchdog_vetoes", "What stands against acting on it.", vetoes)


def _costs(costs: Mapping[str, Mapping[str, float]]) -> Metric:
    family = GaugeMetricFamily(
        "opsctl_switch_cost_seconds",
        "What a switch to the profile takes: beside the old engine, and without an engine.",
        labels=["profile", "part"],
    )
    for profile, cost in costs.items():
        family.add_metric([profile, "prepare"], cost["prepare_s"])
        family.add_metric([profile, "closed"], cost["closed_s"])
    return family


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=float(value))
