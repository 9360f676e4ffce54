"""Reading secrets that the configuration only refers to; their values never enter a message."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from opsctl.config.names import expand_home
from opsctl.config.schema import CredentialSecret, EnvSecret, FileSecret, Secret
from opsctl.errors import OpsctlError

_LONGEST = 64 * 2**10


class SecretError(OpsctlError):
    """A referenced secret cannot be read."""

    exit_code = 78


def describe(secret: Secret) -> str:
    """The reference as text, without the value: `{env: HF_TOKEN}`."""
    [(kind, name)] = secret.model_dump().items()
    return f"{{{kind}: {name}}}"


def resolve(secret: Secret, *, environment: Mapping[str, str]) -> str:
    """The secret's value: the first line of its file, or the variable's content.

    Raises SecretError, which names the reference and never the value.
    """
    match secret:
        case EnvSecret():
            value = environment.get(secret.env, "")
        case FileSecret():
            value = _first_line(Path(expand_home(secret.file, environment.get("HOME"))), secret)
        case CredentialSecret():
            directory = environment.get("CREDENTIALS_DIRECTORY")
            if not directory:
                raise SecretError(
                    f"secret {describe(secret)}: systemd passed no credentials",
                    hint="run under a unit with LoadCredential=, or use {file: ...}",
                )
            value = _first_line(Path(directory) / secret.credential, secret)
    value = value.strip()
    if not value or "\0" in value:
        raise SecretError(f"secret {describe(secret)} is not set, empty or not text")
    return value


def _first_line(path: Path, secret: Secret) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.readline(_LONGEST)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise SecretError(f"secret {describe(secret)} cannot be read: {reason}") from None
