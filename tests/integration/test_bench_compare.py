"""Measured, compared, reported and tuned by the commands a person types.

The engine is simulated and set to the reference host's table, two and a half times as fast as the
host was: ratios do not change by that.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl.bench.results import save_result
from tests.support.measured import fixed_prompt, reference_host
from tests.support.simulated import profile

QUICK = {"tp_size": 1, "sim_prefill_rate": 1e6, "sim_time_scale": 0.4}
EAGLE3 = {
    "speculative_algorithm": "EAGLE3",
    "speculative_num_steps": 3,
    "speculative_num_draft_tokens": 4,
}


def opsctl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "opsctl", *words],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def configuration(folder: Path) -> list[str]:
    """A pair of profiles that run as the reference host did; the options that name it."""
    profiles = {
        "baseline": profile("baseline", **QUICK, sim_surface="reference_host:baseline"),
        "eagle3": profile("x", **EAGLE3, **QUICK, sim_surface="reference_host:eagle3"),
    }
    content = {
        "profiles": profiles,
        "serve": {"profile": "baseline"},
        "auto_spec": {"speculative": "eagle3", "baseline": "baseline"},
    }
    (folder / "opsctl.yaml").write_text(yaml.safe_dump(content))
    return ["--config", str(folder / "opsctl.yaml")]


def saved(folder: Path) -> list[str]:
    for found in (reference_host(), fixed_prompt()):
        save_result(folder / found.name, found.result)
    return [str(folder / name) for name in ("reference", "fixed")]


def test_results_are_compared_by_the_command(tmp_path: Path) -> None:
    done = opsctl("bench", "compare", *saved(tmp_path), "-o", "json")
    content: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode, content["schema"]) == (0, "opsctl/bench-compare/v1")
    verdicts = {(x["workload"], x["concurrency"]): x["verdict"] for x in content["cells"]}
    assert verdicts["diverse", 1] == "worse"
    assert verdicts["fixed", 1] == "better"
    kinds = {x["workload"]: x["crossover"]["kind"] for x in content["contexts"]}
    assert kinds == {"diverse": "never", "fixed": "at"}


def test_the_table_is_for_people_and_the_findings_are_said(tmp_path: Path) -> None:
    done = opsctl("bench", "compare", *saved(tmp_path))
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].startswith("PROFILE")
    assert len(done.stdout.splitlines()) == 1 + 8
    assert "does not pay on this host with these prompts" in done.stderr
    assert "only at concurrency 1, +3." in done.stderr


def test_a_path_that_is_no_result_is_one_line_and_a_hint(tmp_path: Path) -> None:
    done = opsctl("bench", "compare", str(tmp_path / "nothing"))
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(700)
@pytest.mark.parametrize(
    ("prompts", "kind", "words"),
    [
        (("code", "agentic"), "never", "speculation does not pay on this host with these prompts"),
        (("easy",), "at", "only at concurrency 1, +"),
    ],
)
def test_the_reference_hosts_verdict_comes_out_of_a_whole_run(
    tmp_path: Path, prompts: tuple[str, ...], kind: str, words: str
) -> None:
    config = configuration(tmp_path)
    content = measured(tmp_path, prompts, config)
    assert content["contexts"][0]["crossover"]["kind"] == kind, content
    assert words in content["findings"][0]["finding"]
    results = [str(tmp_path / name) for name in ("one", "ten")]
    tuned = opsctl("tune", *results, *config, "--state-dir", str(tmp_path / "state"), "--yes")
    assert tuned.returncode == (4 if kind == "never" else 0), tuned.stderr
    assert (tmp_path / "conf.d").exists() == (kind == "at")
    assert (tmp_path / "state" / "surfaces" / "eagle3.json").exists()


def measured(folder: Path, prompts: tuple[str, ...], config: list[str]) -> dict[str, Any]:
    """What `bench compare` says of two runs, at concurrency 1 and 10.

    One stream alone needs long windows: how many drafts are accepted differs from step to step.
    While nothing is decided repeats are added, as a person would.
    """
    workload = folder / "prompts.jsonl"
    lines = [json.dumps({"prompt": f"[class:{name}]\nWrite words."}) for name in prompts]
    workload.write_text("\n".join(lines))
    what = ["--profile", "baseline", "--profile", "eagle3", "--workload", str(workload)]
    what += ["--output-tokens", "64", "--again", *config]
    content: dict[str, Any] = {}
    for repeats in ("3", "6", "9"):
        for name, n, seconds in (("one", "1", "8s"), ("ten", "10", "2s")):
            grid = ["--concurrency", n, "--duration", seconds, "--repeats", repeats]
            opsctl("bench", "run", *what, *grid, "--out", str(folder / name))
        done = opsctl("bench", "compare", str(folder / "one"), str(folder / "ten"), "-o", "json")
        if done.returncode == 0:
            content = json.loads(done.stdout)
            if {cell["verdict"] for cell in content["cells"]} <= {"better", "worse"}:
                return content
    if any(cell["verdict"] == "unknown" for cell in content.get("cells", [{"verdict": "unknown"}])):
        pytest.skip(f"this machine is too busy to measure: {content}")
    return content
