"""The command line: lazy commands, one place for errors, and where output goes."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from opsctl import __version__
from opsctl.cli import main
from opsctl.cli.main import COMMANDS, run
from opsctl.cli.options import ConfigOption, Output, StateDirOption
from opsctl.cli.output import emit
from opsctl.errors import ConfigError, OpsctlError, Problem, TemporaryError


def imported_by(code: str, *arguments: str) -> set[str]:
    script = f"import sys; sys.argv = ['opsctl', *{list(arguments)!r}]\ntry:\n    {code}\n"
    script += "except SystemExit: pass\nsys.stderr.write(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


def test_version_is_answered_before_anything_heavy_is_imported() -> None:
    loaded = imported_by("from opsctl.__main__ import main; main()", "--version")
    assert "opsctl.__main__" in loaded
    assert not {"typer", "pydantic", "yaml", "rich", "aiohttp", "asyncio"} & loaded


def test_help_lists_every_command_without_importing_any() -> None:
    loaded = imported_by("from opsctl.__main__ import main; main()", "--help")
    assert "typer" in loaded
    assert not {"pydantic", "yaml", "rich", "aiohttp"} & loaded
    assert not {entry.module for entry in COMMANDS.values()} & loaded


def test_help_shows_each_name_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    for name, entry in COMMANDS.items():
        assert f"  {name}" in shown
        assert entry.help in " ".join(shown.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_exists(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    assert f"Usage: opsctl {name}" in capsys.readouterr().out


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., None]], None]:
    """Put a function into the table as the command `try`."""

    def put(function: Callable[..., None]) -> None:
        module = SimpleNamespace(function=function)
        real = importlib.import_module
        monkeypatch.setattr(main, "import_module", lambda n: module if n == "fake" else real(n))
        monkeypatch.setitem(COMMANDS, "try", main.Entry("fake", "function", "Try."))

    return put


def failing(error: BaseException) -> Callable[[], None]:
    def function() -> None:
        raise error

    return function


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (OpsctlError("it broke"), 1, "error: it broke\n"),
        (TemporaryError("locked", hint="wait"), 75, "error: locked\nhint: wait\n"),
        (
            ConfigError([Problem("f", 1, 2, "k", "bad"), Problem("f", 3, 4, "", "worse")]),
            78,
            "f:1:2: k: bad\nf:3:4: worse\nerror: the configuration has 2 problems\n",
        ),
        (KeyboardInterrupt(), 130, ""),
        (typer.Exit(3), 3, ""),
    ],
)
def test_an_error_becomes_a_message_and_its_exit_code(
    error: BaseException,
    code: int,
    shown: str,
    command: Callable[[Callable[..., None]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    command(failing(error))
    assert run(["try"]) == code
    captured = capsys.readouterr()
    assert captured.err == shown
    assert captured.out == ""


def test_a_bug_is_short_unless_debugging(
    command: Callable[[Callable[..., None]], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command(failing(ValueError("odd")))
    monkeypatch.delenv("OPSCTL_DEBUG", raising=False)
    assert run(["try"]) == 1
    shown = capsys.readouterr().err
    assert "error: unexpected ValueError: odd" in shown
    assert "OPSCTL_DEBUG=1" in shown
    monkeypatch.setenv("OPSCTL_DEBUG", "1")
    with pytest.raises(ValueError, match="odd"):
        run(["try"])


@pytest.mark.parametrize("arguments", [["nope"], ["config", "nope"], ["--nope"], ["status", "--x"]])
def test_usage_errors_end_in_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert "Error" in capsys.readouterr().err


def test_a_mistyped_command_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["swich"]) == 2
    assert "Did you mean 'switch'?" in capsys.readouterr().err


def test_global_options_may_stand_before_or_after_the_command(
    command: Callable[[Callable[..., None]], None],
) -> None:
    seen: list[tuple[str | None, str | None]] = []

    def function(config: ConfigOption = None, state_dir: StateDirOption = None) -> None:
        seen.append((config, state_dir))

    command(function)
    assert run(["--config", "a", "--state-dir", "d", "try"]) == 0
    assert run(["try", "--config", "b"]) == 0
    assert run(["--config", "a", "try", "--config", "b", "--state-dir", "e"]) == 0
    assert seen == [("a", "d"), ("b", None), ("b", "e")]


def printed(capsys: pytest.CaptureFixture[str], data: Any, output: Output) -> str:
    emit(data, output, schema="opsctl/test/v1")
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_json_and_yaml_carry_the_schema_first(capsys: pytest.CaptureFixture[str]) -> None:
    data = {"a": {"b": (1, None)}, "c": "é"}
    shown = printed(capsys, data, Output.JSON)
    assert list(json.loads(shown).items()) == [
        ("schema", "opsctl/test/v1"),
        ("a", {"b": [1, None]}),
        ("c", "é"),
    ]
    assert printed(capsys, data, Output.YAML).startswith("schema: opsctl/test/v1\na:\n")
    assert json.loads(printed(capsys, [1], Output.JSON))["items"] == [1]


def test_a_table_in_a_pipe_has_no_escapes_and_no_wrapped_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    long = "x" * 500
    shown = printed(
        capsys, {"a": {"b": long, "c": "[red]not markup[/red]"}, "on": True}, Output.TABLE
    )
    assert "\x1b" not in shown
    rows = [line.split(maxsplit=1) for line in shown.splitlines()]
    assert ["a.b", long] in rows
    assert ["a.c", "[red]not markup[/red]"] in rows
    assert ["on", "yes"] in rows


def test_version_option_works_beside_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--config", "x", "--version"]) == 0
    assert capsys.readouterr().out == f"opsctl {__version__}\n"
