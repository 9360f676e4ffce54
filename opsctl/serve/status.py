"""The status document: what serving does, since when and why."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from opsctl import __version__
from opsctl.provision.places import pending
from opsctl.serve.automation import Automation, Judgement
from opsctl.serve.state import Phase, State
from opsctl.serve.status_watchdog import watchdog
from opsctl.serve.supervisor import LastFailure, Supervisor

SCHEMA = "opsctl/status/v1"

Document = dict[str, object]


def status(supervisor: Supervisor) -> Document:
    """The document that `opsctl status -o json` prints; durations in seconds."""
    state, now = supervisor.state, supervisor.clock()
    waiting = supervisor.turns.waiting
    return {
        "schema": SCHEMA,
        "version": __version__,
        "pid": os.getpid(),
        "state": _word(state),
        "since": _clock_time(state.since, now),
        "reason": "; ".join(filter(None, (state.reason, supervisor.turns.reason))),
        "drain_asked": state.drain_asked,
        "profile": state.profile,
        "target": state.target or (waiting.profile if waiting is not None else None),
        "listen": supervisor.gateway.listens_on,
        "engine": _engine(supervisor),
        "load": _load(supervisor),
        "gateway": _gateway(supervisor),
        "switches": state.switches,
        "automation": _mode(supervisor.automation),
        "watchdog": watchdog(supervisor.automation),
        "last_decision": _decision(supervisor.automation.last, now),
        "next_switch": _next_switch(supervisor, now),
        "failures": len(state.failures.times),
        "last_failure": _failure(supervisor.last_failure, now),
        "quarantine": {
            name: _clock_time(until, now)
            for name, until in state.failures.quarantine.items()
            if until > now
        },
        "host_pending": list(pending()),
    }


def _word(state: State) -> str:
    """The phase; `starting` also before the first one, while an earlier engine is looked for."""
    begun = state.phase is not Phase.STOPPED or state.exit_code is not None
    return str(state.phase if begun else Phase.STARTING)


def _engine(supervisor: Supervisor) -> Document | None:
    engine = supervisor.keeper.engine
    if engine is None:
        return None
    return {
        "pid": engine.process.identity.pid,
        "kind": engine.profile.engine,
        "profile": engine.name,
        "port": engine.port,
        "stage": supervisor.keeper.stage,
        "stages": dict(engine.stages),
        "fingerprint": engine.fingerprint,
        "adopted": engine.adopted,
        "degraded": list(engine.missing_markers),
        "adaptive": supervisor.adapting.describe(),
        "members": len(engine.process.last_members),
    }


def _load(supervisor: Supervisor) -> Document:
    counters, look = supervisor.gateway.counters, supervisor.look
    sample = None if look is None else look.sample
    return {
        "running": None if sample is None else sample.running,
        "queued": None if sample is None else sample.queued,
        "held": counters.held,
        "in_flight": counters.in_flight,
        "waiting_for_client": counters.waiting_for_client,
        "accept_length": None if sample is None else sample.accept_length,
        "speculative_steps": None if look is None else look.speculative_steps,
    }


def _gateway(supervisor: Supervisor) -> Document:
    counters = supervisor.gateway.counters
    return {
        "admitted": counters.admitted_total,
        "completed": counters.completed_total,
        "failed": counters.failed_total,
        "retried": counters.retried_total,
        "cut": counters.cut_total,
        "rejected": counters.rejected_total,
    }


def _mode(automation: Automation) -> str:
    if not automation.enabled:
        return "off"
    if automation.paused:
        return "paused"
    return "observe" if automation.rules.observe or automation.blind else "on"


def _decision(judgement: Judgement | None, now: float) -> Document | None:
    if judgement is None:
        return None
    decision = judgement.decision
    return {
        "time": _clock_time(judgement.time, now),
        "action": decision.action,
        "profile": decision.profile,
        "reason": decision.reason,
        "change": decision.change,
        "urgent": decision.urgent,
        "numbers": dict(decision.numbers),
        "vetoes": [veto.why for veto in judgement.vetoes],
    }


def _failure(failure: LastFailure | None, now: float) -> Document | None:
    if failure is None:
        return None
    return {
        "time": _clock_time(failure.time, now),
        "profile": failure.profile,
        "kind": failure.kind,
        "why": failure.why,
    }


def _next_switch(supervisor: Supervisor, now: float) -> Document | None:
    """When the guards would allow an automatic switch; None when automation is off."""
    automation, config = supervisor.automation, supervisor.config.auto_spec
    serving = supervisor.state.profile
    target = config.speculative if serving == config.baseline else config.baseline
    if config.policy == "always":
        target = config.always
    if not automation.enabled or target in ("", serving):
        return None
    against = automation.against(target, supervisor.situation(), now)
    times = [veto.until for veto in against]
    known = [time for time in times if time is not None]
    return {
        "profile": target,
        "allowed": not against,
        "why": [veto.why for veto in against],
        "not_before": _clock_time(max(known), now) if known and len(known) == len(times) else None,
    }


def _clock_time(monotonic: float, now: float) -> str:
    """A monotonic time as a moment, to the second: finer, it would differ from call to call."""
    moment = datetime.now(UTC) + timedelta(seconds=monotonic - now + 0.5)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
