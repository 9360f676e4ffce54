"""Byte code made by another interpreter: a real one, and some that are none."""

from __future__ import annotations

import importlib.util
import marshal
import os
import sys
from pathlib import Path

import pytest

from opsctl.errors import PreconditionError
from opsctl.patching import compile as compiling
from opsctl.patching.compile import compiled

TIME = 1_700_000_000_999_999_999


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_byte_code_is_what_python_would_make_and_accept(tmp_path: Path) -> None:
    source = b"VALUE = 40 + 2\n"
    (tmp_path / "m.py").write_bytes(source)
    os.utime(tmp_path / "m.py", ns=(TIME, TIME))
    made = compiled(Path(sys.executable), tmp_path, {"m.py": source}, TIME)
    ((name, code),) = made["m.py"].items()
    assert name == f"__pycache__/m.{sys.implementation.cache_tag}.pyc"
    assert code[:4] == importlib.util.MAGIC_NUMBER
    assert int.from_bytes(code[8:12], "little") == TIME // 10**9
    scope: dict[str, object] = {}
    exec(marshal.loads(code[16:]), scope)
    assert scope["VALUE"] == 42


def test_nothing_is_run_and_nothing_imported(tmp_path: Path) -> None:
    made = compiled(Path(sys.executable), tmp_path, {"m.py": b"raise SystemExit(9)\n"}, TIME)
    assert set(made) == {"m.py"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("python", [Path(sys.executable), None], ids=["interpreter", "none"])
def test_a_syntax_error_is_refused(tmp_path: Path, python: Path | None) -> None:
    for text in (b"def (\n", b"x = '\0'\n"):
        with pytest.raises(PreconditionError, match="compile"):
            compiled(python, tmp_path, {"m.py": text}, TIME)


def test_without_an_interpreter_there_is_no_byte_code(tmp_path: Path) -> None:
    assert compiled(None, tmp_path, {"m.py": b"x = 1\n"}, TIME) == {"m.py": {}}


def test_an_interpreter_that_hangs_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "DEADLINE", 0.3)
    with pytest.raises(PreconditionError, match="cannot be run to compile"):
        compiled(script(tmp_path, "exec sleep 60"), tmp_path, {"m.py": b""}, TIME)


def test_an_interpreter_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match="cannot be run"):
        compiled(tmp_path / "none", tmp_path, {"m.py": b""}, TIME)


@pytest.mark.parametrize(
    "answer",
    ["", "hello", "[]", "{}", '{"m.py": 1}', '{"m.py": ["a", 1]}', '{"m.py": ["a", "%"]}'],
)
def test_an_answer_that_is_none_is_said(tmp_path: Path, answer: str) -> None:
    python = script(tmp_path, f"cat >/dev/null; echo '{answer}'")
    with pytest.raises(PreconditionError, match="does not answer as Python does"):
        compiled(python, tmp_path, {"m.py": b""}, TIME)


def test_bytes_that_are_no_text_are_no_answer(tmp_path: Path) -> None:
    python = script(tmp_path, r"cat >/dev/null; printf '\377\376'")
    with pytest.raises(PreconditionError, match="does not answer as Python does"):
        compiled(python, tmp_path, {"m.py": b""}, TIME)
