"""What the watchdog decides by: surfaces of this host, the mechanism, the policy's parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from opsctl.autospec import surface_files
from opsctl.autospec.cost import Costs, Mechanism
from opsctl.autospec.mechanism import Choice, Facts, choose
from opsctl.autospec.plan import Marks, Plan, PlannedCosts
from opsctl.autospec.surface import Surface, SurfaceError, mismatch
from opsctl.config.schema import Config
from opsctl.engine import capability
from opsctl.profiles.fingerprint import fingerprint
from opsctl.serve import in_engine
from opsctl.serve.automation import Prepared
from opsctl.serve.in_engine import InEngine


def prepare(
    config: Config,
    state_dir: Path,
    costs: Mapping[Mechanism, Costs],
    *,
    environment: Mapping[str, Any] | None = None,
    observed: str = "",
) -> Prepared:
    """Return what the configured policy is built from.

    Reads surfaces and the installed SGLang, and writes SGLang's adaptive file: not for the event
    loop. `environment` is the host as `bench` records it, None where it could not be read;
    `observed` is why the engine that serves does not move its own draft steps.
    """
    measured, blind = surfaces(config, state_dir, environment)
    speculative = measured.get(config.auto_spec.speculative)
    baseline = measured.get(config.auto_spec.baseline)
    usable = None if speculative is None or baseline is None else (speculative, baseline)
    measured |= dict(_more_drafts(config, state_dir, environment))
    choice, adapts = in_one_engine(config, state_dir, measured, observed)
    plan = _plan(config, choice, costs, surfaces=usable, blind=blind)
    return Prepared(plan, choice, adapts)


def without_surfaces(config: Config, costs: Mapping[Mechanism, Costs], why: str) -> Prepared:
    """Return what remains when the surfaces could not even be looked for, and the reason `why`."""
    choice = Choice(config.serve.mechanism)
    return Prepared(_plan(config, choice, costs, blind=why), choice)


def _plan(
    config: Config,
    choice: Choice,
    costs: Mapping[Mechanism, Costs],
    *,
    surfaces: tuple[Surface, Surface] | None = None,
    blind: str = "",
) -> Plan:
    """The plan; of surfaces, and of their want, only `cost_aware` takes any notice."""
    auto = config.auto_spec
    wanted = auto.policy == "cost_aware"
    return Plan(
        policy=auto.policy,
        speculative=auto.speculative,
        baseline=auto.baseline,
        always=auto.always,
        marks=Marks(**auto.sustained_load.model_dump()),
        noise=auto.noise,
        surfaces=surfaces if wanted else None,
        blind=blind if wanted else "",
        costs=PlannedCosts.of(costs.get(choice.mechanism, Costs(choice.mechanism))),
    )


def surfaces(
    config: Config, state_dir: Path, environment: Mapping[str, Any] | None
) -> tuple[dict[str, Surface], str]:
    """Return the surfaces of the pair that may be used here, and why one may not (or empty)."""
    found: dict[str, Surface] = {}
    problems: list[str] = []
    installed = _installed(config)
    for name in filter(None, (config.auto_spec.speculative, config.auto_spec.baseline)):
        try:
            surface = surface_files.load(state_dir, name)
        except SurfaceError as error:
            problems.append(error.message)
            continue
        if surface is None:
            problems.append(f"profile {name} was never measured on this host")
            continue
        profile = config.profiles[name]
        now = _versions(surface, installed.get(profile.python))
        why = mismatch(surface, fingerprint(profile), versions=now, environment=environment)
        if why is None:
            found[name] = surface
        else:
            problems.append(why)
    return found, "; ".join(problems)


def in_one_engine(
    config: Config, state_dir: Path, measured: Mapping[str, Surface], observed: str
) -> tuple[Choice, InEngine | None]:
    """Return the mechanism, and what engines that move their own draft steps are started with.

    They are started so wherever nothing but `observed` stands against it: the engine that serves
    may be an older one. Where the adaptive file cannot be written, that stands against it.
    """
    quiet = "observe mode leaves an engine as its profile has it"
    choice = mechanism(config, measured, quiet if config.auto_spec.observe else "")
    slots = capability.slots_of(config, measured)
    if choice.mechanism != "in_engine" or slots is None:
        return choice, None
    try:
        adapts = in_engine.prepare(config, slots, state_dir)
    except OSError as error:
        why = f"its adaptive file cannot be written: {error.strerror}"
        return mechanism(config, measured, why), None
    return mechanism(config, measured, observed), adapts


def mechanism(config: Config, measured: Mapping[str, Surface], observed: str = "") -> Choice:
    """Return how the pair is switched, and why not in a cheaper way.

    `serve.mechanism`, where it is written, decides between the two restarts: what was chosen by
    hand before `auto_spec.mechanism` existed stays as it was.
    """
    facts = _facts(config, measured, observed)
    asked, by_hand = config.auto_spec.mechanism, config.serve.mechanism
    if config.auto_spec.policy == "always":
        return choose(facts, by_hand)
    choice = choose(facts, asked)
    written = "mechanism" in config.serve.model_fields_set
    if asked == "auto" and choice.mechanism != "in_engine" and written:
        found = choose(facts, by_hand)
        return replace(found, asked="auto", why_not=choice.why_not)
    return choice


def _installed(config: Config) -> dict[str | None, str]:
    """The release of SGLang by interpreter, as far as it can be read without running it."""
    if not config.auto_spec.speculative:
        return {}
    version = capability.facts(config, None, alone=True).version
    python = config.profiles[config.auto_spec.speculative].python
    return {} if version is None else {python: version}


def _versions(surface: Surface, sglang: str | None) -> dict[str, str | None]:
    """The surface's versions with the installed SGLang's, when that is another release.

    What a server says of itself and what its package is called differ in the build (`+cu130`).
    """
    measured = surface.versions.get("sglang")
    if sglang is None or measured is None or _public(measured) == _public(sglang):
        return dict(surface.versions)
    return {**surface.versions, "sglang": sglang}


def _public(version: str) -> str:
    try:
        return Version(version).public
    except InvalidVersion:
        return version


def _facts(config: Config, measured: Mapping[str, Surface], observed: str) -> Facts:
    if not config.auto_spec.speculative:
        return Facts()
    found = capability.facts(config, capability.slots_of(config, measured))
    return replace(found, observed=observed)


def _more_drafts(
    config: Config, state_dir: Path, environment: Mapping[str, Any] | None
) -> Iterator[tuple[str, Surface]]:
    """Usable surfaces of profiles outside the pair: candidate steps of one engine."""
    for name in config.profiles.keys() - {config.auto_spec.speculative, config.auto_spec.baseline}:
        try:
            surface = surface_files.load(state_dir, name)
        except SurfaceError:
            continue
        now = fingerprint(config.profiles[name])
        if surface is not None and mismatch(surface, now, environment=environment) is None:
            yield name, surface
