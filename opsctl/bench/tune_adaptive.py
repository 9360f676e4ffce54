"""Whether SGLang's own adaptive speculation may take the place of switching profiles."""

from __future__ import annotations

from opsctl.autospec.mechanism import obstacles
from opsctl.config.schema import Config
from opsctl.engine import capability


def why_not(config: Config, version: str | None) -> str:
    """Say why one engine cannot do what the two profiles do; empty when it can.

    `version` is that of the SGLang that was measured. The measurement itself is another question.
    """
    if config.profiles[config.auto_spec.speculative].engine != "sglang":
        return "the engine is simulated"
    found = capability.facts(config, None, version=version, alone=True)
    return next((obstacle.why for obstacle in obstacles("in_engine", found)), "")
