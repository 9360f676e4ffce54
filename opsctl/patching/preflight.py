"""Which patches a profile requires, and whether they are there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from opsctl.config.names import expand_home
from opsctl.config.schema import Config, LaunchProfile
from opsctl.errors import OpsctlError
from opsctl.patching.apply import look
from opsctl.patching.environment import Environment, locate
from opsctl.patching.series import load
from opsctl.patching.states import PatchState
from opsctl.profiles.lint_model import Patches

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


def of_profile(profile: LaunchProfile, environment: Environment | None = None) -> Patches:
    """Return which patches are applied where a profile runs, and which required ones are not.

    An environment that is not there, or cannot be looked at, has none.
    """
    if profile.engine == "simulated":
        return Patches()
    try:
        there = environment or locate(interpreter(profile))
        found = {x.patch.name: x for x in look(load(), there, running=_nobody)}
    except (OpsctlError, OSError) as error:
        return Patches(missing=dict.fromkeys(profile.requires_patches, f"not applied: {error}"))
    applied = frozenset(name for name, state in found.items() if state.state == "applied")
    return Patches(applied, dict(_missing(profile, found)), there.named)


def _missing(profile: LaunchProfile, found: Mapping[str, PatchState]) -> Iterator[tuple[str, str]]:
    for name in profile.requires_patches:
        if name not in found:
            yield name, f"no patch of this opsctl; there are {', '.join(found)}"
            continue
        for each in load().with_needs([name]):
            if not _is_there(found[each]):
                yield each, f"{found[each].state}: {found[each].reason}".rstrip(": ")


def _is_there(state: PatchState) -> bool:
    """Whether nothing is missing; one that is applied and has a reason lacks what it needs."""
    return state.state in SATISFIED and not (state.state == "applied" and state.reason)


def _is_of(profile: LaunchProfile, environment: Environment) -> bool:
    try:
        return locate(interpreter(profile)).root == environment.root
    except OpsctlError:
        return False


def _nobody(environment: Environment) -> None:
    """Who runs from the environment does not matter to what is applied there."""
