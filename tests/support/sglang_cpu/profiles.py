"""Launch profiles that run the tiny models on a real SGLang, in the two ways opsctl switches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from opsctl.config.schema import LaunchProfile
from tests.support.server import free_port
from tests.support.sglang_cpu.environment import SglangEnvironment

SERVED_NAME = "tiny"
TIMEOUTS = {
    "start": "240s",
    "stage": "120s",
    "probe": "60s",
    "drain": "120s",
    "stop": "60s",
    "release": "30s",
}


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


def write_configuration(path: Path, profiles: Mapping[str, LaunchProfile], **serve: object) -> Path:
    """Write a configuration that serves the first of `profiles`; `serve` changes that section."""
    document = {
        "profiles": {name: _as_yaml(profile) for name, profile in profiles.items()},
        "serve": {
            "listen": f"127.0.0.1:{free_port()}",
            "profile": next(iter(profiles)),
            "gateway": {"hold": {"time": "600s"}},
            **serve,
        },
    }
    path.write_text(yaml.safe_dump(document))
    return path


def _as_yaml(profile: LaunchProfile) -> Mapping[str, object]:
    return {
        "engine": profile.engine,
        "python": profile.python,
        "model": profile.model,
        "served_name": profile.served_name,
        "flags": dict(profile.flags),
        "environment": dict(profile.environment),
        "timeouts": TIMEOUTS,
        **({"draft_model": profile.draft_model} if profile.draft_model else {}),
    }
