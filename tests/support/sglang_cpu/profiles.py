"""Launch profiles that run the tiny models on a real SGLang, in the two ways opsctl switches."""

from __future__ import annotations

from opsctl.config.schema import LaunchProfile
from tests.support.sglang_cpu.environment import SglangEnvironment

SERVED_NAME = "tiny"


def baseline(environment: SglangEnvironment) -> LaunchProfile:
    """Serve the target model alone."""
    return LaunchProfile(
        engine="sglang",
        python=str(environment.python),
        model=str(environment.target_model),
        served_name=SERVED_NAME,
        flags=environment.base_flags,
        environment=environment.environment,
    )


def eagle3(environment: SglangEnvironment) -> LaunchProfile:
    """Speculate with the tiny draft, which counts as right 2.5 tokens deep on average."""
    return baseline(environment).model_copy(
        update={
            "draft_model": str(environment.draft_model),
            "flags": {**environment.base_flags, **environment.eagle3_flags},
            "environment": {**environment.environment, **environment.eagle3_environment},
        }
    )
