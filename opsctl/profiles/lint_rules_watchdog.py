"""Rules between a profile and the watchdog that switches to and from it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.profiles.lint_model import Complaint, Rule
from opsctl.profiles.lint_subject import Subject

_HIGH = "auto_spec.sustained_load.high"
_STEPS = 8


def _role(s: Subject) -> str | None:
    if s.config is None:
        return None
    auto = s.config.auto_spec
    return {auto.speculative: "speculative", auto.baseline: "baseline"}.get(s.name)


def _by_queue(s: Subject) -> Iterator[Complaint]:
    if s.config is None or _role(s) != "speculative" or s.capacity is None:
        return
    high = s.config.auto_spec.sustained_load.high
    if high > s.capacity:
        yield Complaint(
            _HIGH,
            f"{s.name} decodes at most {s.capacity} requests at once, so a load of {high:g} is "
            "reached only when others wait in its queue",
        )


def _small_baseline(s: Subject) -> Iterator[Complaint]:
    if s.config is None or _role(s) != "baseline":
        return
    high, cap = s.config.auto_spec.sustained_load.high, s.number("max-running-requests")
    if cap is not None and cap < high:
        yield Complaint(
            s.key("max-running-requests"),
            f"the baseline runs {cap} requests at once and is switched to at a load of {high:g}",
        )


def _stale_load(s: Subject) -> Iterator[Complaint]:
    interval = s.number("decode-log-interval")
    if _role(s) is None or s.since(13) or (interval is not None and interval <= _STEPS):
        return
    yield Complaint(
        s.key("decode-log-interval"),
        f"SGLang {s.catalogue.version} refreshes its load every {interval or 40} decode steps",
    )


RULES = (
    Rule(
        "threshold-by-queue",
        "info",
        "The watchdog counts running and queued requests, so it works; but a mark above what can "
        "run means that requests already wait when the switch begins.",
        "Lower the mark, or raise `max-running-requests`.",
        "sglang#34290; the watchdog's load is running + queued",
        _by_queue,
    ),
    Rule(
        "small-baseline",
        "warning",
        "Requests would still wait after the switch that is to help them.",
        "Raise the baseline's `max-running-requests` above the mark.",
        "the configuration",
        _small_baseline,
    ),
    Rule(
        "stale-load",
        "info",
        "Up to 0.5.12 the watchdog reads the load from /metrics, which changes only as often as "
        "the decode log is written.",
        "Set `decode-log-interval: 8`.",
        "0.5.9 `srt/metrics/collector.py`",
        _stale_load,
    ),
)
