"""What the SGLang of two launch profiles can do about speculation while it runs.

Reads the installed SGLang (its version and flags, never running it), so that every verb that asks
which mechanism applies gets the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from opsctl.autospec.adaptive import Adaptive, adaptive
from opsctl.autospec.mechanism import Facts
from opsctl.autospec.surface import Surface
from opsctl.config.flags import canonical
from opsctl.config.schema import Config, LaunchProfile
from opsctl.engine.simulated import IMITATES
from opsctl.profiles import catalogue as catalogues
from opsctl.profiles.catalogue import Catalogue, CatalogueError
from opsctl.profiles.diff import differences
from opsctl.profiles.flags import rendered
from opsctl.profiles.lint_adaptive import exclusion
from opsctl.profiles.lint_gather import installed
from opsctl.profiles.lint_model import Host
from opsctl.profiles.lint_subject import Subject, release_of

STEPS = "speculative-num-steps"
ADAPTIVE, ADAPTIVE_FILE = "speculative-adaptive", "speculative-adaptive-config"
_FREE = ("extends", "draft_model", "timeouts.", "expect_log", "flags.speculative-")
_FREE_SIMULATED = ("flags.sim-",)
_NOT_MEASURED = "it was not measured where drafting pays: `opsctl bench run`, then `opsctl tune`"


def facts(
    config: Config, slots: Adaptive | None, *, version: str | None = None, alone: bool = False
) -> Facts:
    """Return what decides the mechanism for the configured pair of profiles.

    `slots` is what the measurement of both says (`slots_of`); None is no usable measurement, and
    `alone` leaves the measurement out of account. `version` names the SGLang that was measured;
    without a known one the installed SGLang is read.
    """
    name = config.auto_spec.speculative
    profile, baseline = config.profiles[name], config.profiles[config.auto_spec.baseline]
    found = _catalogue(profile, version)
    unmeasured = "" if alone else _NOT_MEASURED if slots is None else slots.why_not
    if found is None:
        return Facts(profile=name, steps=steps_of(profile), unmeasured=unmeasured)
    return Facts(
        version=found.version,
        release=release_of(found.version),
        profile=name,
        steps=steps_of(profile),
        adapts=adapts(profile),
        excluded=exclusion(Subject(name, profile, found, Host())) or "",
        differ=_differ(baseline, profile),
        unmeasured=unmeasured,
    )


def slots_of(config: Config, measured: Mapping[str, Surface]) -> Adaptive | None:
    """Return SGLang's slots from the surfaces of profiles, by name; None where one is missing."""
    baseline = measured.get(config.auto_spec.baseline)
    if baseline is None or config.auto_spec.speculative not in measured:
        return None
    found = drafts(config, measured)
    return adaptive(baseline, found) if found else None


def drafts(config: Config, measured: Mapping[str, Surface]) -> dict[int, Surface]:
    """Return the surfaces that one adaptive engine could move between, by draft steps.

    Those of the configured speculative profile, and of others that differ from it in the number of
    steps only.
    """
    chosen = config.auto_spec.speculative
    found: dict[int, Surface] = {}
    for name in sorted(measured, key=lambda name: name != chosen):
        profile = config.profiles.get(name)
        steps = steps_of(profile) if profile is not None else None
        if profile is None or not steps or not measured[name].speculative:
            continue
        if name == chosen or _only_steps_differ(config.profiles[chosen], profile):
            found.setdefault(steps, measured[name])
    return found


def steps_of(profile: LaunchProfile) -> int | None:
    """Return the draft steps that a profile sets; None when it leaves them to SGLang."""
    value = {canonical(key): value for key, value in profile.flags.items()}.get(STEPS)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def adapts(profile: LaunchProfile) -> bool:
    """Whether a profile asks for SGLang's adaptive speculation itself."""
    return any(canonical(key) == ADAPTIVE and rendered(x) for key, x in profile.flags.items())


def _catalogue(profile: LaunchProfile, version: str | None) -> Catalogue | None:
    if profile.engine == "simulated":
        version = IMITATES
    if version in catalogues.KNOWN_VERSIONS:
        return catalogues.shipped(version)
    try:
        return installed(profile)
    except CatalogueError:
        return None


def _differ(baseline: LaunchProfile, profile: LaunchProfile) -> tuple[str, ...]:
    free = (*_FREE, *(_FREE_SIMULATED if profile.engine == "simulated" else ()))
    return tuple(key for key in _keys(baseline, profile) if not key.startswith(free))


def _only_steps_differ(left: LaunchProfile, right: LaunchProfile) -> bool:
    free = (f"flags.{STEPS}", "flags.speculative-num-draft-tokens", "timeouts.", "expect_log")
    return all(key.startswith(free) for key in _keys(left, right))


def _keys(left: LaunchProfile, right: LaunchProfile) -> tuple[str, ...]:
    """What differs, whichever way the flags are spelled."""
    return tuple(x.key for x in differences(_canonical(left), _canonical(right)))


def _canonical(profile: LaunchProfile) -> LaunchProfile:
    flags = {canonical(key): value for key, value in profile.flags.items()}
    return profile.model_copy(update={"flags": flags})
