"""A real bash starts the pasted command; the imported profile must start the same."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from opsctl.cli.main import run
from opsctl.config.load import load_text
from opsctl.profiles.importer import parse
from opsctl.profiles.importer_yaml import render
from opsctl.profiles.launch import command

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="no bash here to compare with")

STUB = """#!/bin/bash
printf '%s\\0' "$0" "$@" > "${0%/*}/../arguments"
env -0 > "${0%/*}/../environment"
"""
OWNED = {"--host", "--port", "--model-path", "--served-model-name", "--enable-metrics",
         "--speculative-draft-model-path"}  # fmt: skip
BY_BASH = {"_", "SHLVL", "PWD", "OLDPWD", "PATH", "VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "PS1"}
"""Variables that bash or the activation of an environment sets by itself."""

COMMANDS = {
    "plain": "{venv}/bin/python -m sglang.launch_server --model-path /m --tp 8 --port 1",
    "exports and inline": """
export A=1 B="two words" C='$literal' ; D=not-exported
E=5 F="$B and $D" {venv}/bin/python -m sglang.launch_server --model-path /m --x "$C" --y=$A
""",
    "activated": """
set -euo pipefail
source {venv}/bin/activate
exec python -m sglang.launch_server --model-path /m --z "${{NOT_SET:-fallback}}" --trust-remote-code
""",
    "continued, with comments": """
{venv}/bin/python -m sglang.launch_server \\
  --model-path /m --a 1 2 3 \\
  --json '{{"k": [1, 2.50, "x"], "b": true}}' --neg -1 --neg-float -0.5   # the end
""",
    "split variables": """
ARGS="--tp 8   --mem 0.90"
MORE=(--name "a b" --list 1 2)
MORE+=(--last "")
{venv}/bin/python -m sglang.launch_server --model-path /m $ARGS "${{MORE[@]}}"
""",
    "env and unset": """
export GONE=1 KEPT=2 ALSO=3
unset GONE
env -u ALSO NEW=4 {venv}/bin/python -m sglang.launch_server --model-path /m --v "$KEPT$GONE"
""",
    "quotes": r"""
{venv}/bin/python -m sglang.launch_server --model-path /m --a $'tab\there \x41 \101 é' \
  --b "a\"b\\c\$d\e" --c a\ b\'c --d 'it'"'"'s' --e ''""
""",
    "allexport and append": """
set -a
ONE=1; TWO=$ONE$ONE; TWO+=3
set +a
THREE=3
nohup {venv}/bin/python -m sglang.launch_server --model-path /m --t "$TWO$THREE" > {venv}/log 2>&1
""",
    "quoted command": """
export OUTER=1; HIDDEN=2
bash -c 'export INNER="$OUTER$HIDDEN"
exec {venv}/bin/python -m sglang.launch_server --model-path /m --o "$OUTER"'
""",
    "repeated": """
{venv}/bin/python -m sglang.launch_server --model-path /a --x 1 --model-path /m --x 2 3
""",
    "tildes": """
A=~/a:~/b {venv}/bin/python -m sglang.launch_server --model-path ~/m --x ~/y --z=~/w
""",
    "changed directory": """
cd {venv} && {venv}/bin/python -m sglang.launch_server --model-path ./m --x ../y
""",
}  # fmt: skip


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment whose `python` records what it is started with."""
    folder = tmp_path / "venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").write_text(STUB)
    (folder / "bin/python").chmod(0o755)
    (folder / "bin/activate").write_text(f'PATH="{folder}/bin:$PATH"; export PATH\n')
    return folder


def by_flag(argv: Sequence[str]) -> dict[str, list[str]]:
    """Values of each flag, the last one counting, without what opsctl owns."""
    found: dict[str, list[str]] = {}
    name = ""
    for argument in argv:
        if re.match(r"--[a-z]", argument):
            name, equals, value = argument.partition("=")
            found[name] = [value] if equals else []
        else:
            found[name].append(argument)
    return {name: values for name, values in found.items() if name not in OWNED}


@pytest.mark.parametrize("case", COMMANDS)
def test_the_profile_starts_what_bash_starts(case: str, venv: Path) -> None:
    text = COMMANDS[case].format(venv=venv)
    caller = {"PATH": os.environ["PATH"], "HOME": str(venv.parent), "LANG": "C.UTF-8"}
    subprocess.run([BASH or "bash", "-c", text], env=caller, check=True, cwd=venv, timeout=30)
    argv = (venv / "arguments").read_text().split("\0")[:-1]
    pairs = (pair.partition("=") for pair in (venv / "environment").read_text().split("\0")[:-1])
    environment = {name: value for name, _, value in pairs if name not in BY_BASH}

    loaded = load_text(render(parse(text, name="it")), name="it", environment=caller)
    made = command(loaded.config.profiles["it"], port=1, caller_environment=caller)

    assert made.argv[:3] == (argv[0], "-m", "sglang.launch_server")
    assert by_flag(made.argv[3:]) == absolute(by_flag(argv[3:]), case, venv)
    assert {n: v for n, v in made.environment.items() if n not in BY_BASH} == environment
    model = made.argv[made.argv.index("--model-path") + 1]
    assert model == {
        "tildes": f"{venv.parent}/m", "changed directory": f"{venv}/m",
    }.get(case, "/m")  # fmt: skip


def absolute(flags: dict[str, list[str]], case: str, venv: Path) -> dict[str, list[str]]:
    """What a relative path of the command is, seen from its directory; `--z=~/w` is no tilde."""
    return flags | {"--x": [f"{venv.parent}/y"]} if case == "changed directory" else flags


def test_from_standard_input_to_a_valid_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pasted = tmp_path / "pasted"
    pasted.write_text(
        "export HF_TOKEN=hf_0123456789abcdefgh\nsglang serve org/Name --tp 8 | tee log\n"
    )
    with pasted.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert run(["profile", "import", "-"]) == 0
    captured = capfd.readouterr()
    assert "hf_0123" not in captured.out + captured.err
    notes = [line[2:] for line in captured.out.splitlines() if line.startswith("# ")]
    assert captured.err.splitlines() == [f"note: {note}" for note in notes] != []
    (tmp_path / "opsctl.yaml").write_text(captured.out)
    assert run(["config", "validate"]) == 0
    monkeypatch.setenv("HF_TOKEN", "x")
    assert run(["profile", "show", "name", "--shell"]) == 0
    assert "-m sglang.launch_server --model-path org/Name" in capfd.readouterr().out


def test_what_is_not_understood_ends_in_2_with_its_place(
    capfd: pytest.CaptureFixture[str],
) -> None:
    text = "export A=1\npython -m sglang.launch_server --model-path /m --x $(hostname)"
    assert run(["profile", "import", text]) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: command:2:52: a command substitution")
    assert run(["profile", "import", "--name", "a b", "sglang serve m"]) == 2
    assert run(["profile", "import", "ls"]) == 2
