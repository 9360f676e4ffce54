"""Names that say something about their values."""

from __future__ import annotations

import re

_SECRET = re.compile(
    r".*(_TOKEN|_KEY|_SECRET)|TOKEN|SECRET|.*(PASSWORD|PASSWD|CREDENTIAL).*", re.IGNORECASE
)


def looks_secret(variable: str) -> bool:
    """Whether an environment variable of this name probably holds a secret."""
    return _SECRET.fullmatch(variable) is not None


def expand_home(path: str, home: str | None) -> str:
    """The path with a leading `~/` replaced, when the home directory is known."""
    return f"{home}/{path[2:]}" if home and path.startswith("~/") else path
