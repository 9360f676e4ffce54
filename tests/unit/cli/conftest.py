"""Fixtures shared by the tests of the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.cli.main import run

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def autospec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Typed:
    """Run `opsctl autospec` in an empty folder; exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    monkeypatch.delenv("OPSCTL_CONFIG", raising=False)
    monkeypatch.delenv("OPSCTL_STATE_DIR", raising=False)

    def typed(*words: str) -> tuple[int, str, str]:
        code = run(["autospec", *words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return typed
