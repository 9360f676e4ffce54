"""Whether SGLang's own adaptive speculation may take the place of switching profiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from opsctl.autospec.surface import Surface
from opsctl.config.flags import canonical
from opsctl.config.schema import Config, LaunchProfile
from opsctl.profiles import catalogue as catalogues
from opsctl.profiles.catalogue import Catalogue
from opsctl.profiles.diff import differences
from opsctl.profiles.lint_adaptive import exclusion
from opsctl.profiles.lint_gather import installed
from opsctl.profiles.lint_model import Host
from opsctl.profiles.lint_subject import Subject, release_of

LEAST = (0, 5, 14)
"""SGLang with zero draft steps (sglang#23705 and what followed)."""
STEPS = "speculative-num-steps"
_FREE = ("extends", "draft_model", "timeouts.", "expect_log", "flags.speculative-")


def drafts(config: Config, measured: Mapping[str, Surface]) -> dict[int, Surface]:
    """Return the surfaces that one adaptive engine could move between, by draft steps.

    Those of the configured speculative profile, and of others that differ from it in the number of
    steps only.
    """
    chosen = config.auto_spec.speculative
    found: dict[int, Surface] = {}
    for name in sorted(measured, key=lambda name: name != chosen):
        profile = config.profiles[name]
        steps = _steps(profile)
        alike = name == chosen or _only_steps_differ(config.profiles[chosen], profile)
        if steps and alike and measured[name].speculative:
            found.setdefault(steps, measured[name])
    return found


def why_not(config: Config, version: str | None) -> str:
    """Say why one engine cannot do what the two profiles do; empty when it can.

    `version` is that of the SGLang that was measured.
    """
    name = config.auto_spec.speculative
    profile, baseline = config.profiles[name], config.profiles[config.auto_spec.baseline]
    if profile.engine != "sglang":
        return "the engine is simulated"
    return next(_reasons(name, profile, baseline, _catalogue(profile, version)), "")


def _reasons(
    name: str, profile: LaunchProfile, baseline: LaunchProfile, found: Catalogue | None
) -> Iterator[str]:
    if found is None:
        yield "it is not known which SGLang it runs in"
        return
    if release_of(found.version) < LEAST:
        yield f"SGLang {found.version} cannot draft zero steps; 0.5.14 can"
    excluded = exclusion(Subject(name, profile, found, Host()))
    if excluded:
        yield f"SGLang would turn it off: {excluded}"
    if not _steps(profile):
        yield f"profile {name} sets no `{STEPS}`"
    other = [x.key for x in differences(baseline, profile) if not x.key.startswith(_FREE)]
    if other:
        yield f"the profiles differ in more than speculation: {', '.join(other)}"


def _catalogue(profile: LaunchProfile, version: str | None) -> Catalogue | None:
    if version in catalogues.KNOWN_VERSIONS:
        return catalogues.shipped(version)
    return installed(profile)


def _steps(profile: LaunchProfile) -> int | None:
    value = {canonical(key): value for key, value in profile.flags.items()}.get(STEPS)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _only_steps_differ(left: LaunchProfile, right: LaunchProfile) -> bool:
    free = (f"flags.{STEPS}", "flags.speculative-num-draft-tokens", "timeouts.", "expect_log")
    return all(x.key.startswith(free) for x in differences(left, right))
