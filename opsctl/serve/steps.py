"""Whether an engine's draft steps follow the load as its adaptive file says. Pure.

Where SGLang cannot adapt it writes one warning at its start and goes on with fixed steps. What
tells is the gauge of the steps in use, and it has traps (read in SGLang 0.5.14 and 0.5.23,
`metrics_reporter.py`): it is set with each decode report only (every 40 steps by default), shows 0
before the first one, and keeps its last value through an idle time or a long prefill, while the
count of running requests moves on. So only a new decode report counts, which is one with another
throughput; and several in a row have to contradict the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from opsctl.autospec.adaptive import Slot

Verdict = Literal["unknown", "following", "static"]

REPORTS = 6
"""Decode reports in a row that contradict the file until it counts as not followed."""
LEAST = 10.0
"""Seconds that they have to span at least."""
SILENT = 60.0
"""Seconds of such load without any gauge of the steps that count as not followed."""


@dataclass(frozen=True)
class Report:
    """What one reading of an engine's metrics says about speculation; None is not said.

    `throughput` (tok/s) changes with each decode report.
    """

    running: int | None = None
    steps: int | None = None
    throughput: float | None = None


_GAUGE = re.compile(
    r"^sglang[:_](num_running_reqs|spec_num_steps|gen_throughput)(?:\{[^}]*\})? (\S+)$",
    re.MULTILINE,
)


def read(text: str) -> Report:
    """Return what an exposition says, the most of several series: only one rank can adapt."""
    most: dict[str, float] = {}
    for name, written in _GAUGE.findall(text):
        try:
            value = float(written)
        except ValueError:
            continue
        if math.isfinite(value):
            most[name] = max(value, most.get(name, value))
    running, steps = most.get("num_running_reqs"), most.get("spec_num_steps")
    return Report(
        running=None if running is None else int(running),
        steps=None if steps is None else int(steps),
        throughput=most.get("gen_throughput"),
    )


class Steps:
    """Follows the draft steps of one engine from its start to its end.

    `configured` are the steps that it would keep if it did not adapt.
    """

    def __init__(self, slots: Sequence[Slot], configured: int) -> None:
        self.slots = tuple(slots)
        self.configured = configured
        self.verdict: Verdict = "unknown"
        self.evidence = ""
        """What the verdict rests on, in words."""
        self._running = 0
        self._throughput = 0.0
        self._ever_reported = False
        self._against = 0
        self._against_since = 0.0
        self._silent_since: float | None = None

    def allowed(self, least: int, most: int) -> frozenset[int]:
        """Return the steps that the file allows for some batch of `least` to `most` requests.

        SGLang pads a batch to the next one with a CUDA graph before it looks into the file; which
        those are is not known here, so the places up to twice the batch count too.
        """
        ends = [*(slot.batch for slot in self.slots[1:]), None]
        reach = 2 * most + 8
        return frozenset(
            step
            for place, (slot, end) in enumerate(zip(self.slots, ends, strict=True))
            if (place == 0 or slot.batch <= reach) and (end is None or end > least)
            for step in slot.steps
        )

    def see(self, now: float, report: Report, at_engine: int = 0) -> None:
        """Take in one reading; `now` is monotonic seconds.

        `at_engine` requests are there by the gateway's count: the engine's own lacks those it has
        just prefilled.
        """
        if report.running is None:
            return
        low, high = sorted((self._running, report.running))
        high = max(high, at_engine)
        self._running = report.running
        if report.steps is None:
            self._silent(now, low, high)
            return
        self._ever_reported, self._silent_since = True, None
        if self._is_new(report.throughput) and report.running > 0:
            self._judge(now, report.steps, self.allowed(max(low, 1), high), report.running)

    def told(self, line: str) -> None:
        """Take in the engine's own word that it does not adapt."""
        self.verdict, self.evidence = "static", f"its log says: {line}"

    def sentence(self) -> str:
        """Say what is known, in words."""
        if self.verdict == "static":
            return f"the engine keeps to {self.configured} draft steps at any load: {self.evidence}"
        if self.verdict == "following":
            return f"the engine moves its own draft steps with the load: {self.evidence}"
        return "the engine is to move its own draft steps; no load has shown yet that it does"

    def _is_new(self, throughput: float | None) -> bool:
        """Whether there was a decode report since: 0 is the mark of an idle engine."""
        if not throughput or throughput == self._throughput:
            return False
        self._throughput = throughput
        return True

    def _judge(self, now: float, steps: int, allowed: frozenset[int], running: int) -> None:
        if steps in allowed:
            self._against = 0
            if steps != self.configured:
                self.verdict = "following"
                self.evidence = f"{steps} with {running} running"
            return
        if not self._against:
            self._against_since = now
        self._against += 1
        if self._against >= REPORTS and now - self._against_since >= LEAST:
            self.verdict = "static"
            self.evidence = (
                f"{steps} draft steps with {running} running, in {self._against} reports over "
                f"{now - self._against_since:.0f} s, where its file allows {_listed(allowed)} only"
            )

    def _silent(self, now: float, low: int, high: int) -> None:
        """No gauge: that says something only under a load where the steps would have to move."""
        if self._ever_reported or self.configured in self.allowed(max(low, 1), high):
            self._silent_since = None
            return
        if self._silent_since is None:
            self._silent_since = now
        if now - self._silent_since >= SILENT:
            self.verdict = "static"
            self.evidence = (
                f"for {now - self._silent_since:.0f} s it has not reported its draft steps "
                "(sglang:spec_num_steps), so nothing shows that they move"
            )


def table(slots: Sequence[Slot]) -> str:
    """Return the slots in one line: `1-7 running: 3 steps, from 8: 0 steps`."""
    parts = []
    for slot, after in pairwise((*slots, None)):
        assert slot is not None  # noqa: S101 - only the last is
        place = f"from {slot.batch}" if after is None else _range(slot.batch, after.batch - 1)
        parts.append(f"{place} running: {_listed(slot.steps)} steps")
    return ", ".join(parts)


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _listed(steps: Sequence[int] | frozenset[int]) -> str:
    return " or ".join(map(str, sorted(steps)))
