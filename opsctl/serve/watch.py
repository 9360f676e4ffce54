"""Looks at the serving engine once a second: load, progress, children, and a probe when idle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from opsctl.autospec.load import LoadSample
from opsctl.config.schema import HealthConfig
from opsctl.engine import gauges
from opsctl.engine.client import Loads
from opsctl.engine.start import RunningEngine
from opsctl.errors import OpsctlError
from opsctl.serve import steps
from opsctl.serve.adapting import Adapting
from opsctl.serve.health import ProgressWatch, Sight
from opsctl.serve.steps import Report
from opsctl.serve.traffic import GatewayCounters

METRICS_EVERY = 2.0
"""Seconds between looks at the engine's metrics: draft steps in use, tokens generated."""
PROBE_FAILURES = 2
"""Failed idle probes in a row that count as a hang."""


@dataclass(frozen=True)
class Look:
    """What one look found; `lost` is (kind, why) when the engine must be replaced."""

    sample: LoadSample
    speculative_steps: int | None = None
    lost: tuple[str, str] | None = None


class EngineWatch:
    """Watches one engine from ready to its end."""

    def __init__(
        self,
        engine: RunningEngine,
        config: HealthConfig,
        counters: Callable[[], GatewayCounters],
        clock: Callable[[], float],
        follower: Adapting | None = None,
    ) -> None:
        self._engine = engine
        self._follower = follower
        self._config = config
        self._counters = counters
        self._clock = clock
        self._progress = ProgressWatch(config.hang_after, clock())
        self._probe: asyncio.Task[None] | None = None
        self._next_probe = clock() + config.probe_every
        self._probe_failures = 0
        self._probe_error = ""
        self._next_metrics = clock()
        self._steps: int | None = None

    async def look(self) -> Look:
        """One look; asks the engine for its loads, with that call's own short deadline."""
        await self._engine.process.look()
        self._engine.log.read_new()  # also keeps the file from growing without bound
        missing = self._engine.process.missing_children()
        if missing:  # SGLang 0.5.9 lives on then, and answers no question for a load
            why = f"{', '.join(missing)} died while the main process lives"
            return Look(_sample(self._clock(), self._counters(), None), lost=("child_lost", why))
        loads = await self._engine.client.loads()
        generated = None if loads is None else loads.generation_tokens_total
        if self._clock() >= self._next_metrics:
            self._next_metrics = self._clock() + METRICS_EVERY
            metrics = await self._engine.client.metrics_text()
            self._read(metrics)
            generated = gauges.generated_tokens(metrics)
        now, counters = self._clock(), self._counters()
        sample = _sample(now, counters, loads, generated)
        return Look(sample, self._steps, self._lost(now, counters, loads))

    def _read(self, metrics: str | None) -> None:
        """Take the draft steps out of an engine's metrics; None when it does not answer."""
        report = Report() if metrics is None else steps.read(metrics)
        self._steps = report.steps
        if self._follower is not None and metrics is not None:
            self._follower.see(self._clock(), report, self._counters().at_engine)

    def close(self) -> None:
        """Stop watching."""
        if self._probe is not None:
            self._probe.cancel()

    def _lost(
        self, now: float, counters: GatewayCounters, loads: Loads | None
    ) -> tuple[str, str] | None:
        hung = self._progress.observe(Sight(now, counters.at_engine, counters.last_progress, loads))
        if hung is not None:
            return ("hang", hung)
        self._probe_when_idle(now, counters)
        if self._probe_failures >= PROBE_FAILURES:
            return ("hang", f"idle probe failed {self._probe_failures} times: {self._probe_error}")
        return None

    def _probe_when_idle(self, now: float, counters: GatewayCounters) -> None:
        """Traffic proves health better than any probe, so only an idle engine is asked."""
        if counters.at_engine:
            self._next_probe = now + self._config.probe_every
            self._probe_failures = 0
            return
        if now >= self._next_probe and (self._probe is None or self._probe.done()):
            self._next_probe = now + self._config.probe_every
            self._probe = asyncio.ensure_future(self._ask())

    async def _ask(self) -> None:
        try:
            await self._engine.client.generate_one(self._config.probe_timeout)
        except OpsctlError as error:
            self._probe_failures += 1
            self._probe_error = error.message
        else:
            self._probe_failures = 0


def gateway_sample(now: float, counters: GatewayCounters) -> LoadSample:
    """What the gateway alone knows; the time is in milliseconds, as the load journal keeps it."""
    return LoadSample(
        time=round(now, 3),
        held=counters.held,
        in_flight=counters.in_flight,
        stalled=counters.waiting_for_client,
        arrived=counters.admitted_total,
        completed=counters.completed_total + counters.failed_total + counters.abandoned_total,
    )


def _sample(
    now: float, counters: GatewayCounters, loads: Loads | None, generated: int | None = None
) -> LoadSample:
    """One sample; stale loads are unknown, as a stuck scheduler leaves its last numbers behind.

    Tokens generated are known at a look at the metrics only: an old number would look like a
    stall.
    """
    gateway = replace(gateway_sample(now, counters), generated=generated)
    if loads is None or loads.stale:
        return gateway
    return replace(
        gateway,
        running=loads.running,
        queued=loads.queued,
        used_tokens=loads.used_tokens,
        accept_length=loads.accept_length,
    )
