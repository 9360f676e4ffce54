"""`opsctl profile lint` and `opsctl serve` as processes, beside an SGLang that is only files."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.server import wait_until
from tests.support.serving import OPSCTL, Serving

SERVER_ARGS = """
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", "--model", type=str, required=True)
        parser.add_argument("--host", type=str, default="127.0.0.1")
        parser.add_argument("--port", type=int, default=30000)
        parser.add_argument("--enable-metrics", action="store_true")
        parser.add_argument("--tensor-parallel-size", "--tp-size", type=int, default=1)
        parser.add_argument("--attention-backend", type=str, choices=["triton", "trtllm_mla"])
"""
FILES = {
    "sglang/__init__.py": "raise SystemExit('the lint must not import this')\n",
    "sglang/srt/server_args.py": SERVER_ARGS,
    "sglang/srt/environ.py": "class Envs:\n    SGLANG_ENABLE_SPEC_V2 = EnvBool(False)\n",
    "sglang/srt/models/llama.py": "class Llama: ...\n\n\nEntryClass = [Llama]\n",
    "sglang-0.5.9.dist-info/METADATA": "Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.9\n\n",
}


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An environment with the files of an SGLang 0.5.9, whose interpreter starts nothing."""
    packages = tmp_path / "env/lib/python3.11/site-packages"
    for name, text in FILES.items():
        path = packages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    interpreter = tmp_path / "env/bin/python"
    interpreter.parent.mkdir()
    interpreter.write_text("#!/bin/sh\nexit 1\n")
    interpreter.chmod(0o755)
    return interpreter


def configuration(tmp_path: Path, python: Path, flags: Mapping[str, Any], **serve: Any) -> Path:
    path = tmp_path / "opsctl.yaml"
    restart = {"budget": 1, "quarantine_after": 1}
    content = {
        "profiles": {"main": {"python": str(python), "model": "org/model", "flags": dict(flags)}},
        "serve": {"profile": "main", "listen": "127.0.0.1:0", "restart": restart, **serve},
    }
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def lint(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OPSCTL_CONFIG": str(path)}
    return subprocess.run(
        [str(OPSCTL), "profile", "lint", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def findings(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    document = json.loads(done.stdout)
    assert set(document) == {"schema", "findings"}
    assert document["schema"] == "opsctl/profile-lint/v1"
    found: list[dict[str, Any]] = document["findings"]
    return found


def test_a_profile_is_linted_against_the_sglang_of_its_interpreter(
    tmp_path: Path, python: Path
) -> None:
    path = configuration(
        tmp_path, python, {"tp-size": "eight", "no-such-flag": True, "att": "triton"}
    )
    done = lint(path, "-o", "json", "--gpu", "none")
    assert done.returncode == 4
    found = {finding["code"]: finding for finding in findings(done)}
    assert set(found) == {"unknown-flag", "bad-value", "abbreviated-flag"}
    unknown = found["unknown-flag"]
    assert set(unknown) == {
        "severity", "code", "profile", "key", "message", "fix", "source", "at",
    }  # fmt: skip
    assert (unknown["severity"], unknown["profile"]) == ("error", "main")
    assert unknown["key"] == "flags.no-such-flag"
    line = path.read_text().splitlines().index("      no-such-flag: true") + 1
    assert unknown["at"] == f"{path}:{line}:21"
    assert "0.5.9" in unknown["message"]


def test_a_good_profile_ends_with_0(tmp_path: Path, python: Path) -> None:
    done = lint(configuration(tmp_path, python, {"tp-size": 8}), "-o", "json", "--gpu", "none")
    assert (done.returncode, findings(done)) == (0, [])


def test_warnings_do_not_fail(tmp_path: Path, python: Path) -> None:
    path = configuration(tmp_path, python, {"tp-size": 2, "tensor-parallel-size": 2})
    done = lint(path, "--gpu", "none")
    assert done.returncode == 0
    assert "warning: main: flags.tensor-parallel-size:" in done.stdout
    assert "[same-flag-twice]" in done.stdout
    assert done.stderr.splitlines()[-1] == "1 profile: 0 errors, 1 warning, 0 notes"


def test_the_gpu_decides_which_rules_apply(tmp_path: Path, python: Path) -> None:
    path = configuration(tmp_path, python, {"attention-backend": "trtllm_mla"})
    assert lint(path, "--gpu", "sm100").returncode == 0
    done = lint(path, "--gpu", "sm120")
    assert done.returncode == 4 and "[sm120-trtllm-mla]" in done.stdout


def test_another_release_can_be_asked_for(tmp_path: Path, python: Path) -> None:
    path = configuration(tmp_path, python, {"cuda-graph-max-bs": 8})
    assert lint(path, "--sglang-version", "0.5.19", "--gpu", "none").returncode == 0
    done = lint(path, "--sglang-version", "0.5.23", "--gpu", "none")
    assert done.returncode == 4
    assert "write `cuda-graph-max-bs-decode`" in done.stdout


@pytest.mark.parametrize("kind", ["interpreter", "environment", "site-packages"])
def test_an_installation_can_be_named_in_three_ways(
    tmp_path: Path, python: Path, kind: str
) -> None:
    environment = python.parent.parent
    named = {
        "interpreter": python,
        "environment": environment,
        "site-packages": environment / "lib/python3.11/site-packages",
    }[kind]
    path = configuration(tmp_path, tmp_path / "none", {"no-such-flag": True})
    done = lint(path, "--sglang", str(named), "--gpu", "none", "-o", "json")
    [finding] = findings(done)
    assert "SGLang 0.5.9 has no flag" in finding["message"]


def test_without_an_installation_the_newest_release_is_assumed(tmp_path: Path) -> None:
    path = configuration(tmp_path, tmp_path / "none", {"tp-size": 8})
    done = lint(path, "-o", "json", "--gpu", "none")
    assert [finding["code"] for finding in findings(done)] == ["assumed-release"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["other"], "there is no profile 'other'"),
        (["--sglang-version", "9.9"], "SGLang 9.9 is not known"),
        (["--sglang", "/none"], "--sglang: /none is no interpreter"),
        (["--sglang", "/none", "--sglang-version", "0.5.23"], "exclude each other"),
    ],
)
def test_what_does_not_exist_is_a_usage_error(
    tmp_path: Path, python: Path, arguments: list[str], told: str
) -> None:
    done = lint(configuration(tmp_path, python, {}), *arguments)
    assert done.returncode == 2
    assert told in done.stderr and done.stdout == ""


def test_serve_refuses_what_the_lint_knows_to_break(tmp_path: Path, python: Path) -> None:
    path = configuration(tmp_path, python, {"no-such-flag": True})
    with Serving(("--config", str(path)), tmp_path / "state") as instance:
        assert instance.process.wait(60) == 4
        output = instance.output.read_text()
    assert "[unknown-flag]" in output and "allow_findings" in output
    assert "starting" not in [event["event"] for event in instance.events()]


def test_serve_starts_what_is_allowed_by_name_and_records_it(tmp_path: Path, python: Path) -> None:
    path = configuration(tmp_path, python, {"no-such-flag": True}, allow_findings=["unknown-flag"])
    with Serving(("--config", str(path)), tmp_path / "state") as instance:
        journal = instance.state_dir / "events.jsonl"
        wait_until(
            lambda: journal.exists() and '"starting"' in journal.read_text(),
            seconds=60,
            what="a start begins",
        )
        [overridden] = [x for x in instance.events() if x["event"] == "lint_overridden"]
    assert (overridden["profile"], overridden["codes"]) == ("main", ["unknown-flag"])
