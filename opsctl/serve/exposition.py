"""One scrape for both: opsctl's own metrics and, after them, the engine's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from opsctl.serve.exposition_watchdog import watchdog_metrics
from opsctl.serve.traffic import GatewayCounters, Histogram, Traffic

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SAMPLE = re.compile(
    r"([a-zA-Z_:][a-zA-Z0-9_:]*)"  # name
    r'(\{(?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\.)*",?)*\})?'  # labels
    r"[ \t]+(\S+)([ \t]+-?\d+)?[ \t]*",  # value, time
    re.ASCII,
)
_VALUE = re.compile(r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|Inf|NaN)", re.A)
_META = re.compile(
    r"# (?:(HELP) ([a-zA-Z_:][a-zA-Z0-9_:]*) .*"
    r"|(TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*) (?:counter|gauge|histogram|summary|untyped))"
)
_SUFFIXES = ("_bucket", "_sum", "_count", "_created", "_total")


class _Own(Collector):
    def __init__(
        self, counters: GatewayCounters, traffic: Traffic, status: Mapping[str, object], up: bool
    ) -> None:
        self._counters = counters
        self._traffic = traffic
        self._status = status
        self._up = up

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield _histogram(
            "opsctl_gateway_hold_seconds",
            "Time requests waited at the gate.",
            self._traffic.hold_seconds,
        )
        yield _histogram(
            "opsctl_gateway_first_byte_seconds",
            "Time from a request's arrival to the first byte of its answer.",
            self._traffic.first_byte_seconds,
        )
        yield _gauge("opsctl_engine_metrics_up", "1 when the engine's metrics are below.", self._up)
        yield from _status_metrics(self._status)
        yield from watchdog_metrics(self._status)

    def _requests(self) -> Iterator[Metric]:
        counters = self._counters
        outcomes = CounterMetricFamily(
            "opsctl_gateway_requests", "Requests that ended, by outcome.", labels=["outcome"]
        )
        for outcome in ("completed", "failed", "abandoned", "rejected"):
            outcomes.add_metric([outcome], self._traffic.outcomes[outcome])
        yield outcomes
        for name, text, value in (
            ("admitted", "Requests let in, to an engine or to wait.", counters.admitted_total),
            ("retries", "Tries after an engine gave no answer.", counters.retried_total),
            ("cuts", "Responses ended on purpose before their end.", counters.cut_total),
        ):
            yield CounterMetricFamily(f"opsctl_gateway_{name}", text, value=value)
        yield _gauge("opsctl_gateway_in_flight", "Requests at the engine.", counters.in_flight)
        yield _gauge("opsctl_gateway_held", "Requests waiting at the gate.", counters.held)
        yield _gauge("opsctl_gateway_held_bytes", "Bytes of their bodies.", counters.held_bytes)
        yield _gauge(
            "opsctl_gateway_oldest_in_flight_seconds",
            "Age of the oldest request at the engine.",
            counters.oldest_in_flight,
        )


def own_text(
    counters: GatewayCounters, traffic: Traffic, status: Mapping[str, object], *, engine_up: bool
) -> str:
    """Return opsctl's metrics. Of `status`, text becomes labels of one info metric and numbers
    become gauges; anything nested is left out.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Own(counters, traffic, status, engine_up))
    return generate_latest(registry).decode()


def merge(own: str, engine: str) -> str:
    """Return both texts as one valid exposition.

    The engine's lines are grouped so that each family appears once, in the order of its first
    line; lines that are no exposition, and families that opsctl has itself, are left out, because
    one bad line would make a scraper drop everything.
    """
    taken = {match[4] for line in own.split("\n") if (match := _META.fullmatch(line))}
    families: dict[str, _Family] = {}
    for line in engine.split("\n"):
        _take(line, families)
    kept = [family.text() for name, family in families.items() if name not in taken]
    return own + "".join(kept)


class _Family:
    def __init__(self) -> None:
        self.meta: dict[str, str] = {}
        self.samples: dict[str, str] = {}

    def text(self) -> str:
        lines = [*self.meta.values(), *self.samples.values()]
        return "\n".join(lines) + "\n" if self.samples else ""


def _take(line: str, families: dict[str, _Family]) -> None:
    if match := _META.fullmatch(line):
        name, kind = match[2] or match[4], match[1] or match[3]
        families.setdefault(name, _Family()).meta.setdefault(kind, line)
        return
    match = _SAMPLE.fullmatch(line)
    if match is None or not _VALUE.fullmatch(match[3]):
        return
    family = families.setdefault(_family_name(match[1], families), _Family())
    family.samples.setdefault(match[1] + (match[2] or ""), line)


def _family_name(sample: str, families: Mapping[str, object]) -> str:
    if sample in families:
        return sample
    for suffix in _SUFFIXES:
        base = sample.removesuffix(suffix)
        if base != sample and base in families:
            return base
    return sample


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=float(value))


def _histogram(name: str, text: str, histogram: Histogram) -> HistogramMetricFamily:
    return HistogramMetricFamily(
        name, text, buckets=histogram.cumulative(), sum_value=histogram.total
    )


def _status_metrics(status: Mapping[str, object]) -> Iterator[Metric]:
    words = {key: value for key, value in status.items() if isinstance(value, str)}
    if words:
        yield InfoMetricFamily("opsctl_state", "What opsctl is doing.", value=words)
    for key, value in status.items():
        if not isinstance(value, int | float):
            continue
        name = f"opsctl_{key}"
        if key.endswith("_total"):
            yield CounterMetricFamily(name, f"Status: {key}.", value=float(value))
        else:
            yield _gauge(name, f"Status: {key}.", value)
