"""What the watchdog decides by, as the status document and the metrics show it."""

from __future__ import annotations

from opsctl.autospec.plan import Plan
from opsctl.autospec.surface import Surface
from opsctl.serve.automation import Automation, Prepared

Document = dict[str, object]


def watchdog(automation: Automation) -> Document | None:
    """Policy, mechanism, surfaces and costs; None without `--auto-spec`."""
    prepared = automation.prepared
    if not automation.enabled or prepared is None:
        return None
    plan = prepared.plan
    return {
        "policy": plan.policy,
        "mechanism": prepared.choice.mechanism,
        "why_mechanism": prepared.choice.sentence(),
        "surfaces": [_surface(surface) for surface in plan.surfaces or ()],
        "no_surface": automation.blind or None,
        "to_measure": automation.to_measure or None,
        "costs": _costs(prepared),
        "samples_dropped": automation.journal.dropped,
    }


def _surface(surface: Surface) -> Document:
    return {
        "profile": surface.profile,
        "fingerprint": surface.fingerprint,
        "written": surface.provenance.written or None,
        "points": len(surface.points),
    }


def _costs(prepared: Prepared) -> Document:
    """Seconds of a switch to each profile; `seen` switches are in it, 0: it is assumed."""
    plan: Plan = prepared.plan
    costs = plan.costs.costs()
    names = dict.fromkeys(name for name in (plan.speculative, plan.baseline, plan.always) if name)
    return {
        name: {
            "prepare_s": round(costs.to(name).prepare, 1),
            "closed_s": round(costs.to(name).closed, 1),
            "seen": costs.seen[name].count if name in costs.seen else 0,
        }
        for name in names
    }
