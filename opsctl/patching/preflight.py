"""Refuses to start a profile without the patches it requires."""

from __future__ import annotations

import os
from collections.abc import Iterator

from opsctl.config.names import expand_home
from opsctl.config.schema import Config, LaunchProfile
from opsctl.errors import OpsctlError, PreconditionError
from opsctl.patching.apply import look
from opsctl.patching.environment import Environment, locate
from opsctl.patching.series import Series, load
from opsctl.patching.states import PatchState

SATISFIED = frozenset({"applied", "not needed", "superseded"})


def interpreter(profile: LaunchProfile) -> str:
    """Return the interpreter a profile is started with."""
    return expand_home(profile.python or "python3", os.environ.get("HOME"))


def interpreters(config: Config) -> set[str]:
    """Return the interpreters of all profiles that run SGLang."""
    profiles = config.profiles.values()
    return {interpreter(profile) for profile in profiles if profile.engine != "simulated"}


def required(config: Config, environment: Environment) -> set[str]:
    """Return the patches that the profiles of an environment require."""
    return {
        name
        for profile in config.profiles.values()
        if profile.requires_patches and _is_of(profile, environment)
        for name in profile.requires_patches
    }


def applied(profile: LaunchProfile) -> frozenset[str]:
    """Return the names of the patches that are applied where a profile runs; nothing is raised."""
    try:
        environment = locate(interpreter(profile))
        return frozenset(
            x.patch.name for x in look(load(), environment, running=_nobody) if x.state == "applied"
        )
    except (OpsctlError, OSError):
        return frozenset()


def refuse_unpatched(config: Config, name: str) -> None:
    """Raise PreconditionError when a patch that a profile requires is not there."""
    profile = config.profiles[name]
    if profile.engine == "simulated" or not profile.requires_patches:
        return
    series, environment = load(), locate(interpreter(profile))
    states = {x.patch.name: x for x in look(series, environment, running=_nobody)}
    missing = list(_missing(series, profile, states))
    if missing:
        chosen = " ".join(f"--only {x.patch.name}" for x in missing)
        told = "\n".join(f"  {x.patch.name} is {x.state}: {x.reason}".rstrip(": ") for x in missing)
        raise PreconditionError(
            f"profile {name!r} requires patches that are not applied:\n{told}",
            hint=f"opsctl patch apply {environment.named} {chosen}",
        )


def _missing(
    series: Series, profile: LaunchProfile, states: dict[str, PatchState]
) -> Iterator[PatchState]:
    for name in series.with_needs(profile.requires_patches):
        if states[name].state not in SATISFIED:
            yield states[name]


def _is_of(profile: LaunchProfile, environment: Environment) -> bool:
    try:
        return locate(interpreter(profile)).root == environment.root
    except OpsctlError:
        return False


def _nobody(environment: Environment) -> None:
    """Who runs from the environment does not matter to what is applied there."""
