"""What the watchdog decides by: surfaces of this host, the mechanism, the policy's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opsctl.autospec import surface_files
from opsctl.autospec.cost import Costs, Mechanism
from opsctl.autospec.mechanism import Choice, Facts, choose
from opsctl.autospec.plan import Marks, Plan, PlannedCosts
from opsctl.autospec.surface import Surface, SurfaceError, mismatch
from opsctl.config.schema import Config
from opsctl.engine import capability
from opsctl.profiles.fingerprint import fingerprint
from opsctl.serve.automation import Prepared


def prepare(
    config: Config,
    state_dir: Path,
    costs: Mapping[Mechanism, Costs],
    environment: Mapping[str, Any] | None,
) -> Prepared:
    """Return what the configured policy is built from.

    Reads surfaces and the installed SGLang: not for the event loop. `environment` is the host as
    `bench` records it, None where it could not be read.
    """
    auto = config.auto_spec
    measured, blind = surfaces(config, state_dir, environment)
    choice = mechanism(config, measured)
    pair = (measured.get(auto.speculative), measured.get(auto.baseline))
    speculative, baseline = pair
    usable = None if speculative is None or baseline is None else (speculative, baseline)
    wanted = auto.policy == "cost_aware"
    plan = Plan(
        policy=auto.policy,
        speculative=auto.speculative,
        baseline=auto.baseline,
        always=auto.always,
        marks=Marks(**auto.sustained_load.model_dump()),
        noise=auto.noise,
        surfaces=usable if wanted else None,
        blind=blind if wanted else "",
        costs=PlannedCosts.of(costs.get(choice.mechanism, Costs(choice.mechanism))),
    )
    return Prepared(plan, choice)


def surfaces(
    config: Config, state_dir: Path, environment: Mapping[str, Any] | None
) -> tuple[dict[str, Surface], str]:
    """Return the surfaces of the pair that may be used here, and why one may not (or empty)."""
    found: dict[str, Surface] = {}
    problems: list[str] = []
    for name in filter(None, (config.auto_spec.speculative, config.auto_spec.baseline)):
        try:
            surface = surface_files.load(state_dir, name)
        except SurfaceError as error:
            problems.append(error.message)
            continue
        if surface is None:
            problems.append(f"profile {name} was never measured on this host")
            continue
        why = mismatch(surface, fingerprint(config.profiles[name]), environment=environment)
        if why is None:
            found[name] = surface
        else:
            problems.append(why)
    return found, "; ".join(problems)


def mechanism(config: Config, measured: Mapping[str, Surface]) -> Choice:
    """Return how the pair is switched, and why not in a cheaper way.

    `serve.mechanism`, where it is written, decides between the two restarts: what was chosen by
    hand before `auto_spec.mechanism` existed stays as it was.
    """
    asked, auto = config.auto_spec.mechanism, config.auto_spec
    if auto.policy == "always":
        return choose(_facts(config, measured), config.serve.mechanism)
    choice = choose(_facts(config, measured), asked)
    written = "mechanism" in config.serve.model_fields_set
    if asked == "auto" and choice.mechanism != "in_engine" and written:
        by_hand = choose(_facts(config, measured), config.serve.mechanism)
        return Choice(by_hand.mechanism, "auto", choice.why_not, by_hand.refused, by_hand.accepted)
    return choice


def _facts(config: Config, measured: Mapping[str, Surface]) -> Facts:
    if not config.auto_spec.speculative:
        return Facts()
    return capability.facts(config, capability.slots_of(config, measured))
