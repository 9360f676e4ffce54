"""Runs one playbook through ansible-runner, in a process of its own: see opsctl/provision/run.py.

    python -m opsctl.provision.worker REQUEST

REQUEST is a JSON file: {playbook, inventory, folder, events, tags, check, diff, forks}. Ansible's
output goes to stdout, every event as one line of JSON to `events`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import IO, Any

KEPT = frozenset(
    {
        "playbook_on_play_start",
        "playbook_on_task_start",
        "playbook_on_stats",
        "runner_on_start",
        "runner_on_ok",
        "runner_on_failed",
        "runner_on_skipped",
        "runner_on_unreachable",
    }
)


def main(arguments: list[str]) -> int:
    """Run it; the exit code is Ansible's, 254 when it was cancelled."""
    import ansible_runner  # noqa: PLC0415 - an extra, and slow to load

    request: dict[str, Any] = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    options = [word for word in ("check", "diff") if request[word]]
    with Path(request["events"]).open("a", encoding="utf-8", buffering=1) as events:
        result = ansible_runner.run(
            private_data_dir=request["folder"],
            playbook=request["playbook"],
            inventory=request["inventory"],
            cmdline=" ".join(f"--{word}" for word in options) or None,
            tags=",".join(request["tags"]) or None,
            forks=request["forks"],
            # Without it ansible-runner writes the options down, and every later run in the same
            # folder silently stays a check run.
            suppress_env_files=True,
            event_handler=lambda event: _write(events, event),
        )
    return int(result.rc)


def _write(events: IO[str], event: dict[str, Any]) -> bool:
    if event["event"] in KEPT:
        data = event.get("event_data", {})
        kept = {key: data[key] for key in ("host", "role", "task", "play", "res") if key in data}
        for key in ("ignore_errors", "ok", "changed", "failures", "dark"):
            if key in data:
                kept[key] = data[key]
        events.write(json.dumps({"event": event["event"], **kept}) + "\n")
    return False  # ansible-runner is not to keep the event itself


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
