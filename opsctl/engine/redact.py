"""Secrets out of what an engine says about itself: `/server_info` returns its API key in clear."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SECRET_NAME = re.compile(
    r"(api_?keys?|token|key|keyfile|secret|secrets|password|passwd|credentials?)$"
    r"|secret|password|api_?key|^ssl_|^hf_",
    re.IGNORECASE,
)
_DROPPED = frozenset({"env", "envs", "environ", "environment", "env_vars", "launch_command"})


def without_secrets(data: Mapping[str, object]) -> dict[str, object]:
    """A copy in which secret values are `***` and dumps that may hold secrets are left out."""
    return {key: _clean(key, value) for key, value in data.items() if key.lower() not in _DROPPED}


def _clean(key: str, value: object) -> object:
    if value not in (None, "", False) and is_secret(key):
        return "***"
    if isinstance(value, Mapping):
        return without_secrets(value)
    if isinstance(value, list):
        return [_clean("", item) for item in value]
    return value


def is_secret(name: str) -> bool:
    """Whether a field of this name holds something that must not be shown."""
    return bool(_SECRET_NAME.search(name))
