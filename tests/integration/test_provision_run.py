"""Runs of real playbooks by real Ansible: what is told, what is left, what is never written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from opsctl.provision.run import Play, run
from tests.support.server import wait_until

CANARY = "canary-f3a91c"
HERE = {
    "all": {
        "hosts": {
            "here": {
                "ansible_connection": "local",
                "ansible_python_interpreter": sys.executable,
                "secret": CANARY,
            }
        }
    }
}


def playbook(folder: Path, tasks: str) -> Path:
    path = folder / "site.yml"
    path.write_text(f"- hosts: all\n  gather_facts: false\n  tasks:\n{tasks}")
    return path


def play(tmp_path: Path, tasks: str, **more: Any) -> Play:
    return Play(playbook(tmp_path, tasks), HERE, tmp_path / "run", **more)


def test_events_arrive_and_the_log_stays(tmp_path: Path) -> None:
    target = tmp_path / "made"
    task = (
        "    - name: Make it\n"
        f"      ansible.builtin.copy: {{content: x, dest: {target}, mode: '0600'}}\n"
    )
    events: list[dict[str, Any]] = []
    done = play(tmp_path, task)
    assert run(done, events.append) == 0
    assert target.read_text() == "x"
    [ok] = [event for event in events if event["event"] == "runner_on_ok"]
    assert (ok["host"], ok["task"], ok["res"]["changed"]) == ("here", "Make it", True)
    assert "Make it" in done.log.read_text()
    assert sorted(path.name for path in done.folder.iterdir()) == ["ansible.log", "events.jsonl"]


def test_a_check_run_changes_nothing_and_the_next_run_is_no_check(tmp_path: Path) -> None:
    target = tmp_path / "made"
    task = f"    - ansible.builtin.copy: {{content: x, dest: {target}, mode: '0600'}}\n"
    assert run(play(tmp_path, task, check=True), lambda event: None) == 0
    assert not target.exists()
    again = Play(tmp_path / "site.yml", HERE, tmp_path / "again")
    assert run(again, lambda event: None) == 0
    assert target.exists()


def test_nothing_of_the_callers_environment_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", CANARY)
    task = "    - ansible.builtin.command: env\n      changed_when: false\n"
    assert run(play(tmp_path, task), lambda event: None) == 0
    for path in (tmp_path / "run").rglob("*"):
        assert not path.is_file() or CANARY not in path.read_text(), path


def test_an_interrupt_leaves_no_process(tmp_path: Path) -> None:
    marker = f"{os.getpid()}17"
    asked = play(tmp_path, f"    - ansible.builtin.command: sleep {marker}\n")
    script = f"""
from pathlib import Path
from opsctl.provision.run import Play, run
run(Play(Path({str(asked.playbook)!r}), {HERE!r}, Path({str(asked.folder)!r})), print)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)

    def sleeping() -> list[psutil.Process]:
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if process.info["cmdline"] == ["sleep", marker]
        ]

    wait_until(sleeping, seconds=60, what="the module runs")
    process.send_signal(signal.SIGINT)
    assert process.wait(30) != 0
    assert sleeping() == []
    assert not [
        other
        for other in psutil.process_iter(["cmdline"])
        if str(asked.playbook) in " ".join(other.info["cmdline"] or [])
    ]
    assert not (asked.folder / "private").exists()


def test_a_failure_is_in_the_events_and_in_the_exit_code(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    task = "    - ansible.builtin.command: sh -c 'echo no room >&2; exit 3'\n"
    assert run(play(tmp_path, task), events.append) == 2
    [failed] = [event for event in events if event["event"] == "runner_on_failed"]
    assert failed["res"]["stderr"] == "no room"
    json.dumps(failed)
