"""A name for everything in a launch profile that can change the engine's speed."""

from __future__ import annotations

import hashlib
import json

from opsctl.config.flags import canonical
from opsctl.config.schema import LaunchProfile
from opsctl.config.written import shown_variable
from opsctl.profiles.flags import rendered


def fingerprint(profile: LaunchProfile) -> str:
    """`sha256:` and 16 hex digits over engine, interpreter, model, draft, flags and environment.

    Measurements are stored under it. Key order, ports, time-outs, log markers and the spelling of
    flags (`tp_size`, `tp-size`) do not change it; secrets count by their reference,
    and a literal that looks like one by its name: a new token is not a new speed.
    """
    facts: dict[str, object] = {
        "engine": profile.engine,
        "python": profile.python,
        "model": profile.model,
        "draft_model": profile.draft_model,
        "flags": {canonical(k): v for k, v in profile.flags.items() if rendered(v)},
        "environment": {
            name: shown_variable(name, value)
            for name, value in profile.environment.items()
            if value
        },
    }
    if profile.requires_patches:
        facts["requires_patches"] = sorted(profile.requires_patches)
    text = json.dumps(facts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
