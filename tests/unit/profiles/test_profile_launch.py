"""A profile decides the engine's arguments and its whole environment."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import opsctl
from opsctl.config.schema import EnvSecret, FileSecret, LaunchProfile
from opsctl.config.secrets import SecretError
from opsctl.profiles.launch import Command, command, plan, shell

CALLER = {"PATH": "/usr/bin:/bin", "HOME": "/h/u", "LANG": "C.UTF-8", "LC_ALL": "C"}


def profile(**facts: Any) -> LaunchProfile:
    return LaunchProfile(**{"model": "/m", **facts})


def made(launch: LaunchProfile, **caller: str) -> Command:
    return command(launch, port=31000, caller_environment={**CALLER, **caller})


def test_sglang_is_started_with_what_opsctl_owns_then_the_flags_in_order() -> None:
    launch = profile(
        python="/opt/sglang/bin/python",
        served_name="kimi",
        draft_model="/d",
        flags={
            "tp_size": 8,
            "trust-remote-code": True,
            "off": False,
            "gone": None,
            "x": -1,
            "cuda-graph-bs": [1, 2],
            "override": {"a": [1]},
            "mem": 0.85,
            "name": "a b",
        },
    )
    assert made(launch).argv == (
        *("/opt/sglang/bin/python", "-m", "sglang.launch_server"),
        *("--model-path", "/m", "--host", "127.0.0.1", "--port", "31000"),
        *("--served-model-name", "kimi", "--speculative-draft-model-path", "/d"),
        *("--tp-size", "8", "--trust-remote-code", "--x=-1", "--cuda-graph-bs", "1", "2"),
        *("--override", '{"a": [1]}', "--mem", "0.85", "--name", "a b", "--enable-metrics"),
    )


def test_the_simulated_engine_runs_in_our_own_interpreter() -> None:
    assert made(profile(engine="simulated")).argv[:3] == (
        *(sys.executable, "-m"),
        "opsctl.engine.simulated",
    )


def test_the_simulated_engine_is_found_from_any_directory_without_a_callers_pythonpath(
    tmp_path: Path,
) -> None:
    done = made(profile(engine="simulated"), PYTHONPATH="/somewhere/else")
    program = "import opsctl.engine.simulated as it; print(it.__file__)"
    found = subprocess.run(
        [done.argv[0], "-c", program],
        env=dict(done.environment),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert Path(found.strip()).parents[2] == Path(opsctl.__file__).parent
    other = made(profile(engine="simulated", python="/other/python"))
    assert "PYTHONPATH" not in other.environment


def test_only_the_base_set_is_inherited() -> None:
    leaking = {
        "NCCL_P2P_LEVEL": "SYS",
        "CUDA_HOME": "/c",
        "LD_LIBRARY_PATH": "/l",
        "PYTHONPATH": "/p",
        "VIRTUAL_ENV": "/v",
        "HF_TOKEN": "hf",
        "TZ": "",
        "PWD": "/",
    }
    environment = made(profile(python="/opt/v/bin/python"), **leaking).environment
    assert environment == {**CALLER, "PATH": "/opt/v/bin:/usr/bin:/bin"}


def test_two_profiles_never_see_each_others_variables() -> None:
    first = made(profile(environment={"NCCL_P2P_LEVEL": "SYS"})).environment
    second = made(profile()).environment
    assert first["NCCL_P2P_LEVEL"] == "SYS"
    assert "NCCL_P2P_LEVEL" not in second


def test_null_and_empty_remove_a_variable_and_are_never_exported() -> None:
    environment = made(profile(environment={"LANG": None, "LC_ALL": "", "N": ""})).environment
    assert not {"LANG", "LC_ALL", "N"} & set(environment)


def test_path_starts_with_the_interpreters_directory_even_without_a_callers_path() -> None:
    launch = profile(python="~/venv/bin/python")
    made_command = command(launch, port=1, caller_environment={"HOME": "/h/u"})
    assert made_command.argv[0] == "/h/u/venv/bin/python"
    assert made_command.environment["PATH"].startswith("/h/u/venv/bin:/usr/local/sbin:")


def test_a_secret_reaches_the_environment_and_never_the_arguments() -> None:
    launch = profile(environment={"HF_TOKEN": EnvSecret(env="MINE")})
    done = made(launch, MINE="hf_secret")
    assert done.environment["HF_TOKEN"] == "hf_secret"
    assert not any("hf_secret" in argument for argument in done.argv)
    with pytest.raises(SecretError, match="MINE"):
        made(launch)


def test_the_shell_line_starts_the_same_command(tmp_path: Path) -> None:
    (tmp_path / "python").write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys\nprint(json.dumps([sys.argv[1:], dict(os.environ)]))"
    )
    (tmp_path / "python").chmod(0o755)
    launch = profile(
        python=str(tmp_path / "python"),
        flags={"text": "it's $HOME; `x`\n*", "n": -1},
        environment={"ODD": "a b'c\"$d", "PYTHONUTF8": "1"},
    )
    done = made(launch)
    output = subprocess.run(["/bin/sh", "-c", shell(done)], capture_output=True, check=True).stdout
    argv, environment = json.loads(output)
    assert argv == list(done.argv[1:])
    assert {k: environment[k] for k in done.environment} == dict(done.environment)


def test_the_shell_line_of_a_plan_refers_to_secrets(tmp_path: Path) -> None:
    (tmp_path / "it's").write_text("from file\nsecond")
    launch = profile(
        environment={
            "A": EnvSecret(env="MINE"),
            "B": FileSecret(file=str(tmp_path / "it's")),
            "MY_TOKEN": "literal-secret",
        }
    )
    line = shell(plan(launch, port=1, caller_environment=CALLER))
    assert "literal-secret" not in line
    assert 'MY_TOKEN="${MY_TOKEN:?}"' in line
    variables = line.split(shlex.quote(sys.executable))[0]
    shown = subprocess.run(
        ["/bin/sh", "-c", f"{variables} /usr/bin/env"],
        env={"MINE": "from env", "MY_TOKEN": "given"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert {"A=from env", "B=from file", "MY_TOKEN=given"} <= set(shown)
