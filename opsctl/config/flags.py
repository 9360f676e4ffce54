"""Names of engine flags, and the ones a profile may not set because opsctl owns them."""

from __future__ import annotations

_SERVE = "opsctl decides it; clients use `serve.listen`"
_LEAKS = (
    "a secret in the command line can be read by every user of the host; "
    "clients' key is `serve.gateway.api_key`"
)
OWNED = {
    "host": _SERVE,
    "port": "opsctl decides it; set `serve.engine_port`",
    "model-path": "use the profile's `model`",
    "model": "use the profile's `model`",
    "served-model-name": "use the profile's `served_name`",
    "speculative-draft-model-path": "use the profile's `draft_model`",
    "speculative-draft-model": "use the profile's `draft_model`",
    "enable-metrics": "opsctl always sets it",
    "api-key": _LEAKS,
    "admin-api-key": _LEAKS,
    "ssl-keyfile-password": _LEAKS,
    "config": "flags from another file would be missing in `profile show` and the fingerprint",
    "gated-launch-port": "opsctl decides it",
    "help": "the engine would print its help and end",
    "version": "the engine would print its version and end",
}
"""Flag and what to do instead."""


def canonical(name: str) -> str:
    """The flag as SGLang prints it, without leading dashes: `tp_size` becomes `tp-size`."""
    return name.replace("_", "-")


def refusal(name: str) -> str | None:
    """Why a profile may not set this flag; None when it may.

    The engine's argparse also accepts beginnings of a flag (`--api-k`), so these are refused too.
    """
    flag = canonical(name)
    if not flag.strip("-"):
        return "a flag needs a name"
    if flag.startswith("-"):
        return f"write it without leading dashes: {flag.lstrip('-')}"
    if any(character.isspace() or character == "=" for character in flag):
        return "a flag's name has no spaces and no `=`; the value goes after the colon"
    owner = flag if flag in OWNED else next((o for o in OWNED if _shortens(flag, o)), None)
    return None if owner is None else f"not allowed in a profile: {OWNED[owner]}"


def _shortens(flag: str, owned: str) -> bool:
    return len(flag) >= 3 and owned.startswith(flag) and flag != "ssl-keyfile"
