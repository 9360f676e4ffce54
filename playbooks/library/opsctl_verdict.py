#!/usr/bin/python3
"""Ansible module: does the host serve? Its word is what `opsctl provision` calls success."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.opsctl_host import (
    config,
    document,
    last,
    place,
    properties,
    run,
    status,
    unit,
    write,
)

DOCUMENTATION = r"""
module: opsctl_verdict
short_description: Does the host serve
description:
  - Waits until every unit is active, its opsctl says that it serves, and its gateway answers.
  - Then asks the doctor, whose failing checks count unless they are allowed.
  - The verdict is a file on the host; the task itself fails only where nothing can be asked.
options:
  instances: {type: list, elements: str, required: true, description: Names; "" is the only one.}
  config_dir: {type: path, default: /etc/opsctl}
  opsctl: {type: path, required: true}
  listen: {type: list, elements: str, default: []}
  allow: {type: list, elements: str, default: []}
  timeout: {type: int, default: 1800}
  verdict: {type: path, default: /var/lib/opsctl-provision/verdict.json}
"""
FINAL = frozenset({"failed", "inactive"})
UNKNOWN = "unknown until opsctl is on the host"


def look(name: str, opsctl: str) -> tuple[str, bool, str]:
    """Why a unit does not serve yet ("" when it does), whether that is final, where it listens."""
    found = properties(name)
    active = found.get("ActiveState", "unknown")
    if found.get("LoadState") != "loaded":
        return f"{name} is {found.get('LoadState', 'unknown to systemd')}", True, ""
    if active in FINAL:
        return f"{name} is {active}: {_ended(name, found)}", True, ""
    code, answer, said = status(opsctl, found)
    if code:
        return f"{name} is {active} and opsctl does not answer: {last(said, 1)}", False, ""
    if answer["state"] != "serving" or active != "active":
        return f"{name} is {active}, {answer['state']}: {answer['reason']}", False, ""
    return "", True, answer["listen"]


def _ended(name: str, found: dict[str, str]) -> str:
    # What the program itself wrote; systemd's own words repeat the exit code.
    argv = ["journalctl", "-u", name, "_TRANSPORT=stdout", "-n", "4", "-o", "cat", "--no-pager"]
    words = " / ".join(last(run(argv, timeout=30).stdout, 4).splitlines())
    code = found.get("ExecMainStatus", "?")
    return f"exit code {code} ({found.get('Result', '?')}); it said: {words or 'nothing'}"


def answers(address: str) -> str:
    """Why a gateway does not take requests; "" when it does."""
    host, _, port = address.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - compared, not bound
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{host}:{port}/readyz", timeout=10):
            return ""
    except urllib.error.HTTPError as error:
        return f"http://{address}/readyz answers {error.code}"
    except (OSError, ValueError) as error:
        return f"http://{address}/readyz does not answer: {error}"


def doctor(opsctl: str, instance: str, folder: str, allow: list[str]) -> list[str]:
    """The doctor's failing checks that are not allowed, for an instance and its engine."""
    argv = [opsctl, "doctor", "--config", config(instance, folder), "-o", "json"]
    where = place(properties(unit(instance)))
    code, found, said = document(argv, timeout=600, environment=where)
    if "checks" not in found:
        return [f"`opsctl doctor` gives no report (exit code {code}): {last(said, 1)}"]
    failing = [x for x in found["checks"] if x["status"] == "fail" and x["id"] not in allow]
    return [f"doctor: {x['id']}: {x['why']}; {x['fix'] or 'no fix is known'}" for x in failing]


def judge(wanted: dict[str, Any]) -> list[str]:
    """Every reason why the host does not serve as it should; none when it does."""
    opsctl, deadline = wanted["opsctl"], time.monotonic() + wanted["timeout"]
    why, listening = [], set(wanted["listen"])
    for instance in wanted["instances"]:
        while True:
            reason, final, address = look(unit(instance), opsctl)
            if final or time.monotonic() >= deadline:
                break
            time.sleep(1)
        if reason and not final:
            reason = f"after {wanted['timeout']} s {reason}"
        why += [reason] if reason else []
        listening |= {address} if address else set()
    if not why:
        why += [said for address in sorted(listening) if (said := answers(address))]
    for instance in wanted["instances"]:
        why += doctor(opsctl, instance, wanted["config_dir"], wanted["allow"])
    return list(dict.fromkeys(why))


def main() -> None:
    """Do what the task asks for."""
    module = AnsibleModule(
        argument_spec={
            "instances": {"type": "list", "elements": "str", "required": True},
            "config_dir": {"type": "path", "default": "/etc/opsctl"},
            "opsctl": {"type": "path", "required": True},
            "listen": {"type": "list", "elements": "str", "default": []},
            "allow": {"type": "list", "elements": "str", "default": []},
            "timeout": {"type": "int", "default": 1800},
            "verdict": {"type": "path", "default": "/var/lib/opsctl-provision/verdict.json"},
        },
        supports_check_mode=True,
    )
    wanted: dict[str, Any] = module.params
    there = os.access(wanted["opsctl"], os.X_OK)
    if module.check_mode:
        module.exit_json(changed=False, msg="a check does not judge" if there else UNKNOWN)
    file = Path(wanted["verdict"])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)  # a run that is broken off leaves no older verdict
    why = judge(wanted) if there else [f"{wanted['opsctl']} is not there"]
    verdict = {"verdict": "failed" if why else "ok", "why": why}
    write(file, json.dumps(verdict, indent=1) + "\n")
    module.exit_json(changed=False, **verdict, msg="; ".join(why) or "the host serves")


if __name__ == "__main__":
    main()
