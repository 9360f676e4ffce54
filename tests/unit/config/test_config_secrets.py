"""Secrets are read where the reference says, and never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.config.schema import CredentialSecret, EnvSecret, FileSecret, Secret
from opsctl.config.secrets import SecretError, resolve


def test_a_file_gives_its_first_line(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("  hunter2 \nsecond\n")
    environment = {"HOME": str(tmp_path), "CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert resolve(FileSecret(file=str(tmp_path / "key")), environment=environment) == "hunter2"
    assert resolve(FileSecret(file="~/key"), environment=environment) == "hunter2"
    assert resolve(CredentialSecret(credential="key"), environment=environment) == "hunter2"
    assert resolve(EnvSecret(env="K"), environment={"K": "hunter2"}) == "hunter2"


@pytest.mark.parametrize(
    ("secret", "expected"),
    [
        (EnvSecret(env="UNSET"), r"secret \{env: UNSET\} is not set"),
        (EnvSecret(env="BLANK"), r"secret \{env: BLANK\} is not set, empty"),
        (FileSecret(file="/nowhere"), r"secret \{file: /nowhere\} cannot be read: No such file"),
        (CredentialSecret(credential="k"), "systemd passed no credentials"),
    ],
)
def test_an_unreadable_secret_names_the_reference(secret: Secret, expected: str) -> None:
    with pytest.raises(SecretError, match=expected) as caught:
        resolve(secret, environment={"BLANK": " "})
    assert caught.value.exit_code == 78


def test_a_file_that_is_not_text_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"hunter2\xff\n")
    with pytest.raises(SecretError) as caught:
        resolve(FileSecret(file=str(tmp_path / "key")), environment={})
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("name", ["../etc/shadow", "a/b", "", "."])
def test_a_credential_is_a_bare_name(name: str) -> None:
    with pytest.raises(ValueError, match="credential"):
        CredentialSecret(credential=name)
