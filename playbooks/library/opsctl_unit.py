#!/usr/bin/python3
"""Ansible module: systemd units of opsctl's service, rendered on the host by opsctl itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.opsctl_host import config, last, run, unit

DOCUMENTATION = r"""
module: opsctl_unit
short_description: Systemd units of opsctl's service, rendered on the host by opsctl itself
description:
  - Calls `opsctl unit install` where `--dry-run` says that something would change.
options:
  instances: {type: list, elements: str, required: true, description: Names; "" is the only one.}
  opsctl: {type: path, required: true}
  config_dir: {type: path, default: /etc/opsctl}
  user: {type: str, required: true}
  state_dir: {type: path, required: true, description: "That of an instance is a folder in it."}
  auto_spec: {type: bool, default: true, description: False never serves with --auto-spec.}
"""
WOULD_CHANGE = 3
UNITS = "/etc/systemd/system"
UNKNOWN = "unknown until opsctl and its configuration are on the host"


def install(wanted: dict[str, Any], instance: str, check: bool) -> tuple[bool, str, str]:
    """Whether a unit changed or would, the difference, and why it cannot be installed."""
    named = ["--config", config(instance, wanted["config_dir"])]
    named += ["--instance", instance] if instance else []
    named += ["--state-dir", str(Path(wanted["state_dir"], instance)), "--user", wanted["user"]]
    # Without the option it is served with --auto-spec where a pair of profiles is configured.
    named += [] if wanted["auto_spec"] else ["--no-auto-spec"]
    argv = [wanted["opsctl"], "unit", "install", *named]
    dry = run([*argv, "--dry-run", "--diff"], timeout=120)
    if dry.returncode == 0:
        return False, "", ""
    if dry.returncode != WOULD_CHANGE:
        return False, "", last(dry.stderr) or f"exit code {dry.returncode}"
    if check:
        return True, dry.stderr + dry.stdout, ""
    done = run(argv, timeout=120)
    wrong = (last(done.stderr) or f"exit code {done.returncode}") if done.returncode else ""
    return True, dry.stderr + dry.stdout, wrong


def unmask(instance: str, check: bool) -> bool:
    """Whether an instance was masked, and is no more; its template `unit install` looks after."""
    link = Path(UNITS, unit(instance))
    if not instance or not link.is_symlink() or str(link.readlink()) != os.devnull:
        return False
    if not check:
        link.unlink()
    return True


def main() -> None:
    """Do what the task asks for."""
    module = AnsibleModule(
        argument_spec={
            "instances": {"type": "list", "elements": "str", "required": True},
            "opsctl": {"type": "path", "required": True},
            "config_dir": {"type": "path", "default": "/etc/opsctl"},
            "user": {"type": "str", "required": True},
            "state_dir": {"type": "path", "required": True},
            "auto_spec": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    files = [config(x, wanted["config_dir"]) for x in wanted["instances"]]
    if module.check_mode and not all(map(os.path.exists, [wanted["opsctl"], *files])):
        module.exit_json(changed=False, msg=UNKNOWN)
    changed, diffs = False, []
    for instance in wanted["instances"]:
        changed = unmask(instance, module.check_mode) or changed
        one, diff, wrong = install(wanted, instance, module.check_mode)
        if wrong:
            module.fail_json(msg=f"the unit cannot be installed: {wrong}")
        changed = changed or one
        diffs += [diff] if diff else []
    module.exit_json(changed=changed, diff={"prepared": "\n".join(diffs)})


if __name__ == "__main__":
    main()
