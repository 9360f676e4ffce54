"""Refuses to start a profile that is known to break on this host."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opsctl.config.schema import Config
from opsctl.errors import PreconditionError
from opsctl.profiles.catalogue import CatalogueError
from opsctl.profiles.lint import Finding, errors
from opsctl.profiles.lint_gather import NO_PATCHES, Gpus, check, installed
from opsctl.profiles.lint_model import Patches

Record = Callable[..., None]
UNKNOWN = Gpus()


def _unrecorded(event: str, **facts: object) -> None:
    """For callers without a journal."""


def lint_refusal(
    config: Config,
    profile_name: str,
    *,
    gpus: Gpus = UNKNOWN,
    patches: Patches = NO_PATCHES,
    record: Record = _unrecorded,
) -> None:
    """Raise PreconditionError with every error of the profile's lint, before an engine is started.

    Errors whose code stands in `serve.allow_findings` do not count; that they were overridden is
    recorded. Without an SGLang that can be read nothing is refused: what is wrong with the
    interpreter is told by others, and the lint only knows what it has read.
    """
    profile = config.profiles[profile_name]
    if profile.engine == "simulated":
        return
    try:
        catalogue = installed(profile)
    except CatalogueError as error:
        record("lint_skipped", profile=profile_name, why=error.message)
        return
    if catalogue is None:
        record("lint_skipped", profile=profile_name, why="no SGLang found for its `python`")
        return
    found = check(
        profile_name, profile, gpus, catalogue=catalogue, config=config, here=True, patches=patches
    )
    allowed = config.serve.allow_findings
    overridden = sorted({x.code for x in errors(found)} & set(allowed))
    if overridden:
        record("lint_overridden", profile=profile_name, codes=overridden)
    refuse(profile_name, errors(found, allowed=allowed))


def refuse(profile_name: str, wrong: Sequence[Finding]) -> None:
    """Raise PreconditionError when there are errors, each with its fix."""
    if not wrong:
        return
    lines = [f"  {x.key}: {x.message} [{x.code}]\n    {x.fix}" for x in wrong]
    raise PreconditionError(
        f"profile {profile_name!r} would fail:\n" + "\n".join(lines),
        hint="see `opsctl profile lint`; `serve.allow_findings: [CODE]` overrides one by name",
    )
