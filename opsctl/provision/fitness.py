"""Refuses to bring up a host for profiles that are known to break there."""

from __future__ import annotations

from opsctl.config.schema import Config
from opsctl.profiles.catalogue import CatalogueError, shipped
from opsctl.profiles.lint import errors
from opsctl.profiles.lint_gate import refuse
from opsctl.profiles.lint_gather import Gpus, check
from opsctl.profiles.lint_model import Patches

SM120 = Gpus((12, 0))


def refuse_unfit(config: Config) -> None:
    """Raise PreconditionError when a profile has errors for the SGLang that is to be installed.

    Linted for SM120, with the patches that will be applied. `serve.allow_findings` overrides, as
    it does for `opsctl serve`. A release that opsctl does not know is not linted here; the host's
    own `opsctl serve` does that.
    """
    engine = config.provision.engine_env
    try:
        catalogue = shipped(engine.sglang)
    except CatalogueError:
        return
    for name, profile in config.profiles.items():
        if profile.engine == "simulated":
            continue
        coming = {*profile.requires_patches, *config.provision.sm120_patches.names}
        found = check(
            name,
            profile,
            SM120,
            catalogue=catalogue,
            config=config,
            here=False,
            patches=Patches(applied=frozenset(coming)),
        )
        refuse(name, errors(found, allowed=config.serve.allow_findings))
